//! Evaluates rules with the state of this server's store.

use std::borrow::Cow;

use sluicegate_core::{
    Answer, KeyLengthError, KeyedOperation, Operation, PreparedPolicy, Request, StoreError,
    Timestamp,
};
use sluicegate_rules::{
    ChargeRequest, ChargeSet, Evaluation, HoldDenial, Match, RuleOperation, RuleOutcome,
    hold_answer,
};
use smallvec::SmallVec;

use super::Decider;
use crate::policies::rule_store::RuleSnapshot;

impl Decider {
    /// Evaluates the rules that match a request, and counts the events of a take.
    ///
    /// # Errors
    /// [`StoreError`] if a key of an enforced rule is too long or the store fails; then nothing is charged.
    pub(crate) async fn evaluate(
        &self,
        rules: &RuleSnapshot,
        matches: &[Match<'_>],
        operation: RuleOperation,
        now: Timestamp,
    ) -> Result<RuleOutcome, StoreError> {
        let too_long = |error: KeyLengthError| StoreError::Key(error.to_string());
        let mut evaluation = Evaluation::new(matches, operation).map_err(too_long)?;
        self.check_keys(matches)?;
        while let Some(set) = evaluation.next_charges() {
            let is_shadow = set.is_shadow();
            let answers = match set.is_all_or_none() {
                false => self.apply_charges(rules, set, now).await,
                // Boxed, because most requests have one rule, and each future would have its size.
                true => Box::pin(self.apply_charges_together(rules, set, now)).await,
            };
            match answers {
                Ok(answers) => evaluation.record(&answers),
                Err(error) if is_shadow => {
                    tracing::debug!(%error, "could not decide by a shadow rule");
                }
                Err(error) => return Err(error),
            }
        }
        for (found, events) in evaluation.events() {
            self.rules.counters.add(&found.metric, events);
        }
        if self.denial_log.is_some() || self.has_spans {
            self.note_rules(rules, &evaluation, operation, now);
        }
        Ok(evaluation.into_outcome())
    }

    /// Applies the operation of a rule that holds.
    async fn hold_or_settle(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation<'_>,
        now: Timestamp,
    ) -> Result<Answer, StoreError> {
        let error = match self.decide(Request::one(key, policy, operation), now).await {
            Ok(answer) => return Ok(hold_answer(operation, answer)),
            Err(error) => error,
        };
        let denial = match &error {
            StoreError::Hold(error) => HoldDenial::of(error),
            _ => None,
        };
        let Some(denial) = denial else { return Err(error) };
        let peek = Request::one(key, policy, Operation::Peek(0));
        Ok(denial.answer(self.decide(peek, now).await?))
    }

    /// Applies the requests of a set independently, in order.
    async fn apply_charges(
        &self,
        rules: &RuleSnapshot,
        set: ChargeSet<'_, '_, '_>,
        now: Timestamp,
    ) -> Result<SmallVec<[Answer; 1]>, StoreError> {
        let mut answers = SmallVec::new();
        for request in set.requests() {
            let (key, operation) = (&request.charge.key, set.operation(&request));
            let policy = self.policy_of(rules, &request);
            let answer = match operation.id() {
                // Boxed, because most rules hold nothing, and each future would have its size.
                Some(_) => Box::pin(self.hold_or_settle(key, &policy, operation, now)).await?,
                None => self.decide(Request::one(key, &policy, operation), now).await?,
            };
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Applies the requests of a set together, all or none.
    async fn apply_charges_together(
        &self,
        rules: &RuleSnapshot,
        set: ChargeSet<'_, '_, '_>,
        now: Timestamp,
    ) -> Result<SmallVec<[Answer; 1]>, StoreError> {
        let prepared: SmallVec<[_; 4]> =
            set.requests().map(|it| (it, self.policy_of(rules, &it))).collect();
        let operations: SmallVec<[_; 4]> = prepared
            .iter()
            .map(|(it, policy)| KeyedOperation {
                key: &it.charge.key,
                policy,
                operation: set.operation(it),
            })
            .collect();
        let answer = self.decide(Request::of_rules(&operations)?, now).await?;
        let each = answer.each().iter();
        Ok(each.map(|decision| Answer::new(*decision, answer.source)).collect())
    }

    /// The policy of a request, with the fallback of its rule if the store can be unavailable.
    fn policy_of<'r>(
        &self,
        rules: &'r RuleSnapshot,
        request: &ChargeRequest<'_, '_>,
    ) -> Cow<'r, PreparedPolicy> {
        let on_error = request.on_error.filter(|_| !self.is_local());
        rules.prepared(request.charge, on_error, self.defaults)
    }
}

#[cfg(test)]
mod tests;
