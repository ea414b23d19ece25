//! One hot key of sixteen bytes, used by one or two threads. Clocks are read for each call.

use std::{hint::black_box, num::NonZeroU32, sync::Barrier, thread, time::Duration};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sluicegate_core::{Clock, Decision, Operation, PreparedPolicy};
use sluicegate_memory::{ClockedStore, MemoryStore, SystemClock};

use super::sizes::Sizes;
use crate::{
    clock::{TscClock, per_call},
    pin,
    report::{Bar, Peer, Table, median, time},
};

const KEY: &str = "a key of 16 byte";
/// One unit per millisecond, with a burst that no run exhausts.
const ALLOWED: Limit = Limit {
    policy: "gcra:1000/1s:burst=100000000",
    interval: Duration::from_millis(1),
    burst: 100_000_000,
};
/// One unit per day.
const DENIED: Limit =
    Limit { policy: "gcra:1/1d:burst=1", interval: Duration::from_secs(86_400), burst: 1 };

/// A limit for us, and the same for governor.
#[derive(Clone, Copy)]
struct Limit {
    policy: &'static str,
    interval: Duration,
    burst: u32,
}

pub(super) fn measure(sizes: &Sizes, table: &mut Table) {
    for (what, limit, threads, bar) in [
        ("allowed, 1 thread", ALLOWED, 1, Bar::AtLeast(1.7)),
        ("denied, 1 thread", DENIED, 1, Bar::AtLeast(1.7)),
        ("allowed, 2 threads", ALLOWED, 2, Bar::None),
        ("denied, 2 threads", DENIED, 2, Bar::AtLeast(4.0)),
    ] {
        let [tsc, system, passed, made, kept] = compare(sizes, limit, threads);
        let work = format!("hot key, {what}");
        let mut row = |clock: &str, ours: f64, peer: &str, theirs: f64, bar| {
            let work = format!("{work}, {clock}");
            table.compare(
                &work,
                time(ours),
                Peer::new(peer, time(theirs)),
                theirs / ours,
                "x",
                bar,
            );
        };
        row("quanta", tsc, "governor, String", made, bar);
        row("SystemClock", system, "governor, String", made, Bar::None);
        row("quanta", tsc, "governor, String kept", kept, Bar::None);
        row("time as an argument", passed, "governor, String", made, Bar::None);
    }
}

/// One take by a store that reads its clock, as governor does.
#[inline(always)]
fn decide(store: &ClockedStore<impl Clock>, policy: &PreparedPolicy) -> Decision {
    let decision = store.decide(black_box(KEY).as_bytes(), policy, Operation::Take(1));
    decision.expect("a take is always answered")
}

/// Nanoseconds per call and thread: ours with either clock, and with the time of `quanta` as an argument; governor with
/// a new and a reused `String`.
fn compare(sizes: &Sizes, limit: Limit, threads: usize) -> [f64; 5] {
    let Limit { policy, interval, burst } = limit;
    let tsc = ClockedStore::new(MemoryStore::new(), TscClock::new());
    let system = ClockedStore::new(MemoryStore::new(), SystemClock::new());
    // A policy has the data of one store attached.
    let [tsc_policy, system_policy]: [PreparedPolicy; 2] =
        [(); 2].map(|()| policy.parse().expect("a policy"));
    let prepared = tsc.store().prepare(tsc_policy.policy(), tsc.clock().now());
    let decide_at = |now| {
        let key = black_box(KEY).as_bytes();
        let decision = tsc.store().apply_numbered(key, &prepared, now, Operation::Take(1));
        decision.expect("a take is always answered")
    };

    let burst = NonZeroU32::new(burst).expect("not zero");
    let quota = Quota::with_period(interval).expect("not zero").allow_burst(burst);
    let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota);
    let kept = KEY.to_owned();

    // Spends the unit of a limit of one.
    let _ = (decide(&tsc, &tsc_policy), decide(&system, &system_policy));
    let _ = governor.check_key(&kept);
    let mut rounds: [Vec<f64>; 5] = Default::default();
    for _ in 0..sizes.rounds {
        let calls = sizes.hot_calls;
        rounds[0].push(on_threads(threads, calls, || {
            // By reference, so that the whole decision is computed but not copied again.
            black_box(&decide(&tsc, &tsc_policy));
        }));
        rounds[1].push(on_threads(threads, calls, || {
            black_box(&decide(&system, &system_policy));
        }));
        rounds[2].push(on_threads(threads, calls, || {
            black_box(&decide_at(tsc.clock().now()));
        }));
        rounds[3].push(on_threads(threads, calls, || {
            let key = black_box(KEY).to_owned();
            black_box(&governor.check_key(&key));
        }));
        rounds[4].push(on_threads(threads, calls, || {
            black_box(&governor.check_key(black_box(&kept)));
        }));
    }
    let allowed = decide(&tsc, &tsc_policy).allowed();
    assert_eq!(allowed, governor.check_key(&kept).is_ok(), "both decide equally");
    assert_eq!(allowed, burst.get() > 1, "the outcome matches the row");
    rounds.map(|figures| median(&figures))
}

/// Mean nanoseconds of a call when `threads` threads make `calls` calls each at the same time, each on its own core.
fn on_threads(threads: usize, calls: u64, call: impl Fn() + Sync) -> f64 {
    let cores = pin::cores().unwrap_or_default();
    let start = Barrier::new(threads);
    let run = |index: usize| {
        // The measurement is valid without pinning, too.
        let _ = cores.get(index).map(|&core| pin::pin(&[core]));
        start.wait();
        per_call(calls, &call)
    };
    let run = &run;
    let times: Vec<f64> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|index| scope.spawn(move || run(index))).collect();
        running.into_iter().map(|it| it.join().expect("no thread panics")).collect()
    });
    times.iter().sum::<f64>() / threads as f64
}
