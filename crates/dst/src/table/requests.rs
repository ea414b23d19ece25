//! Requests: on one key, on several at once, and on floods of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sluicegate_conformance::{OracleSubject, Subject as _};
use sluicegate_core::{Decision, KeyedOperation, Operation, Request as StoreRequest};
use sluicegate_memory::WhenFull;

use super::{
    flood::{Flood, Presence, TAKE},
    states::distinguish,
    world::TableWorld,
};
use crate::{
    oracle::{decide_denied, on_key},
    plan::Request,
};

impl TableWorld<'_> {
    pub(super) fn request(&mut self, requests: &[(usize, Request)]) {
        let takes: Option<Vec<(usize, u32)>> = requests
            .iter()
            .map(|&(key, it)| if let Request::Take(cost) = it { Some((key, cost)) } else { None })
            .collect();
        match takes {
            Some(takes) if takes.len() > 1 => self.take_all(&takes),
            _ => requests.iter().for_each(|&(key, it)| self.request_one(key, it)),
        }
    }

    pub(super) fn request_one(&mut self, index: usize, request: Request) {
        let (now, store, before) = (self.now(), Arc::clone(&self.store), self.table_full());
        let key = &self.keys[index];
        let policy = key.policies[key.used].clone();
        let id = request.hold_id();
        let operation = request.operation(&id);
        let numbered = store.numbered(&policy, now);
        let decision = store
            .apply_numbered(&key.name, &numbered, now, operation)
            .map_err(|error| error.to_string());
        let integers = decision.as_ref().map(Decision::to_integers);
        self.note(format_args!("{request} of key{index} at {now}: {integers:?}"));
        let invocation = on_key(policy.policy(), operation, now);
        if self.table_full() > before {
            self.check_full(index, invocation, &decision);
        } else if let Err(expected) =
            self.keys[index].states.observe(invocation, &decision, self.is_saving)
        {
            self.violate(format_args!(
                "exactness: key{index}: {request} under {} at {now}: {decision:?}, but the oracle decides {expected:?}",
                policy.policy()
            ));
        }
        self.check_bounds();
    }

    /// A take on several keys, all or nothing.
    pub(super) fn take_all(&mut self, takes: &[(usize, u32)]) {
        let (now, before) = (self.now(), self.table_full());
        let policies: Vec<_> = takes
            .iter()
            .map(|&(key, _)| self.keys[key].policies[self.keys[key].used].clone())
            .collect();
        let keyed: Vec<_> = takes
            .iter()
            .zip(&policies)
            .map(|(&(key, cost), policy)| KeyedOperation {
                key: &self.keys[key].name,
                policy,
                operation: Operation::Take(cost),
            })
            .collect();
        let request = StoreRequest::all(&keyed).map_err(Into::into);
        let taken = request.and_then(|request| self.store.apply_all(request, now));
        self.note(format_args!("take {takes:?} at {now}: {taken:?}"));
        let is_full = self.table_full() > before;
        let Ok(taken) = taken else { return };
        // A key that occurs twice counts once, the first time.
        let mut seen = BTreeSet::new();
        let first = takes.iter().zip(&policies).filter(|((key, _), _)| seen.insert(*key));
        for (turn, (&(index, cost), policy)) in first.enumerate() {
            let take = on_key(policy.policy(), Operation::Take(cost), now);
            let (mut possible, mut expected) = (Vec::new(), None);
            for state in std::mem::take(&mut self.keys[index].states.now) {
                let mut after = state.clone();
                let decision = if taken.allowed() {
                    after.apply(take)
                } else {
                    decide_denied(&mut after, take)
                };
                // Without space for all keys, each may have been counted or not.
                if is_full {
                    let mut taken = state.clone();
                    let _ = taken.apply(take);
                    possible.extend([state, after, taken]);
                } else if decision.as_ref() == Ok(&taken.each()[turn]) {
                    possible.push(after);
                } else {
                    expected = Some(decision);
                }
            }
            if possible.is_empty() {
                self.violate(format_args!(
                    "exactness: key{index} under {} in {takes:?} at {now}: {:?}, but the oracle decides {expected:?}",
                    policy.policy(), taken.each()[turn]
                ));
            }
            distinguish(&mut possible);
            let states = &mut self.keys[index].states;
            for state in possible {
                states.add(state, self.is_saving);
            }
        }
        self.check_bounds();
    }

    /// Takes from new keys.
    pub(super) fn flood(&mut self, key: usize, count: usize) {
        let (now, store) = (self.now(), Arc::clone(&self.store));
        let policy = self.keys[key].policies[0].clone();
        let take = on_key(policy.policy(), TAKE, now);
        let mut taken = OracleSubject::default();
        let expected = taken.apply(take);
        let when_full = self.when_full(OracleSubject::default(), take);
        let numbered = store.numbered(&policy, now);
        let number = self.floods.len();
        let mut stored = Vec::with_capacity(count);
        for index in 0..count {
            let (before, name) = (store.usage().table_full, name(number, index));
            let decision = store.apply_numbered(name.as_bytes(), &numbered, now, TAKE);
            let decision = decision.map_err(|error| error.to_string());
            let is_full = store.usage().table_full > before;
            stored.push(!is_full && decision.as_ref().is_ok_and(Decision::allowed));
            let right = match (is_full, &decision, &when_full) {
                (false, decision, _) => *decision == expected,
                (true, decision, expected) => decision == expected,
            };
            if !right {
                self.violate(format_args!(
                    "exactness: {name} under {} at {now}: {decision:?}, not {expected:?} (full: {is_full})",
                    policy.policy()
                ));
                return;
            }
        }
        let kept = stored.iter().filter(|&&stored| stored).count();
        self.note(format_args!("{kept} of {count} keys had space at {now}"));
        self.check_bounds();
        // The running snapshot may have any of them, and the last one none.
        self.floods.push(Flood {
            policy: policy.policy().clone().into(),
            taken,
            stored,
            now: Presence::Present,
            saving: if self.is_saving { Presence::Maybe } else { Presence::Absent },
            saved: Presence::Absent,
            visited: BTreeMap::new(),
        });
    }

    /// Takes from keys of a flood again.
    pub(super) fn revisit(&mut self, number: usize, first: usize, count: usize) {
        let Some(flood) = self.floods.get(number) else { return };
        let (policy, length) = (flood.policy.clone(), flood.stored.len());
        let store = Arc::clone(&self.store);
        for index in first..(first + count).min(length) {
            let (now, before) = (self.now(), self.table_full());
            let name = name(number, index);
            let take = on_key(policy.policy(), TAKE, now);
            let numbered = store.prepare(policy.policy(), now);
            let decision = store.apply_numbered(name.as_bytes(), &numbered, now, TAKE);
            let decision = decision.map_err(|error| error.to_string());
            let is_full = self.table_full() > before;
            let is_saving = self.is_saving;
            let states = self.floods[number].visit(index);
            if is_full {
                let denies = self.table.when_full == WhenFull::Deny;
                let is_right = states.may_have_recovered(policy.policy(), now)
                    || policy.policy().as_gcra().is_none();
                if denies && decision.as_ref().is_ok_and(Decision::allowed) || !is_right {
                    self.violate(format_args!(
                        "exactness: {name}, which found the table full: {decision:?}"
                    ));
                }
            } else if let Err(expected) = states.observe(take, &decision, is_saving) {
                self.violate(format_args!(
                    "exactness: {name} again under {} at {now}: {decision:?}, but the oracle decides {expected:?}",
                    policy.policy()
                ));
            }
        }
        self.note(format_args!("visited flood {number} again"));
    }
}

fn name(flood: usize, index: usize) -> String {
    format!("flood{flood}-{index}")
}
