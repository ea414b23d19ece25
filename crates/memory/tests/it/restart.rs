//! A store that is saved and loaded again: a full one keeps every key in as much memory, and in less it is not loaded.

use std::{io::Cursor, time::Duration};

use sluicegate_core::{KeyedOperation, Operation, PreparedPolicy, Request};
use sluicegate_memory::{MemoryStore, NumberedPolicy, SnapshotError, WhenFull};

use super::{at, policy, size, take};

/// The fill of a store when it is saved: a share of its bound in percent; for a flooded one, the number of additional
/// floods of as many keys as filled it.
const FILLS: [(&str, usize, u64); 4] =
    [("50 %", 50, 0), ("96 %", 96, 0), ("100 %", 100, 0), ("flooded", 100, 3)];

fn bound() -> usize {
    usize::try_from(size("SLUICEGATE_RESTART_BYTES", 3 << 20)).unwrap()
}

pub(super) fn reloaded(
    store: &MemoryStore,
    now: u64,
    bound: usize,
    when_full: WhenFull,
) -> MemoryStore {
    let mut bytes = Vec::new();
    store.save(&mut bytes, at(now)).unwrap();
    MemoryStore::load(Cursor::new(bytes), at(now), bound, when_full).unwrap()
}

/// One kind of key: its policy and its requests.
struct Kind {
    name: &'static str,
    /// Policies of keys, in turn; if empty, each key has one of its own.
    texts: &'static [&'static str],
}

const WINDOWS: Kind = Kind { name: "windows", texts: &["fixed-window:1/12h"] };
const LOGS: Kind = Kind { name: "logs", texts: &["sliding-log:1/12h"] };
const MIXTURE: Kind = Kind {
    name: "a mixture",
    texts: &["fixed-window:1/12h", "sliding-log:1/6h", "gcra:1/9h", "gcra:1/1h,gcra:1/1d"],
};
const OWN_POLICIES: Kind = Kind { name: "a policy a key", texts: &[] };
const KINDS: [Kind; 4] = [WINDOWS, LOGS, MIXTURE, OWN_POLICIES];

/// A store, and the policies of a kind of keys in it.
struct Subject {
    store: MemoryStore,
    prepared: Vec<NumberedPolicy>,
}

impl Subject {
    fn new(store: MemoryStore, kind: &Kind) -> Self {
        let prepared = kind.texts.iter().map(|text| store.prepare(&policy(text), at(0))).collect();
        Self { store, prepared }
    }

    fn take(&self, key: u64, now: u64) -> bool {
        let own = || self.store.prepare(&policy(&format!("gcra:1/12h,gcra:{}/1d", key + 1)), at(0));
        let turn = usize::try_from(key).unwrap() % self.prepared.len().max(1);
        let prepared = self.prepared.get(turn).cloned().unwrap_or_else(own);
        take(&self.store, &key.to_le_bytes(), &prepared, now)
    }

    /// Takes from new keys until the store is as full as that: the keys that it holds then.
    fn fill(&self, share: usize, beyond: u64) -> Vec<u64> {
        let (mut key, mut last) = (0, u64::MAX);
        while key < last {
            let usage = self.store.usage();
            if share < 100 && usage.bytes >= usage.max_bytes / 100 * share {
                break;
            }
            if last == u64::MAX && usage.table_full > 0 {
                last = key + key * beyond;
            }
            self.take(key, key % 1000);
            key += 1;
        }
        (0..key).filter(|key| has(&self.store, *key)).collect()
    }

    fn reloaded(&self, kind: &Kind, now: u64, bound: usize, when_full: WhenFull) -> Self {
        Self::new(reloaded(&self.store, now, bound, when_full), kind)
    }
}

pub(super) fn has(store: &MemoryStore, key: u64) -> bool {
    store.with_entry(&key.to_le_bytes(), |_| ()).is_some()
}

#[test]
fn load_windows_as_much_memory_keeps_every_key() {
    load_as_much_memory_keeps_every_key(&WINDOWS);
}

#[test]
fn load_logs_as_much_memory_keeps_every_key() {
    load_as_much_memory_keeps_every_key(&LOGS);
}

#[test]
fn load_mixture_as_much_memory_keeps_every_key() {
    load_as_much_memory_keeps_every_key(&MIXTURE);
}

#[test]
fn load_policy_a_key_as_much_memory_keeps_every_key() {
    load_as_much_memory_keeps_every_key(&OWN_POLICIES);
}

