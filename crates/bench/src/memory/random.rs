//! Random keys among many existing keys, nearly all allowed.

use std::{hint::black_box, num::NonZeroU32, ops::ControlFlow, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sluicegate_core::{Clock as _, KeyedOperation, Operation, PreparedPolicy};
use sluicegate_memory::{ClockedStore, MemoryStore};

use super::sizes::Sizes;
use crate::{
    clock::{TscClock, per_call},
    keys::{Random, bytes},
    report::{Bar, Peer, Table, median, time},
};

/// One unit per hour and a burst of a thousand: no key is exhausted, and none recovers during the run.
const POLICY: &str = "gcra:24/1d:burst=1000";
const HOUR: Duration = Duration::from_secs(3600);
const BURST: u32 = 1000;
const BATCH: usize = 32;

pub(super) fn measure(sizes: &Sizes, table: &mut Table) {
    let policy: PreparedPolicy = POLICY.parse().expect("a policy");
    let store = MemoryStore::bounded(4 << 30, Default::default());
    let clocked_store = ClockedStore::new(store, TscClock::new());
    let (store, clock) = (clocked_store.store(), clocked_store.clock());
    let prepared = store.prepare(policy.policy(), clock.now());
    let burst = NonZeroU32::new(BURST).expect("not zero");
    let quota = Quota::with_period(HOUR).expect("not zero").allow_burst(burst);
    let governor: DefaultKeyedRateLimiter<[u8; 16]> = RateLimiter::keyed(quota);

    let take = Operation::Take(1);
    let decide_at = |key: &[u8], now| {
        store.apply_numbered(key, &prepared, now, take).expect("a take is always answered")
    };
    for number in 0..sizes.keys {
        assert!(decide_at(&bytes(number), clock.now()).allowed(), "each key is new");
        assert!(governor.check_key(&bytes(number)).is_ok(), "each key is new");
    }

    let mut random = Random::new(0x5eed);
    let mut draw = || bytes(random.below(sizes.keys));
    let (mut one, mut clocked, mut many, mut peer) = (vec![], vec![], vec![], vec![]);
    let (mut allowed, mut total) = (0_u64, 0_u64);
    for _ in 0..sizes.rounds {
        let now = clock.now();
        one.push(per_call(sizes.random_calls, || {
            allowed += u64::from(black_box(&decide_at(&draw(), now)).allowed());
        }));
        clocked.push(per_call(sizes.random_calls, || {
            let decision = clocked_store.decide(&draw(), &policy, take);
            allowed += u64::from(black_box(&decision).is_ok_and(|it| it.allowed()));
        }));
        peer.push(per_call(sizes.random_calls, || {
            black_box(&governor.check_key(&draw()));
        }));
        let batches = sizes.random_calls / BATCH as u64;
        let batch = per_call(batches, || {
            let keys: [[u8; 16]; BATCH] = std::array::from_fn(|_| draw());
            let takes =
                keys.each_ref().map(|key| KeyedOperation { key, policy: &policy, operation: take });
            clocked_store.apply_each(&takes, |_, decision| {
                allowed += u64::from(black_box(&decision).is_ok_and(|it| it.allowed()));
                ControlFlow::Continue(())
            });
        });
        many.push(batch / BATCH as f64);
        total += 2 * sizes.random_calls + batches * BATCH as u64;
    }
    assert!(allowed * 100 >= total * 99, "all but a few are allowed: {allowed} of {total}");
    assert_eq!(store.usage().table_full, 0, "the table has space for all keys");

    let governor = median(&peer);
    let mut row = |work: &str, figures: &[f64], bar| {
        let ours = median(figures);
        let work = format!("{} keys at random, {work}", sizes.keys);
        let peer = Peer::new("governor, [u8; 16]", time(governor));
        table.compare(&work, time(ours), peer, governor / ours, "x", bar);
    };
    row("one by one", &one, Bar::AtLeast(3.5));
    row("one by one, clock each", &clocked, Bar::AtLeast(3.5));
    row("32 at a time, clock a batch", &many, Bar::AtLeast(8.0));
}
