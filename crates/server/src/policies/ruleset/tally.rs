//! What is counted of rules, by what metrics call them. Counts outlive the versions of the rules.

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

/// The most names that are counted for themselves, and the most bytes of names: rules may ask for a
/// name for every value, and values come from strangers.
const MAX_NAMES: usize = 20_000;
const MAX_NAME_BYTES: usize = 512 * 1024;
/// What all others are counted under.
const OTHERS: &str = "(others)";

/// The counts of one name.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: [AtomicU64; RuleEvent::ALL.len()],
    /// Whether a rules file has it, and no client.
    is_of_file: AtomicBool,
}

impl Tally {
    pub(crate) fn add(&self, event: RuleEvent) {
        self.counts[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, event: RuleEvent) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    /// Whether it is the name of a rule in a file, and not made of a client's value.
    pub(crate) fn is_of_file(&self) -> bool {
        self.is_of_file.load(Ordering::Relaxed)
    }

    /// Requests that it had a say in.
    pub(crate) fn requests(&self) -> u64 {
        let events = RuleEvent::ALL.into_iter().filter(|event| !event.is_additional());
        events.map(|event| self.count(event)).sum()
    }
}

/// The counts of one name, with the name.
pub(crate) type Named = (Arc<str>, Arc<Tally>);

/// All counts, by name. Names that are equal in their first [`MAX_METRIC_NAME`] bytes are counted
/// together.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    names: RwLock<Names>,
    others: Arc<Tally>,
    /// Whether names are no longer added: then none is written down, whatever is asked.
    is_full: AtomicBool,
    /// All of them in order, as they were when somebody asked last.
    sorted: Mutex<Arc<[Named]>>,
}

#[derive(Debug, Default)]
struct Names {
    tallies: AHashMap<Arc<str>, Arc<Tally>>,
    bytes: usize,
}

impl Tallies {
    /// Adds the names of rules that come into force, so that their counters exist from the start. Leaves
    /// half of all names to others.
    pub(crate) fn register<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        for name in names.into_iter().take(MAX_NAMES / 2) {
            let name = &name[..name.floor_char_boundary(MAX_METRIC_NAME)];
            self.add(name, []);
            if let Some(tally) = self.names.read().tallies.get(name) {
                tally.is_of_file.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Counts what became of a request by the rule that metrics call `name`.
    pub(crate) fn add(&self, name: &str, events: impl IntoIterator<Item = RuleEvent>) {
        let (name, events) =
            (&name[..name.floor_char_boundary(MAX_METRIC_NAME)], events.into_iter());
        if let Some(tally) = self.names.read().tallies.get(name) {
            return events.for_each(|event| tally.add(event));
        }
        if self.is_full.load(Ordering::Relaxed) {
            return events.for_each(|event| self.others.add(event));
        }
        let mut names = self.names.write();
        let Names { tallies, bytes } = &mut *names;
        if !tallies.contains_key(name) {
            if tallies.len() >= MAX_NAMES || *bytes + name.len() > MAX_NAME_BYTES {
                self.is_full.store(true, Ordering::Relaxed);
                return events.for_each(|event| self.others.add(event));
            }
            *bytes += name.len();
        }
        let tally = tallies.entry(name.into()).or_default();
        events.for_each(|event| tally.add(event));
    }

    /// The `most` of them that `rank` puts first, the highest rank first, and how many there are.
    /// They are ranked in the order of their names.
    pub(crate) fn top(
        &self,
        most: usize,
        mut rank: impl FnMut(&str, &Tally) -> u64,
    ) -> (Vec<Named>, usize) {
        let all = self.all();
        let mut ranked: Vec<_> =
            all.iter().map(|it| (Reverse(rank(&it.0, &it.1)), &it.0, &it.1)).collect();
        if ranked.len() > most {
            ranked.select_nth_unstable_by_key(most, |it| (it.0, it.1));
            ranked.truncate(most);
        }
        ranked.sort_unstable_by_key(|it| (it.0, it.1));
        let top = ranked.into_iter().map(|(_, name, tally)| (Arc::clone(name), Arc::clone(tally)));
        (top.collect(), all.len())
    }

    /// All of them, in the order of their names: shared by all who ask, until there are more.
    pub(crate) fn all(&self) -> Arc<[Named]> {
        let is_full = self.is_full.load(Ordering::Relaxed);
        let mut sorted = self.sorted.lock();
        let names = self.names.read();
        // No name ever goes.
        if sorted.len() < names.tallies.len() + usize::from(is_full) {
            let tallies = &names.tallies;
            let named = tallies.iter().map(|(name, tally)| (Arc::clone(name), Arc::clone(tally)));
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
    fn names_are_bounded() {
        let tallies = Tallies::default();
        for index in 0..MAX_NAMES + 10 {
            tallies.add(&format!("rule{index}"), [RuleEvent::Denied]);
        }
        tallies.add("rule7", [RuleEvent::Allowed, RuleEvent::NearLimit]);
        let (top, count) = tallies.top(2, |_, tally| tally.requests());
        assert_eq!((&*top[0].0, &*top[1].0, count), (OTHERS, "rule7", MAX_NAMES + 1));
        let all = tallies.all();
        assert_eq!(all.len(), MAX_NAMES + 1);
        let count = |name: &str, event| {
            all.iter().find(|(it, _)| **it == *name).map(|(_, tally)| tally.count(event))
        };
        assert_eq!(count(OTHERS, RuleEvent::Denied), Some(10));
        assert_eq!(
            (count("rule7", RuleEvent::Allowed), count("rule7", RuleEvent::Denied)),
            (Some(1), Some(1))
        );
    }

    #[test]
    fn long_names_are_cut_and_bounded_in_all() {
        let tallies = Tallies::default();
        let long = |index: usize| format!("{index}{}", "\u{e9}".repeat(30_000));
        for index in 0..10_000 {
            tallies.add(&long(index), [RuleEvent::Allowed]);
        }
        tallies.add(&format!("{}x", long(7)), [RuleEvent::Allowed]);
        let all = tallies.all();
        let bytes: usize = all.iter().map(|(name, _)| name.len()).sum();
        assert!(all.iter().all(|(name, _)| name.len() <= MAX_METRIC_NAME));
        assert!(
            (MAX_NAME_BYTES - MAX_METRIC_NAME..=MAX_NAME_BYTES + OTHERS.len()).contains(&bytes)
        );
        let sum: u64 = all.iter().map(|(_, tally)| tally.count(RuleEvent::Allowed)).sum();
        assert_eq!(sum, 10_001, "each request is counted");
        let cut = &long(7)[..MAX_METRIC_NAME - 1];
        let counted = all.iter().find(|(name, _)| **name == *cut).unwrap();
        assert_eq!(counted.1.count(RuleEvent::Allowed), 2, "what is equal up to there");
    }

    #[test]
    fn full_tallies_are_counted_without_a_write_lock() {
        let tallies = Tallies::default();
        for index in 0..=MAX_NAMES {
            tallies.add(&index.to_string(), [RuleEvent::Denied]);
        }
        // Somebody reads for as long as it takes: a writer would wait for ever.
        let reading = tallies.names.read();
        tallies.add("one more", [RuleEvent::Denied]);
        drop(reading);
        assert_eq!(tallies.others.count(RuleEvent::Denied), 2);
    }
}
