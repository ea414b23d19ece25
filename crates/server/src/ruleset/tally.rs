//! What is counted of rules, by what metrics call them. Counts outlive the versions of the rules.

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ahash::AHashMap;
use parking_lot::RwLock;

/// The most names that are counted for themselves: rules may ask for a name for every value.
const MOST: usize = 20_000;
/// What all others are counted under.
const OTHERS: &str = "(others)";

/// What became of a request, by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    /// It was allowed, and less than a fifth of the limit is left.
    Near,
    Denied,
    /// It would have been denied, by a rule that only counts.
    Shadow,
    /// It was let through without a limit.
    Unlimited,
    /// It was denied without a limit.
    Blocked,
    /// The store was away.
    Fallback,
}

impl Event {
    pub(crate) const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Near,
        Self::Denied,
        Self::Shadow,
        Self::Unlimited,
        Self::Blocked,
        Self::Fallback,
    ];

    /// Whether it is counted besides another, and is no request of its own.
    const fn is_beside(self) -> bool {
        matches!(self, Self::Near | Self::Fallback)
    }

    /// The word for it in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Near => "near_limit",
            Self::Denied => "denied",
            Self::Shadow => "shadow_denied",
            Self::Unlimited => "unlimited",
            Self::Blocked => "blocked",
            Self::Fallback => "fallback",
        }
    }
}

/// The counts of one name.
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; Event::ALL.len()]);

impl Tally {
    pub(crate) fn add(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }

    /// Requests that it had a say in.
    pub(crate) fn requests(&self) -> u64 {
        let events = Event::ALL.into_iter().filter(|event| !event.is_beside());
        events.map(|event| self.count(event)).sum()
    }
}

/// The counts of one name, with the name.
pub(crate) type Named = (Box<str>, Arc<Tally>);

/// All counts, by name.
#[derive(Debug, Default)]
pub(crate) struct Tallies(RwLock<AHashMap<Box<str>, Arc<Tally>>>);

impl Tallies {
    /// Counts what became of a request by the rule that metrics call `name`.
    pub(crate) fn add(&self, name: &str, events: impl IntoIterator<Item = Event>) {
        let events = events.into_iter();
        if let Some(tally) = self.0.read().get(name) {
            return events.for_each(|event| tally.add(event));
        }
        let mut all = self.0.write();
        let name = if all.len() < MOST { name } else { OTHERS };
        let tally = all.entry(name.into()).or_default();
        events.for_each(|event| tally.add(event));
    }

    /// The `most` of them that `rank` puts first, the highest rank first, and how many there are.
    pub(crate) fn top(
        &self,
        most: usize,
        mut rank: impl FnMut(&str, &Tally) -> u64,
    ) -> (Vec<Named>, usize) {
        let all = self.0.read();
        let mut ranked: Vec<_> =
            all.iter().map(|it| (Reverse(rank(it.0, it.1)), it.0, it.1)).collect();
        if ranked.len() > most {
            ranked.select_nth_unstable_by_key(most, |it| (it.0, it.1));
            ranked.truncate(most);
        }
        ranked.sort_unstable_by_key(|it| (it.0, it.1));
        let top = ranked.into_iter().map(|(_, name, tally)| (name.clone(), Arc::clone(tally)));
        (top.collect(), all.len())
    }

    /// All of them, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Named> {
        let all = self.0.read();
        let mut all: Vec<_> =
            all.iter().map(|(name, tally)| (name.clone(), Arc::clone(tally))).collect();
        all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        let tallies = Tallies::default();
        for index in 0..MOST + 10 {
            tallies.add(&format!("rule{index}"), [Event::Denied]);
        }
        tallies.add("rule7", [Event::Allowed, Event::Near]);
        let (top, count) = tallies.top(2, |_, tally| tally.requests());
        assert_eq!((&*top[0].0, &*top[1].0, count), (OTHERS, "rule7", MOST + 1));
        let all = tallies.all();
        assert_eq!(all.len(), MOST + 1);
        let count = |name: &str, event| {
            all.iter().find(|(it, _)| **it == *name).map(|(_, tally)| tally.count(event))
        };
        assert_eq!(count(OTHERS, Event::Denied), Some(10));
        assert_eq!(
            (count("rule7", Event::Allowed), count("rule7", Event::Denied)),
            (Some(1), Some(1))
        );
    }
}
