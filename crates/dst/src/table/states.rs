//! The possible states of a key: after a crash, any state that it had while the last snapshot was written.

use std::collections::BTreeMap;

use sluicegate_conformance::{Invocation, OracleSubject, Subject as _, compare};
use sluicegate_core::{Decision, Limit, Operation, Policy, PreparedPolicy, Timestamp};

use crate::oracle::on_key;

/// Upper bound on the states that a key may have before a run ends.
const MAX_STATES: usize = 1024;

/// The states that a key may have, each of the oracle, and those that snapshots may have of it.
#[derive(Clone, Debug)]
pub(super) struct KeyStates {
    pub(super) now: Vec<OracleSubject>,
    /// Those in the snapshot that is being written, and in the last complete one.
    saving: Vec<OracleSubject>,
    saved: Vec<OracleSubject>,
}

impl Default for KeyStates {
    fn default() -> Self {
        Self::of(vec![OracleSubject::default()])
    }
}

impl KeyStates {
    /// A key that may have these states, and that no snapshot has.
    pub(super) fn of(now: Vec<OracleSubject>) -> Self {
        let unused = vec![OracleSubject::default()];
        Self { now, saving: unused.clone(), saved: unused }
    }

    /// The same, with what snapshots may have of it.
    pub(super) fn with_saved(
        now: Vec<OracleSubject>,
        saving: Vec<OracleSubject>,
        saved: Vec<OracleSubject>,
    ) -> Self {
        Self { now, saving, saved }
    }

    /// Drops the states in which the oracle does not decide like this, and changes the others. Returns the decision
    /// of the oracle in the first of them, if none remains.
    pub(super) fn observe(
        &mut self,
        invocation: Invocation<'_>,
        decision: &Result<Decision, String>,
        is_saving: bool,
    ) -> Result<(), Result<Decision, String>> {
        let mut expected = None;
        let mut after = Vec::new();
        for mut state in std::mem::take(&mut self.now) {
            let by_oracle = state.apply(invocation);
            if compare(&by_oracle, decision).is_ok() {
                after.push(state);
            } else {
                expected.get_or_insert(by_oracle);
            }
        }
        self.now = after;
        if is_saving {
            self.saving.extend(self.now.iter().cloned());
        }
        match expected {
            Some(expected) if self.now.is_empty() => Err(expected),
            _ => Ok(()),
        }
    }

    /// A further state that the key may have.
    pub(super) fn add(&mut self, state: OracleSubject, is_saving: bool) {
        if is_saving {
            self.saving.push(state.clone());
        }
        self.now.push(state);
    }

    /// Whether there are more than a run can keep track of.
    pub(super) fn are_too_many(&self) -> bool {
        self.now.len().max(self.saved.len()) > MAX_STATES
    }

    /// A snapshot begins.
    pub(super) fn begin_save(&mut self) {
        self.saving.clone_from(&self.now);
    }

    /// The snapshot is complete.
    pub(super) fn end_save(&mut self) {
        self.saved.clone_from(&self.saving);
    }

    /// The snapshot may be complete.
    pub(super) fn may_end_save(&mut self) {
        self.saved.extend(self.saving.iter().cloned());
    }

    /// The store starts again, from the last snapshot or empty.
    pub(super) fn restart(&mut self, is_lost: bool) {
        if is_lost {
            *self = Self::default();
        }
        self.now.clone_from(&self.saved);
        distinguish(&mut self.now);
    }

    /// Whether the key has recovered in one of its states, as far as the next decision under `policy` shows.
    pub(super) fn may_have_recovered(&self, policy: &Policy, now: Timestamp) -> bool {
        self.now.iter().any(|state| is_unused(state, policy, now))
    }

    /// What a reset may say of the state of the key: whether there is some that has not recovered. The policy under which it was
    /// stored is one of `policies`.
    pub(super) fn may_have_state(&self, policies: &[&Policy], now: Timestamp) -> Vec<bool> {
        // A log may keep events for a later policy.
        let keeps = |it: &Limit| matches!(it, Limit::SlidingLog(log) if log.keep().is_some());
        let is_kept = policies.iter().any(|policy| policy.limits().iter().any(keeps));
        let mut may = Vec::new();
        for state in &self.now {
            let unused = policies.iter().filter(|policy| is_unused(state, policy, now)).count();
            may.extend((unused > 0).then_some(false));
            may.extend((unused < policies.len() || is_kept).then_some(true));
        }
        may
    }