fn load_as_much_memory_keeps_every_key(kind: &Kind) {
    let sizes = [8 << 20, bound()].into_iter().filter(|size| *size <= bound());
    for (bound, (name, share, beyond)) in sizes.flat_map(|size| FILLS.map(|fill| (size, fill))) {
        // The fill makes no difference for these kinds.
        if share < 100 && matches!(kind.name, "logs" | "a policy a key") {
            continue;
        }
        let both = [WhenFull::Deny, WhenFull::Allow];
        // `when_full` only matters if there are keys without space.
        for &when_full in &both[..if beyond > 0 { 2 } else { 1 }] {
            let subject = Subject::new(MemoryStore::bounded(bound, when_full), kind);
            let keys = subject.fill(share, beyond);
            // Twice: a loaded store must save as well as the first one.
            let loaded = subject.reloaded(kind, 2000, bound, when_full);
            let loaded = loaded.reloaded(kind, 3000, bound, when_full);
            let lost = keys.iter().filter(|key| !has(&loaded.store, **key)).count();
            let again = keys.iter().filter(|key| loaded.take(**key, 4000)).count();
            let usage = loaded.store.usage();
            println!(
                "figure: {}, {name}, {when_full:?}: {} keys in {} KiB of {}, loaded twice in {} KiB: \
                 {lost} lost, {again} admitted again",
                kind.name,
                keys.len(),
                subject.store.usage().bytes >> 10,
                bound >> 10,
                usage.bytes >> 10,
            );
            assert_eq!((lost, again), (0, 0));
            assert!(usage.bytes <= bound + bound / 20, "{usage:?}");
        }
    }
}

/// The error names a bound that is enough, and less than a table that grows as usual needs.
#[test]
fn load_less_memory_than_needed_is_an_error_that_names_enough() {
    for kind in &KINDS {
        let bound = bound() / 3 * 4;
        let subject = Subject::new(MemoryStore::bounded(bound, WhenFull::Deny), kind);
        let keys = subject.fill(100, 2);
        let mut bytes = Vec::new();
        subject.store.save(&mut bytes, at(2000)).unwrap();
        let load =
            |max_bytes| MemoryStore::load(Cursor::new(&bytes), at(2000), max_bytes, WhenFull::Deny);
        let error = load(bound / 2).unwrap_err();
        let SnapshotError::TooLarge { needed, max_bytes } = error else { panic!("{error}") };
        assert_eq!(max_bytes, bound / 2);
        assert!(needed <= bound + bound / 20, "{}: {needed} of {bound}", kind.name);
        let loaded = load(needed).unwrap();
        let lost = keys.iter().filter(|key| !has(&loaded, **key)).count();
        println!(
            "figure: {}: {} keys of a full table of {} KiB need {} KiB; {lost} lost",
            kind.name,
            keys.len(),
            bound >> 10,
            needed >> 10
        );
        assert_eq!(lost, 0);
        assert!(loaded.usage().bytes <= needed + needed / 20, "{:?}", loaded.usage());
    }
}

/// A table that was loaded into more memory, and has filled that, is as full as any other.
#[test]
fn restart_of_a_table_that_filled_up_after_a_restart_keeps_every_key() {
    let policy = policy("sliding-log:2/1h");
    let fill = |store: &MemoryStore| {
        let prepared = store.prepare(&policy, at(5));
        let mut key = store.usage().keys as u64;
        while store.usage().table_full < 500 {
            take(store, &key.to_le_bytes(), &prepared, 5);
            key += 1;
        }
    };
    let mut store = MemoryStore::bounded(5 << 20, WhenFull::Deny);
    for bound in [8 << 20, 8 << 20, 12 << 20, 12 << 20] {
        fill(&store);
        store = reloaded(&store, 5, bound, WhenFull::Deny);
    }
}

/// A table that was loaded into the least memory that keeps every key is full. It still gives its first policies numbers.
#[test]
fn restart_of_a_full_table_with_new_policies_keeps_every_key() {
    let mut store = MemoryStore::bounded(3 << 20, WhenFull::Deny);
    let log = store.prepare(&policy("sliding-log:2/1h"), at(5));
    for key in 0..10_000_u64 {
        assert!(take(&store, &key.to_le_bytes(), &log, 5));
    }
    let less = |bound: &usize| Some(bound - 4096);
    for bound in std::iter::successors(Some(store.usage().bytes), less) {
        let mut bytes = Vec::new();
        store.save(&mut bytes, at(5)).unwrap();
        let Ok(loaded) = MemoryStore::load(Cursor::new(bytes), at(5), bound, WhenFull::Deny) else {
            break;
        };
        store = loaded;
    }
    let (usage, mut stored) = (store.usage(), 10_000);
    for (key, limit) in (10_000_u64..).zip(1..=64) {
        let prepared = store.prepare(&policy(&format!("gcra:{limit}/1h")), at(5));
        stored += usize::from(take(&store, &key.to_le_bytes(), &prepared, 5));
    }
    assert!(stored > 10_000 && store.usage().bytes > usage.bytes, "{:?}", store.usage());
    for _ in 0..2 {
        store = reloaded(&store, 5, usage.max_bytes, WhenFull::Deny);
        assert_eq!(store.usage().keys, stored);
        assert!((0..10_000).all(|key| has(&store, key)));
    }
}

