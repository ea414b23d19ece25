//! Floods of keys: each is taken from once, and some are visited again.

use std::collections::BTreeMap;

use sluicegate_conformance::OracleSubject;
use sluicegate_core::{Operation, PreparedPolicy, Timestamp};

use super::states::KeyStates;

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
