//! Rules: policies that have a number, so that a slot can say which one it was written under.
//!
//! There are 32 766 numbers. One is given again when nobody holds its rule any more and every state
//! written under it has recovered, so a client that invents a policy a request costs no memory: a
//! policy for which no number is free does without, and its states are kept beside the table.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use sluicegate_core::{Policy, Timestamp};

use crate::{budget::Budget, form::Form, slot::MAX_RULE};

/// Microseconds for which a write of a slot need not be noted again.
const SLACK: u64 = 1_000_000;
/// Bytes that a rule with a number takes, its text and its places in both tables included.
const BYTES: usize = 304;
/// Rules that have a number even where the bound is reached.
const FEW: usize = 64;
/// Numbers looked at for one that may be given again.
const LOOKED_AT: usize = 16;

/// A policy as a [`MemoryStore`](crate::MemoryStore) knows it: asked with one, the store need not
/// look the policy up. Cheap to clone; made by [`MemoryStore::rule`](crate::MemoryStore::rule).
#[derive(Clone, Debug)]
pub struct Rule(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    policy: Policy,
    /// The number, and how states are kept in slots, where it has a number.
    numbered: Option<(u64, Form)>,
    /// The longest that a state in a slot takes to recover, in microseconds.
    drain: u64,
    /// When the next write of a slot under it is to be noted: `SLACK` after the last one that was.
    noted: AtomicU64,
}

impl Rule {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The number and how states are kept in slots, where it has a number.
    #[inline]
    pub(crate) fn numbered(&self) -> Option<(u64, &Form)> {
        self.0.numbered.as_ref().map(|(number, form)| (*number, form))
    }

    /// Notes that a slot is written under it.
    #[inline]
    pub(crate) fn note_written(&self, now: Timestamp) {
        // The line is shared by all threads, so it is written once a second only.
        if self.0.noted.load(Ordering::Relaxed) < now.as_micros() {
            self.0.noted.store(now.as_micros() + SLACK, Ordering::Relaxed);
        }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        let over = self.0.noted.load(Ordering::Relaxed) + self.0.drain;
        Arc::strong_count(&self.0) == 1 && over < now.as_micros()
    }
}

/// All rules that have a number.
#[derive(Debug, Default)]
pub(crate) struct Rules(RwLock<Numbered>);

#[derive(Debug, Default)]
struct Numbered {
    /// By number, from 1.
    rules: Vec<Rule>,
    numbers: HashMap<String, usize>,
    /// Where to look next for a number that may be given again.
    hand: usize,
}

impl Rules {
    /// The rule of a policy, with a number where one is free. Numbers are not given again where
    /// `now` says nothing about other keys.
    pub(crate) fn rule(&self, policy: &Policy, now: Option<Timestamp>, budget: &Budget) -> Rule {
        let Some(form) = Form::of(policy) else { return Rule::new(policy, None) };
        let text = policy.to_string();
        if let Some(rule) = self.0.read().find(&text) {
            return rule;
        }
        let mut numbered = self.0.write();
        if let Some(rule) = numbered.find(&text) {
            return rule;
        }
        let Some(index) = numbered.free(now, budget) else { return Rule::new(policy, None) };
        let rule = Rule::new(policy, Some((index as u64 + 1, form)));
        if let Some(now) = now {
            rule.note_written(now);
        }
        if index < numbered.rules.len() {
            let old = std::mem::replace(&mut numbered.rules[index], rule.clone());
            numbered.numbers.remove(&old.policy().to_string());
        } else {
            numbered.rules.push(rule.clone());
            budget.resize(0, BYTES);
        }
        numbered.numbers.insert(text, index);
        rule
    }

    /// The rule of a policy, with a number only where it has one.
    pub(crate) fn known(&self, policy: &Policy) -> Rule {
        let numbered = self.0.read().find(&policy.to_string());
        numbered.unwrap_or_else(|| Rule::new(policy, None))
    }

    /// The rule that has a number.
    pub(crate) fn numbered(&self, number: u64) -> Option<Rule> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.0.read().rules.get(index).cloned()
    }
}

impl Numbered {
    fn find(&self, text: &str) -> Option<Rule> {
        self.numbers.get(text).and_then(|&index| self.rules.get(index)).cloned()
    }

    /// The index for a new rule.
    fn free(&mut self, now: Option<Timestamp>, budget: &Budget) -> Option<usize> {
        let length = self.rules.len();
        // The first few are of use even to a store that is full.
        if (length as u64) < MAX_RULE && (length < FEW || budget.has_room(BYTES)) {
            return Some(length);
        }
        let now = now?;
        for _ in 0..LOOKED_AT {
            self.hand = (self.hand + 1) % length;
            if self.rules[self.hand].is_over(now) {
                return Some(self.hand);
            }
        }
        None
    }
}

impl Rule {
    fn new(policy: &Policy, numbered: Option<(u64, Form)>) -> Self {
        let drain = numbered.as_ref().map_or(0, |(_, form)| form.drain());
        let noted = AtomicU64::new(0);
        Self(Arc::new(Inner { policy: policy.clone(), numbered, drain, noted }))
    }
}
