//! What a key's state becomes when the policy it was written under has changed: what was used stays
//! used.

use std::borrow::Cow;

use crate::{
    algorithm::{Limit, State},
    entry::Entry,
    policy::Policy,
    time::Timestamp,
};

/// The state of `old`, carried over to `policy` at `now`.
pub(crate) fn carry(old: &Entry, policy: &Policy, now: Timestamp) -> Entry {
    let sources = match_limits(old.policy.limits(), policy.limits(), now);
    let states = policy.limits().iter().zip(sources).map(|(limit, source)| match source {
        Some(index) => {
            let state = Cow::Borrowed(&old.states[index]);
            carry_one(&old.policy.limits()[index], state, limit, now)
        }
        None => State::None,
    });
    Entry { policy: policy.clone(), states: states.collect() }
}

/// As [`carry`], of an entry that is not needed any more: a log is moved and not copied, so that the
/// length of a log is no cost to whoever changes the policy with every request.
pub(crate) fn carry_owned(mut old: Entry, policy: &Policy, now: Timestamp) -> Entry {
    let sources = match_limits(old.policy.limits(), policy.limits(), now);
    let mut states = crate::entry::States::new();
    for (at, (limit, source)) in policy.limits().iter().zip(&sources).enumerate() {
        let Some(index) = *source else {
            states.push(State::None);
            continue;
        };
        let again = sources[at + 1..].contains(source);
        let state = if again {
            Cow::Borrowed(&old.states[index])
        } else {
            Cow::Owned(std::mem::replace(&mut old.states[index], State::None))
        };
        states.push(carry_one(&old.policy.limits()[index], state, limit, now));
    }
    Entry { policy: policy.clone(), states }
}

/// Which old limit each new one continues.
fn match_limits(old: &[Limit], new: &[Limit], now: Timestamp) -> Vec<Option<usize>> {
    let mut sources = vec![None; new.len()];
    let mut taken = vec![false; old.len()];
    let mut pass = |fits: &dyn Fn(&Limit, &Limit) -> bool| {
        for (limit, source) in new.iter().zip(&mut sources) {
            if source.is_none() {
                let free = |&index: &usize| !taken[index] && fits(&old[index], limit);
                *source = (0..old.len()).find(free);
                if let Some(index) = *source {
                    taken[index] = true;
                }
            }
        }
    };
    pass(&|old, new| old.same_rule(new));
    pass(&|old, new| old.same_machine(new) && old.same_period(new, now));
    pass(&Limit::same_machine);

    // Every new log sees what the old logs saw.
    let longest = longest_log(old);
    for (limit, source) in new.iter().zip(&mut sources) {
        if source.is_none() && matches!(limit, Limit::SlidingLog(_)) {
            *source = longest;
        }
    }
    if old.len() == new.len() {
        let mut left = (0..old.len()).filter(|&index| !taken[index]);
        for source in sources.iter_mut().filter(|source| source.is_none()) {
            *source = left.next();
        }
    }
    sources
}

/// The first of the logs with the longest period.
fn longest_log(limits: &[Limit]) -> Option<usize> {
    let periods = limits.iter().enumerate().filter_map(|(index, limit)| match limit {
        Limit::SlidingLog(log) => Some((log.period(), std::cmp::Reverse(index))),
        _ => None,
    });
    periods.max().map(|(_, std::cmp::Reverse(index))| index)
}

fn carry_one(old: &Limit, state: Cow<'_, State>, new: &Limit, now: Timestamp) -> State {
    match (old, &*state, new) {
        (_, State::None, _) => State::None,
        (Limit::Gcra(old), State::Gcra(state), Limit::Gcra(new)) => {
            new.carry(old, Some(state), now).map_or(State::None, State::Gcra)
        }
        (Limit::IntervalBucket(old), State::IntervalBucket(state), Limit::IntervalBucket(new)) => {
            new.carry(old, Some(state), now).map_or(State::None, State::IntervalBucket)
        }
        (Limit::FixedWindow(old), State::FixedWindow(state), Limit::FixedWindow(new)) => {
            new.carry(old, Some(state), now).map_or(State::None, State::FixedWindow)
        }
        (Limit::SlidingLog(old), State::SlidingLog(_), Limit::SlidingLog(new)) => {
            let State::SlidingLog(log) = state.into_owned() else { return State::None };
            new.carry(old, log, now).map_or(State::None, State::SlidingLog)
        }
        (Limit::SlidingCounter(old), State::SlidingCounter(state), Limit::SlidingCounter(new)) => {
            new.carry(old, Some(state), now).map_or(State::None, State::SlidingCounter)
        }
        (old, state, new) => new.with_used(now, old.used(state, now)),
    }
}

impl Limit {
    /// Whether both decide alike: the same machine and parameters, names and defaults aside.
    pub(crate) fn same_rule(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gcra(a), Self::Gcra(b)) => {
                let parameters =
                    |it: &crate::Gcra| (it.limit(), it.period(), it.burst(), it.borrow());
                parameters(a) == parameters(b)
            }
            (a, b) => a == b,
        }
    }

    fn same_machine(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether both have the same period, as a duration. Periods of the calendar are as long as
    /// the window around `now` is.
    fn same_period(&self, other: &Self, now: Timestamp) -> bool {
        match (self, other) {
            (Self::Gcra(a), Self::Gcra(b)) => a.period() == b.period(),
            (Self::IntervalBucket(a), Self::IntervalBucket(b)) => a.period() == b.period(),
            (Self::FixedWindow(a), Self::FixedWindow(b)) => {
                (a.unit().is_some() && a.unit() == b.unit()) || a.period_at(now) == b.period_at(now)
            }
            (Self::SlidingLog(a), Self::SlidingLog(b)) => a.period() == b.period(),
            (Self::SlidingCounter(a), Self::SlidingCounter(b)) => a.period() == b.period(),
            _ => false,
        }
    }
}