/// A request on many keys adds the entries of all of them at once, or none if they do not all fit.
#[test]
fn restart_of_a_table_filled_by_a_request_on_many_keys_keeps_every_key() {
    let filled = MemoryStore::bounded(3 << 20, WhenFull::Deny);
    let log = filled.prepare(&policy("sliding-log:2/1h"), at(5));
    for key in 0..10_000_u64 {
        assert!(take(&filled, &key.to_le_bytes(), &log, 5));
    }
    let bytes = reloaded(&filled, 5, 3 << 20, WhenFull::Deny).usage().bytes;
    let policies: Vec<PreparedPolicy> = (0..256)
        .map(|key| {
            let limits = (1..=8).map(|it| format!("sliding-log:{}/{it}h", 10 * key + it));
            limits.collect::<Vec<_>>().join(",").parse().unwrap()
        })
        .collect();
    let keys: Vec<_> = (0..256).map(|key| format!("many {key}")).collect();
    let takes: Vec<_> = keys
        .iter()
        .zip(&policies)
        .map(|(key, policy)| KeyedOperation {
            key: key.as_bytes(),
            policy,
            operation: Operation::Take(1),
        })
        .collect();
    for (spare, allowed) in [(600, false), (1 << 20, true)] {
        let bound = bytes + spare;
        let mut store = reloaded(&filled, 5, bound, WhenFull::Deny);
        assert!(store.usage().bytes <= bound);
        let taken = store.apply_all(Request::of_rules(&takes).unwrap(), at(5)).unwrap();
        let usage = store.usage();
        store = reloaded(&store, 5, bound, WhenFull::Deny);
        assert_eq!(store.usage().keys, usage.keys);
        assert!((0..10_000).all(|key| has(&store, key)));
        assert_eq!(taken.allowed(), allowed);
        assert!(usage.bytes <= bound + (64 << 10), "{usage:?}");
    }
}

/// Eight logs that continue a long one share its events in memory, and not in a file. A request whose policy has more logs
/// than fit is denied.
#[test]
fn restart_after_a_request_for_more_logs_keeps_every_key() {
    const LATE: u64 = 100_000;
    let logs: Vec<_> = (1..=8).map(|it| format!("sliding-log:{}/1h", 100_000 + it)).collect();
    for (bound, allowed) in [(4 << 20, false), (16 << 20, true)] {
        let mut store = MemoryStore::bounded(bound, WhenFull::Deny);
        let log = store.prepare(&policy("sliding-log:100000/1h"), at(5));
        for event in 0..60_000_u64 {
            assert!(take(&store, b"long", &log, event));
        }
        let other = store.prepare(&policy("sliding-log:2/1h"), at(LATE));
        for key in 0..8000_u64 {
            assert!(take(&store, &key.to_le_bytes(), &other, LATE));
        }
        let more = store.prepare(&policy(&logs.join(",")), at(LATE));
        for operation in [Operation::Take(1), Operation::Refund(1)] {
            let decision = store.apply_numbered(b"long", &more, at(LATE), operation).unwrap();
            assert_eq!(decision.allowed(), allowed || operation == Operation::Refund(1));
        }
        let hold = |policy, operation| {
            store.apply_numbered(b"long", policy, at(LATE), operation).unwrap().allowed()
        };
        let ttl = Some(Duration::from_mins(1));
        let settle = Operation::Settle { id: b"a", used: Some(1) };
        assert!(hold(&log, Operation::Hold { id: b"a", cost: 1, ttl }));
        assert_eq!(hold(&more, settle), allowed);
        // It is decided as before under its own policy.
        assert_eq!(hold(&log, settle), !allowed);
        assert!(take(&store, b"long", &log, LATE));
        store = reloaded(&store, LATE, bound, WhenFull::Deny);
        assert_eq!(store.usage().keys, 8001);
        assert!((0..8000).all(|key| has(&store, key)));
    }
}
