//! Keys chosen by an attacker: they cost no more than others.
//!
//! Times are printed. The tests assert only a ratio of medians with a wide margin, because the machine determines the
//! slowest of many operations.

use std::time::Instant;

use sluicegate_memory::{MemoryStore, NumberedPolicy, WhenFull};

use super::{at, policy, size, take};

/// The burst of each key.
const BURST: u32 = 2;

#[expect(clippy::disallowed_methods, reason = "what an operation costs is measured")]
fn clock() -> Instant {
    Instant::now()
}

/// Nanoseconds that one take took. Whether it was allowed must be as expected.
fn timed(store: &MemoryStore, key: &[u8], prepared: &NumberedPolicy, allowed: bool) -> u64 {
    let start = clock();
    let found = take(store, key, prepared, 0);
    let took = start.elapsed();
    assert_eq!(found, allowed, "{}", key.escape_ascii());
    u64::try_from(took.as_nanos()).unwrap()
}

/// The median, the 9999th of 10 000, and the slowest.
fn spread(mut times: Vec<u64>) -> [u64; 3] {
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 9_999 / 10_000], times[times.len() - 1]]
}

fn store() -> (MemoryStore, NumberedPolicy) {
    let store = MemoryStore::bounded(1 << 30, WhenFull::Deny);
    let prepared = store.prepare(&policy(&format!("gcra:{BURST}/1d")), at(0));
    (store, prepared)
}

/// Uses up every key, in turn, and returns the times and the number of bytes.
fn exhaust(keys: &(impl Iterator<Item = Vec<u8>> + Clone)) -> ([u64; 3], usize) {
    let (store, prepared) = store();
    let mut times = Vec::new();
    for turn in 0..=BURST {
        times.extend(keys.clone().map(|key| timed(&store, &key, &prepared, turn < BURST)));
    }
    assert_eq!(store.len(), times.len() / (BURST as usize + 1), "no two keys are one");
    (spread(times), store.usage().bytes)
}

/// The hash of the Rust compiler (`FxHash`), which many programs use as it has no key.
fn unkeyed(key: &[u8]) -> u64 {
    key.chunks(8).fold(0_u64, |hash, word| {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        (hash.rotate_left(5) ^ word).wrapping_mul(FX)
    })
}
const FX: u64 = 0x517c_c1b7_2722_0a95;

#[test]
fn keys_that_collide_under_an_unkeyed_hash_cost_what_others_cost() {
    let count = size("SLUICEGATE_HOSTILE", 100_000);
    // The second word undoes the first: all have the same 64 bits.
    let colliding = (0..count).map(|key| {
        let second = key.wrapping_mul(FX).rotate_left(5);
        [key.to_le_bytes(), second.to_le_bytes()].concat()
    });
    assert!(colliding.clone().all(|key| unkeyed(&key) == 0));
    let usual = (0..count).map(|key| [key.to_le_bytes(), [7; 8]].concat());
    let ([median, late, slowest], bytes) = exhaust(&colliding);
    let ([usual_median, usual_late, usual_slowest], usual_bytes) = exhaust(&usual);
    println!(
        "figure: {count} keys that collide: median {median} ns, 99.99 % {late} ns, slowest {slowest} ns; \
         others: {usual_median}, {usual_late}, {usual_slowest} ns"
    );
    assert!(median <= usual_median * 4 + 100, "{median} {usual_median}");
    assert!(bytes <= usual_bytes * 2, "{bytes} {usual_bytes}");
}

/// The attacker measures the time of each answer, keeps the keys that took longest, and makes more that are similar,
/// in many generations.
#[test]
fn keys_chosen_by_their_time_stay_fast() {
    let count = size("SLUICEGATE_HOSTILE", 100_000);
    let generations = 20;
    let each = usize::try_from(count / generations).unwrap();
    let (store, prepared) = store();
    let mut keys: Vec<Vec<u8>> = (0..each).map(|key| key.to_le_bytes().to_vec()).collect();
    let mut medians = Vec::new();
    let mut last = [0; 3];
    for generation in 0..generations {
        // First the take of a new key, then denials: the quickest of these is the time of the key itself, without
        // delays of the machine.
        let mut times = Vec::new();
        let mut measured: Vec<_> = keys
            .drain(..)
            .map(|key| {
                let turns = (0..8).map(|turn| timed(&store, &key, &prepared, turn < BURST));
                let turns: Vec<_> = turns.collect();
                times.extend_from_slice(&turns);
                (turns[0] + turns.iter().min().unwrap(), key)
            })
            .collect();
        last = spread(times);
        medians.push(last[0]);
        measured.sort_unstable_by(|one, other| other.cmp(one));
        measured.truncate(each.div_ceil(10));
        let next = (0_u32..).zip(measured.iter().cycle()).take(each);
        keys = next
            .map(|(number, (_, parent))| {
                // The same prefix with another end.
                let start = &parent[..parent.len().min(24)];
                [start, &[u8::try_from(generation).unwrap()], &number.to_le_bytes()].concat()
            })
            .collect();
    }
    let [median, late, slowest] = last;
    println!(
        "figure: {count} keys chosen by timing, {generations} generations: medians {medians:?} ns; \
         in the last 99.99 % {late} ns, slowest {slowest} ns"
    );
    assert_eq!(store.len(), each * usize::try_from(generations).unwrap(), "no two keys are one");
    assert!(median <= medians[0] * 4 + 100, "{medians:?}");
    let usage = store.usage();
    // A table that has been made to gather keys in few places would be large.
    assert!(usage.bytes <= (8 << 20) + usage.keys * 80, "{usage:?}");
}

/// A client that changes the policy of a key with each request, between one log and eight that continue it: the
/// segment of the key is locked no longer for it under a long log than under a short one.
#[test]
fn changes_between_one_log_and_eight_cost_the_same_under_a_long_log() {
    let store = MemoryStore::bounded(1 << 30, WhenFull::Deny);
    let [one, eight] = [1, 8].map(|logs| {
        let text = vec!["sliding-log:1000000/1d"; logs].join(",");
        store.prepare(&policy(&text), at(0))
    });
    let [short, long] = [100, size("SLUICEGATE_LOG", 200_000)].map(|events| {
        let key = events.to_string();
        (0..events).for_each(|_| assert!(take(&store, key.as_bytes(), &one, 0)));
        let changes = (0..100).flat_map(|_| [&eight, &one]);
        spread(changes.map(|prepared| timed(&store, key.as_bytes(), prepared, true)).collect())
    });
    println!(
        "figure: changes between one log and eight: {short:?} ns (median, 99.99 %, slowest) under 100 events, \
         {long:?} under 200000"
    );
    assert!(long[0] < 20 * short[0].max(1_000), "{} ns after {}", long[0], short[0]);
}