    /// The clock is set back, and keys that have recovered by `now` may have been deleted already.
    pub(super) fn forget_recovered(&mut self, policies: &[&Policy], now: Timestamp) {
        for states in [&mut self.now, &mut self.saving, &mut self.saved] {
            let recovers =
                |state: &OracleSubject| policies.iter().any(|policy| is_unused(state, policy, now));
            if states.iter().any(recovers) {
                states.push(OracleSubject::default());
            }
        }
    }
}

/// Whether the oracle decides on the key as on an unused one.
fn is_unused(state: &OracleSubject, policy: &Policy, now: Timestamp) -> bool {
    let peek = on_key(policy, Operation::Peek(1), now);
    state.clone().apply(peek) == OracleSubject::default().apply(peek)
}

/// Leaves one of states that are equal.
pub(super) fn distinguish(states: &mut Vec<OracleSubject>) {
    if states.len() < 2 {
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    states.retain(|state| seen.insert(format!("{state:?}")));
}

// Floods of keys: each is taken from once, and some are visited again.

pub(super) const TAKE: Operation<'static> = Operation::Take(1);

/// Keys that were taken from at one time.
pub(super) struct Flood {
    pub(super) policy: PreparedPolicy,
    /// The state of a key after its take.
    pub(super) taken: OracleSubject,
    /// Whether the table had space for each of them.
    pub(super) stored: Vec<bool>,
    /// Whether the key is in the table, the running snapshot, and the last one.
    pub(super) now: Presence,
    pub(super) saving: Presence,
    pub(super) saved: Presence,
    /// Keys that were visited again.
    pub(super) visited: BTreeMap<usize, KeyStates>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Present,
    Maybe,
    Absent,
}

impl Flood {
    /// The states that a key may have as far as its first take goes.
    fn states(&self, index: usize, presence: Presence) -> Vec<OracleSubject> {
        let taken = || self.taken.clone();
        match presence {
            Presence::Present if self.stored[index] => vec![taken()],
            Presence::Maybe if self.stored[index] => vec![taken(), OracleSubject::default()],
            _ => vec![OracleSubject::default()],
        }
    }

    /// The possible states of a key.
    pub(super) fn visit(&mut self, index: usize) -> &mut KeyStates {
        if !self.visited.contains_key(&index) {
            let [now, saving, saved] =
                [self.now, self.saving, self.saved].map(|presence| self.states(index, presence));
            self.visited.insert(index, KeyStates::with_saved(now, saving, saved));
        }
        self.visited.entry(index).or_default()
    }

    pub(super) fn begin_save(&mut self) {
        self.saving = self.now;
        self.visited.values_mut().for_each(KeyStates::begin_save);
    }

    pub(super) fn end_save(&mut self) {
        self.saved = self.saving;
        self.visited.values_mut().for_each(KeyStates::end_save);
    }

    pub(super) fn may_end_save(&mut self) {
        if self.saved != self.saving {
            self.saved = Presence::Maybe;
        }
        self.visited.values_mut().for_each(KeyStates::may_end_save);
    }

    pub(super) fn restart(&mut self, is_lost: bool) {
        if is_lost {
            (self.saving, self.saved) = (Presence::Absent, Presence::Absent);
        }
        self.now = self.saved;
        for states in self.visited.values_mut() {
            states.restart(is_lost);
        }
    }

    /// The clock is set back, and keys that have recovered by `now` may have been deleted already.
    pub(super) fn forget_recovered(&mut self, now: Timestamp) {
        let taken = KeyStates::of(self.states_if_stored());
        if taken.may_have_recovered(self.policy.policy(), now) {
            for presence in [&mut self.now, &mut self.saving, &mut self.saved] {
                if *presence == Presence::Present {
                    *presence = Presence::Maybe;
                }
            }
        }
        for states in self.visited.values_mut() {
            states.forget_recovered(&[self.policy.policy()], now);
        }
    }

    fn states_if_stored(&self) -> Vec<OracleSubject> {
        let stored = self.stored.iter().position(|&stored| stored);
        stored.map(|index| self.states(index, Presence::Present)).unwrap_or_default()
    }
}
