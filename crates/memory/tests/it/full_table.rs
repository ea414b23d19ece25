//! What a full table answers and stores: no operation makes it grow beyond its bound, and no key passes its own limit.

use std::time::Duration;

use sluicegate_core::{
    Decision, Entry, EntryOperation, KeyedOperation, Operation, Outcome, Policy, PreparedPolicy,
    Request, Retry, Timestamp, apply, apply_all,
};
use sluicegate_memory::{MemoryStore, NumberedPolicy, WhenFull};

use super::{at, policy, take};

const TTL: Option<Duration> = Some(Duration::from_secs(60));

/// A policy of eight limits, whose states take much more memory than one limit.
fn eight(limit: &str) -> Policy {
    policy(&[limit; 8].join(","))
}

/// A table without any space, and its keys under the policy.
fn full(prepared: &Policy, when_full: WhenFull) -> (MemoryStore, Vec<u64>) {
    let store = MemoryStore::bounded(0, when_full);
    let fill = |first: u64, prepared: &Policy| {
        let prepared = store.prepare(prepared, at(0));
        let (mut keys, mut key, until) = (Vec::new(), first, store.usage().table_full + 10_000);
        while store.usage().table_full < until {
            let before = store.usage().table_full;
            take(&store, &key.to_le_bytes(), &prepared, 0);
            if store.usage().table_full == before {
                keys.push(key);
            }
            key += 1;
        }
        keys
    };
    let keys = fill(0, prepared);
    // The space that is too small for more slots.
    fill(1 << 32, &policy("sliding-log:1/1d"));
    (store, keys)
}

/// An operation on the key.
type Step = fn(&MemoryStore, &[u8], &NumberedPolicy);

fn apply_step(store: &MemoryStore, key: &[u8], policy: &NumberedPolicy, operation: Operation) {
    let _ = store.apply_numbered(key, policy, at(0), operation).unwrap();
}

fn keyed_step(store: &MemoryStore, key: &[u8], policy: &NumberedPolicy, operation: Operation) {
    let policy = PreparedPolicy::new(policy.policy());
    let both = [key, b"other"].map(|key| KeyedOperation { key, policy: &policy, operation });
    let _ = store.apply_all(Request::all(&both).unwrap(), at(0)).unwrap();
}

const STEPS: &[(&str, Step)] = &[
    ("take", |store, key, policy| apply_step(store, key, policy, Operation::Take(1))),
    ("denied take", |store, key, policy| apply_step(store, key, policy, Operation::Take(9))),
    ("charge", |store, key, policy| apply_step(store, key, policy, Operation::Charge(1))),
    ("refund", |store, key, policy| apply_step(store, key, policy, Operation::Refund(1))),
    ("peek", |store, key, policy| apply_step(store, key, policy, Operation::Peek(1))),
    ("hold", |store, key, policy| {
        apply_step(store, key, policy, Operation::Hold { id: b"a", cost: 1, ttl: TTL });
    }),
    ("settle", |store, key, policy| {
        apply_step(store, key, policy, Operation::Settle { id: b"z", used: None });
    }),
    ("renew", |store, key, policy| {
        apply_step(store, key, policy, Operation::Renew { id: b"z", ttl: TTL });
    }),
    ("take from several", |store, key, policy| keyed_step(store, key, policy, Operation::Take(1))),
    ("nothing from several", |store, key, policy| {
        keyed_step(store, key, policy, Operation::Take(0))
    }),
    ("hold of several", |store, key, policy| {
        keyed_step(store, key, policy, Operation::Hold { id: b"b", cost: 1, ttl: TTL });
    }),
];

/// A client changes the policy of keys whose state needs no memory of its own, or little.
#[test]
fn change_of_every_kind_in_a_full_table_stays_within_bound() {
    for when_full in [WhenFull::Deny, WhenFull::Allow] {
        for kept in ["gcra:9/1d", "fixed-window:9/1d", "gcra:9/1d,gcra:8/1d", "sliding-log:9/1d"] {
            for larger in ["gcra:9/1h", "sliding-log:9/1h", "fixed-window:9/day:tz=Europe/Paris"] {
                let (store, keys) = full(&policy(kept), when_full);
                let larger = store.prepare(&eight(larger), at(0));
                for (name, step) in STEPS {
                    for key in keys.iter().take(500) {
                        step(&store, &key.to_le_bytes(), &larger);
                    }
                    let usage = store.usage();
                    let beyond = usage.bytes.saturating_sub(usage.max_bytes);
                    assert!(beyond < 64 << 10, "{name} of {kept}, {when_full:?}: {usage:?}");
                }
            }
        }
    }
}

