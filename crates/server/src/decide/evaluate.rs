//! Evaluates rules with the state of this server's store.

use sluicegate_commands::CommandError;
use sluicegate_core::{Answer, MultiKeyAnswer, Operation, Timestamp};
use sluicegate_rules::{
    ChargeMode, ChargeSet, Evaluation, KeyTooLong, Match, RuleOperation, RuleOutcome,
};
use smallvec::SmallVec;

use super::Decider;
use crate::{
    policies::ruleset::Version,
    store::home::{Take, Trouble},
};

impl Decider {
    /// Evaluates the rules that match a request, and counts the events of a take.
    ///
    /// # Errors
    /// [`Trouble`] if a key is too long or the store fails; then nothing is charged.
    pub(crate) async fn evaluate(
        &self,
        rules: &Version,
        matches: &[Match<'_>],
        operation: RuleOperation,
        now: Timestamp,
    ) -> Result<RuleOutcome, Trouble> {
        let too_long = |KeyTooLong(length)| Trouble::State(CommandError::Key(length).to_string());
        let mut evaluation = Evaluation::new(matches, operation).map_err(too_long)?;
        while let Some(set) = evaluation.next_charges() {
            let answers = self.apply_charges(rules, set, now).await?;
            evaluation.record(&answers);
        }
        for (found, events) in evaluation.events() {
            self.rules.tallies.add(&found.metric, events);
        }
        Ok(evaluation.into_outcome())
    }

    async fn apply_charges(
        &self,
        rules: &Version,
        set: ChargeSet<'_, '_, '_>,
        now: Timestamp,
    ) -> Result<SmallVec<[Answer; 1]>, Trouble> {
        let prepare =
            |charge, on_error| rules.prepared(charge, on_error, (&self.store, self.on_error), now);
        let is_take = match set.mode() {
            ChargeMode::Independent => {
                let mut answers = SmallVec::new();
                for request in set.requests() {
                    let (key, operation) = (&request.charge.key, set.operation(&request));
                    let rule = prepare(request.charge, request.on_error);
                    answers.push(self.decide(key, &rule, operation, now).await?);
                    self.queues.asked(key, rule.policy(), operation);
                }
                return Ok(answers);
            }
            ChargeMode::TakeTogether => true,
            ChargeMode::PeekTogether => false,
        };
        let prepared: SmallVec<[_; 4]> =
            set.requests().map(|it| (it, prepare(it.charge, it.on_error))).collect();
        let takes: SmallVec<[_; 4]> = prepared
            .iter()
            .map(|(it, rule)| Take { key: &it.charge.key, rule, cost: it.cost })
            .collect();
        let MultiKeyAnswer { joint, source } = self.decide_together(&takes, is_take, now).await?;
        for Take { key, rule, cost } in takes.into_iter().filter(|_| is_take) {
            // A remote store may have taken from some keys and given that back.
            if !joint.decision.allowed() && self.store.memory().is_none() {
                self.queues.changed(key);
            } else {
                self.queues.asked(key, rule.policy(), Operation::Take(cost));
            }
        }
        Ok(joint.each.into_iter().map(|decision| Answer { decision, source }).collect())
    }
}

#[cfg(test)]
mod tests;
