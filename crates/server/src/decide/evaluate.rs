//! Evaluates rules with the state of this server's store.

use sluicegate_core::{
    Answer, HoldOperation, KeyedTake, MultiKeyAnswer, MultiKeyOperation, Operation, PreparedPolicy,
    StoreError, Timestamp,
};
use sluicegate_rules::{
    ChargeMode, ChargeSet, Evaluation, HoldDenial, KeyTooLong, Match, RuleOperation, RuleOutcome,
    hold_answer,
};
use smallvec::SmallVec;

use super::Decider;
use crate::policies::rule_store::RuleSnapshot;

impl Decider {
    /// Evaluates the rules that match a request, and counts the events of a take.
    ///
    /// # Errors
    /// [`StoreError`] if a key is too long or the store fails; then nothing is charged.
    pub(crate) async fn evaluate(
        &self,
        rules: &RuleSnapshot,
        matches: &[Match<'_>],
        operation: RuleOperation,
        now: Timestamp,
    ) -> Result<RuleOutcome, StoreError> {
        let too_long = |error: KeyTooLong| StoreError::Key(error.to_string());
        let mut evaluation = Evaluation::new(matches, operation).map_err(too_long)?;
        while let Some(set) = evaluation.next_charges() {
            let answers = self.apply_charges(rules, set, now).await?;
            evaluation.record(&answers);
        }
        for (found, events) in evaluation.events() {
            self.rules.counters.add(&found.metric, events);
        }
        Ok(evaluation.into_outcome())
    }

    /// Applies the operation of a rule that holds.
    async fn hold_or_settle(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: HoldOperation<'_>,
        now: Timestamp,
    ) -> Result<Answer, StoreError> {
        let error = match self.decide_hold(key, policy, operation, now).await {
            Ok(answer) => return Ok(hold_answer(&operation, answer)),
            Err(error) => error,
        };
        let denial = match &error {
            StoreError::Hold(error) => HoldDenial::of(error),
            _ => None,
        };
        let Some(denial) = denial else { return Err(error) };
        Ok(denial.answer(self.decide(key, policy, Operation::Peek(0), now).await?))
    }

    async fn apply_charges(
        &self,
        rules: &RuleSnapshot,
        set: ChargeSet<'_, '_, '_>,
        now: Timestamp,
    ) -> Result<SmallVec<[Answer; 1]>, StoreError> {
        // A local store is always available.
        let prepare = |charge, on_error: Option<_>| {
            rules.prepared(charge, on_error.filter(|_| !self.is_local()), self.on_error)
        };
        let operation = match set.mode() {
            ChargeMode::Independent => {
                let mut answers = SmallVec::new();
                for request in set.requests() {
                    let (key, operation) = (&request.charge.key, set.operation(&request));
                    let policy = prepare(request.charge, request.on_error);
                    if let Some(operation) = set.hold_operation(&request) {
                        answers.push(self.hold_or_settle(key, &policy, operation, now).await?);
                        continue;
                    }
                    answers.push(self.decide(key, &policy, operation, now).await?);
                }
                return Ok(answers);
            }
            ChargeMode::MultiKeyTake => MultiKeyOperation::Take,
            ChargeMode::MultiKeyPeek => MultiKeyOperation::Peek,
        };
        let prepared: SmallVec<[_; 4]> =
            set.requests().map(|it| (it, prepare(it.charge, it.on_error))).collect();
        let takes: SmallVec<[_; 4]> = prepared
            .iter()
            .map(|(it, policy)| KeyedTake { key: &it.charge.key, policy, cost: it.cost })
            .collect();
        let MultiKeyAnswer { multi_key: taken, source } =
            self.decide_multi_key(operation, &takes, now).await?;
        let is_take = operation == MultiKeyOperation::Take;
        for KeyedTake { key, policy, cost } in takes.into_iter().filter(|_| is_take) {
            // A remote store may have taken from some keys and given that back.
            if !taken.decision.allowed() && !self.is_local() {
                self.queues.changed(key);
            } else {
                self.queues.applied(key, policy.policy(), Operation::Take(cost));
            }
        }
        Ok(taken.each.into_iter().map(|decision| Answer { decision, source }).collect())
    }
}

#[cfg(test)]
mod tests;
