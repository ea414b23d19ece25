//! Counters of rules, by their names in metrics. They outlive the versions of the rules.

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use ahash::AHashMap;
use parking_lot::{Mutex, RwLock};
use sluicegate_rules::{MAX_METRIC_NAME, RuleEvent};

/// Maximum number of names with counters of their own, and of their bytes in all. A rule can have a name for each value
/// of a request, and clients choose values.
const MAX_NAMES: usize = 20_000;
const MAX_NAME_BYTES: usize = 512 * 1024;
/// The name for all further names.
const OTHERS: &str = "(others)";

/// The counters of one name.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters {
    counts: [AtomicU64; RuleEvent::ALL.len()],
    /// Whether it is the name of a rule in a file.
    is_of_file: AtomicBool,
    /// The rate that is assigned to Envoys under a quota, in thousandths of a request per second.
    assigned: AtomicU64,
}

impl RuleCounters {
    pub(crate) fn add(&self, event: RuleEvent) {
        self.counts[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `count` events, which a client has reported. The counter stops at its maximum.
    pub(crate) fn add_many(&self, event: RuleEvent, count: u64) {
        let add = |before: u64| Some(before.saturating_add(count));
        let relaxed = Ordering::Relaxed;
        self.counts[event as usize].fetch_update(relaxed, relaxed, add).unwrap_or_default();
    }

    /// A share under a quota changes, in thousandths of a request per second.
    pub(crate) fn reassign(&self, before: u64, after: u64) {
        self.assigned.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// The rate that is assigned to Envoys under a quota, in thousandths of a request per second.
    pub(crate) fn assigned(&self) -> u64 {
        self.assigned.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, event: RuleEvent) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    /// Whether it is the name of a rule in a file, rather than one with values of requests.
    pub(crate) fn is_of_file(&self) -> bool {
        self.is_of_file.load(Ordering::Relaxed)
    }

    /// Number of requests that the rule decided.
    pub(crate) fn requests(&self) -> u64 {
        let events = RuleEvent::ALL.into_iter().filter(|event| !event.is_additional());
        events.map(|event| self.count(event)).fold(0, u64::saturating_add)
    }
}

/// A name with its counters.
pub(crate) type NamedCounters = (Arc<str>, Arc<RuleCounters>);

/// Counters by name. Names with the same first [`MAX_METRIC_NAME`] bytes share their counters.
#[derive(Debug, Default)]
pub(crate) struct RuleCounterMap {
    names: RwLock<Names>,
    others: Arc<RuleCounters>,
    /// Whether no further names are added. Then no call needs the write lock.
    is_full: AtomicBool,
    /// All names in order, when they were last read.
    sorted: Mutex<Arc<[NamedCounters]>>,
}

#[derive(Debug, Default)]
struct Names {
    counters: AHashMap<Arc<str>, Arc<RuleCounters>>,
    bytes: usize,
}

impl RuleCounterMap {
    /// Adds the names of new rules, so that their counters exist from the start. At most half of all names are of
    /// files.
    pub(crate) fn register<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        for name in names.into_iter().take(MAX_NAMES / 2) {
            let name = &name[..name.floor_char_boundary(MAX_METRIC_NAME)];
            self.add(name, []);
            if let Some(counters) = self.names.read().counters.get(name) {
                counters.is_of_file.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The counters of a rule in a file.
    pub(crate) fn of_rule(&self, name: &str) -> Arc<RuleCounters> {
        let name = &name[..name.floor_char_boundary(MAX_METRIC_NAME)];
        let names = self.names.read();
        Arc::clone(names.counters.get(name).unwrap_or(&self.others))
    }

    /// Counts events of the rule that is called `name` in metrics.
    pub(crate) fn add(&self, name: &str, events: impl IntoIterator<Item = RuleEvent>) {
        let (name, events) =
            (&name[..name.floor_char_boundary(MAX_METRIC_NAME)], events.into_iter());
        if let Some(counters) = self.names.read().counters.get(name) {
            return events.for_each(|event| counters.add(event));
        }
        if self.is_full.load(Ordering::Relaxed) {
            return events.for_each(|event| self.others.add(event));
        }
        let mut names = self.names.write();
        let Names { counters, bytes } = &mut *names;
        if !counters.contains_key(name) {
            if counters.len() >= MAX_NAMES || *bytes + name.len() > MAX_NAME_BYTES {
                self.is_full.store(true, Ordering::Relaxed);
                return events.for_each(|event| self.others.add(event));
            }
            *bytes += name.len();
        }
        let counters = counters.entry(name.into()).or_default();
        events.for_each(|event| counters.add(event));
    }

    /// The `max` names with the highest ranks, highest first, and the number of all names. `rank` is called in the order
    /// of the names.
    pub(crate) fn top(
        &self,
        max: usize,
        mut rank: impl FnMut(&str, &RuleCounters) -> u64,
    ) -> (Vec<NamedCounters>, usize) {
        let all = self.all();
        let mut ranked: Vec<_> =
            all.iter().map(|it| (Reverse(rank(&it.0, &it.1)), &it.0, &it.1)).collect();
        if ranked.len() > max {
            ranked.select_nth_unstable_by_key(max, |it| (it.0, it.1));
            ranked.truncate(max);
        }
        ranked.sort_unstable_by_key(|it| (it.0, it.1));
        let top =
            ranked.into_iter().map(|(_, name, counters)| (Arc::clone(name), Arc::clone(counters)));
        (top.collect(), all.len())
    }

    /// All names in order. The result is shared until there are more names.
    pub(crate) fn all(&self) -> Arc<[NamedCounters]> {
        let is_full = self.is_full.load(Ordering::Relaxed);
        let mut sorted = self.sorted.lock();
        let names = self.names.read();
        // Names are never removed.
        if sorted.len() < names.counters.len() + usize::from(is_full) {
            let counters = &names.counters;
            let named =
                counters.iter().map(|(name, counters)| (Arc::clone(name), Arc::clone(counters)));
            let others = is_full.then(|| (OTHERS.into(), Arc::clone(&self.others)));
            let mut all: Vec<_> = named.chain(others).collect();
            drop(names);
            all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            *sorted = all.into();
        }
        Arc::clone(&sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_more_names_than_the_maximum_counts_others_together() {
        let counters = RuleCounterMap::default();
        for index in 0..MAX_NAMES + 10 {
            counters.add(&format!("rule{index}"), [RuleEvent::Denied]);
        }
        counters.add("rule7", [RuleEvent::Allowed, RuleEvent::NearLimit]);
        let (top, count) = counters.top(2, |_, counters| counters.requests());
        assert_eq!((&*top[0].0, &*top[1].0, count), (OTHERS, "rule7", MAX_NAMES + 1));
        let all = counters.all();
        assert_eq!(all.len(), MAX_NAMES + 1);
        let count = |name: &str, event| {
            all.iter().find(|(it, _)| **it == *name).map(|(_, counters)| counters.count(event))
        };
        assert_eq!(count(OTHERS, RuleEvent::Denied), Some(10));
        assert_eq!(
            (count("rule7", RuleEvent::Allowed), count("rule7", RuleEvent::Denied)),
            (Some(1), Some(1))
        );
    }

    #[test]
    fn add_long_names_are_truncated_and_bounded() {
        let counters = RuleCounterMap::default();
        let long = |index: usize| format!("{index}{}", "\u{e9}".repeat(30_000));
        for index in 0..10_000 {
            counters.add(&long(index), [RuleEvent::Allowed]);
        }
        counters.add(&format!("{}x", long(7)), [RuleEvent::Allowed]);
        let all = counters.all();
        let bytes: usize = all.iter().map(|(name, _)| name.len()).sum();
        assert!(all.iter().all(|(name, _)| name.len() <= MAX_METRIC_NAME));
        assert!(
            (MAX_NAME_BYTES - MAX_METRIC_NAME..=MAX_NAME_BYTES + OTHERS.len()).contains(&bytes)
        );
        let sum: u64 = all.iter().map(|(_, counters)| counters.count(RuleEvent::Allowed)).sum();
        assert_eq!(sum, 10_001, "each request is counted");
        let cut = &long(7)[..MAX_METRIC_NAME - 1];
        let counted = all.iter().find(|(name, _)| **name == *cut).unwrap();
        assert_eq!(counted.1.count(RuleEvent::Allowed), 2, "names that are equal up to there");
    }

    #[test]
    fn add_full_map_takes_no_write_lock() {
        let counters = RuleCounterMap::default();
        for index in 0..=MAX_NAMES {
            counters.add(&index.to_string(), [RuleEvent::Denied]);
        }
        // With this read lock, a writer would wait forever.
        let reading = counters.names.read();
        counters.add("one more", [RuleEvent::Denied]);
        drop(reading);
        assert_eq!(counters.others.count(RuleEvent::Denied), 2);
    }
}