/// A key without units left is denied by its own limit, with the time after which it passes.
#[test]
fn take_exhausted_key_of_a_full_table_is_denied_by_its_limit() {
    let kept = policy("gcra:1/1d");
    for when_full in [WhenFull::Deny, WhenFull::Allow] {
        let (store, keys) = full(&kept, when_full);
        let keys = [keys[0], keys[1]].map(u64::to_le_bytes);
        for other in ["gcra:1/1d,gcra:9/1d", "gcra:1/1d,sliding-log:9/1d"] {
            let context = format!("{other}, {when_full:?}");
            let other = PreparedPolicy::new(&policy(other));
            let expected = Outcome::Deny { retry: Retry::After(Duration::from_secs(86_400)) };
            let single = store.apply(&keys[0], other.policy(), at(0), Operation::Take(1));
            assert_eq!(single.unwrap().outcome, expected, "{context}");
            let takes = keys.each_ref().map(|key| KeyedOperation {
                key,
                policy: &other,
                operation: Operation::Take(1),
            });
            let several = store.apply_all(Request::all(&takes).unwrap(), at(0)).unwrap();
            assert_eq!(several.outcome, expected, "{context}");
        }
    }
}

/// A take that needs no more memory is stored, however full the table.
#[test]
fn take_from_keys_that_a_full_table_has_is_counted() {
    for when_full in [WhenFull::Deny, WhenFull::Allow] {
        for text in [
            "gcra:4/1d",
            "gcra:9/1d,fixed-window:4/1d",
            "gcra:9/1d,fixed-window:4/1d,token-bucket:7/1d",
            "gcra:9/1d,gcra:4/2d,fixed-window:8/1d,token-bucket:7/1d,sliding-counter:5/1d",
            "sliding-log:4/1d",
        ] {
            let policy = policy(text);
            let (store, keys) = full(&policy, when_full);
            let prepared = store.prepare(&policy, at(0));
            for key in keys.iter().take(500) {
                let allowed = (0..9).filter(|_| take(&store, &key.to_le_bytes(), &prepared, 0));
                assert_eq!(allowed.count(), 3, "{text}, {when_full:?}");
            }
        }
    }
}

const POLICIES: [&str; 6] = [
    "gcra:9/1h",
    "fixed-window:9/1h",
    "gcra:9/1h,fixed-window:9/1h,token-bucket:7/1h",
    "sliding-log:9/1h:count=all",
    "sliding-log:9/1h,sliding-log:8/1h,sliding-log:7/1h,gcra:9/1h",
    "gcra:3/1m,gcra:9/1h,gcra:5/1h,gcra:6/1h,gcra:7/1h,gcra:8/1h,gcra:10/1h,gcra:11/1h",
];

const IDS: [&[u8]; 3] = [b"a", b"b", b"an id of more bytes than others have"];

/// Numbers below those that are given.
fn random() -> impl FnMut(u64) -> u64 {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    move |below| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 32) % below
    }
}

fn random_change(random: &mut impl FnMut(u64) -> u64) -> Operation<'static> {
    let cost = u32::try_from(random(4)).unwrap();
    let id = IDS[usize::try_from(random(3)).unwrap()];
    match random(10) {
        0..3 => Operation::Take(cost),
        3 => Operation::Charge(cost),
        4 => Operation::Refund(cost),
        5 => Operation::Reset,
        6 | 7 => Operation::Hold { id, cost, ttl: TTL },
        8 => Operation::Settle { id, used: Some(cost) },
        _ => Operation::Renew { id, ttl: TTL },
    }
}

/// Decisions in a table that is now and then full: each is that of the core, and is stored; or it is not stored, and then an
/// allowed request is denied (or allowed, as the store is set).
#[test]
fn decision_in_a_nearly_full_table_is_that_of_the_core_or_stores_nothing() {
    for when_full in [WhenFull::Deny, WhenFull::Allow] {
        let (store, mut fillers) = full(&policy("sliding-log:9/1d"), when_full);
        let policies = POLICIES.map(|text| store.prepare(&policy(text), at(0)));
        let mut random = random();
        let mut models: Vec<Option<Entry>> = vec![None; 64];
        let (mut time, mut not_stored) = (0, 0);
        for round in 0..60_000 {
            time += random(400_000);
            // Space for a few.
            if round % 64 == 0
                && let Some(filler) = fillers.pop()
            {
                store.reset(&filler.to_le_bytes(), at(time));
            }
            let index = usize::try_from(random(64)).unwrap();
            let key = format!("key {index}");
            let prepared = &policies[usize::try_from(random(6)).unwrap()];
            let change = random_change(&mut random);
            let before = models[index].clone();
            let mut after = before.clone();
            let found = store.apply_numbered(key.as_bytes(), prepared, at(time), change).unwrap();
            let expected = apply(prepared.policy(), &mut after, at(time), change).unwrap();
            let live = |entry: &Option<Entry>| live(entry.as_ref(), at(time));
            let kept = live(&store.with_entry(key.as_bytes(), Entry::clone));
            let context =
                format!("round {round}: {change:?} under {}, {when_full:?}", prepared.policy());
            if kept == live(&after) {
                assert!(found == expected || live(&after) == live(&before), "{context}");
                models[index] = after;
            } else {
                assert_eq!(kept, live(&before), "{context}");
                not_stored += 1;
            }
            if found != expected {
                let rejected = Outcome::Deny { retry: Retry::After(Duration::from_secs(1)) };
                assert!(expected.allowed() && when_full == WhenFull::Deny, "{context}");
                assert_eq!(
                    found,
                    Decision { outcome: rejected, remaining: 0, ..expected },
                    "{context}"
                );
            }
        }
        let usage = store.usage();
        println!("figure: {when_full:?}: {not_stored} of 60000 changes were not stored; {usage:?}");
        assert!((1_000..40_000).contains(&not_stored), "{not_stored}");
        assert!(usage.bytes <= usage.max_bytes + (64 << 10), "{usage:?}");
    }
}

/// As above, for decisions on several keys. If there is no space for one of them, none is stored, or all others.
#[test]
fn decision_on_several_keys_in_a_nearly_full_table_is_that_of_the_core_or_stores_nothing() {
    for when_full in [WhenFull::Deny, WhenFull::Allow] {
        let (store, mut fillers) = full(&policy("sliding-log:9/1d"), when_full);
        let policies = POLICIES.map(|text| PreparedPolicy::new(&policy(text)));
        let mut random = random();
        let mut models: Vec<Option<Entry>> = vec![None; 64];
        let (mut time, mut not_stored, mut in_part) = (0, 0, 0);
        for round in 0..40_000 {
            time += random(400_000);
            if round % 64 == 0
                && let Some(filler) = fillers.pop()
            {
                store.reset(&filler.to_le_bytes(), at(time));
            }
            let first = usize::try_from(random(62)).unwrap();
            let names: Vec<_> = (first..=first + usize::try_from(random(3)).unwrap()).collect();
            let keys: Vec<_> = names.iter().map(|name| format!("key {name}")).collect();
            let id = IDS[usize::try_from(random(3)).unwrap()];
            let operation = match random(2) {
                0 => Operation::Take(0),
                _ => Operation::Hold { id, cost: 0, ttl: TTL },
            };
            let operations: Vec<_> = keys
                .iter()
                .map(|key| KeyedOperation {
                    key: key.as_bytes(),
                    policy: &policies[usize::try_from(random(6)).unwrap()],
                    operation: operation.with_cost(u32::try_from(random(3)).unwrap()),
                })
                .collect();
            let before: Vec<_> = names.iter().map(|&name| models[name].clone()).collect();
            let mut after = before.clone();
            let parts = operations.iter().zip(&mut after);
            let mut parts: Vec<_> = parts
                .map(|(it, entry)| EntryOperation {
                    policy: it.policy.policy(),
                    entry,
                    operation: it.operation,
                })
                .collect();
            let expected = apply_all(&mut parts, at(time)).unwrap();
            let found = store.apply_all(Request::all(&operations).unwrap(), at(time)).unwrap();
            let live = |entry: &Option<Entry>| live(entry.as_ref(), at(time));
            let mut stored = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let kept = live(&store.with_entry(key.as_bytes(), Entry::clone));
                if live(&before[at]) == live(&after[at]) {
                    assert_eq!(kept, live(&before[at]), "round {round}");
                } else {
                    stored.push(kept == live(&after[at]));
                    assert!(kept == live(&after[at]) || kept == live(&before[at]), "round {round}");
                }
                models[names[at]] = kept;
            }
            let (all, none) = (!stored.contains(&false), !stored.contains(&true));
            not_stored += u32::from(!all);
            in_part += u32::from(!all && !none);
            let context = format!("round {round}: {operations:?}, {when_full:?}");
            if found == expected {
                let may_be_lost = when_full == WhenFull::Allow || !expected.allowed();
                assert!(all || may_be_lost, "{context}");
            } else {
                assert!(none && expected.allowed() && when_full == WhenFull::Deny, "{context}");
                let retry = Some(Retry::After(Duration::from_secs(1)));
                assert!(found.each().iter().any(|it| it.retry() == retry), "{context}");
                assert!(!found.allowed(), "{context}");
            }
        }
        let usage = store.usage();
        println!(
            "figure: {when_full:?}: {not_stored} of 40000 were not stored, {in_part} in part; {usage:?}"
        );
        assert!((1_000..30_000).contains(&not_stored), "{not_stored}");
        assert!(usage.bytes <= usage.max_bytes + (64 << 10), "{usage:?}");
    }
}

/// What an entry has in use. The store may have charged the holds that have expired, which the core does with a change.
fn live(entry: Option<&Entry>, now: Timestamp) -> Option<Entry> {
    entry.filter(|it| !it.is_over(now)).and_then(|it| it.after_expiries(now))
}
