//! While the server is unavailable: stopped, killed, full (RELIABILITY 15, 19, 21).

use std::time::Duration;

use sluicegate_core::{
    Clock, OnError, Operation, PreparedPolicy, Request, Share, Source, Store, StoreError,
};
use sluicegate_memory::SystemClock;
use sluicegate_redis::{Options, RedisStore};

use sluicegate_testing::{Engine, Server, now, size};

use crate::servers::{eventually_true, store_of};

/// RELIABILITY 19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_stopped_server_delays_no_request() {
    let server = Server::start(Engine::Redis70);
    let deadline = Options::default().deadline;
    let span = Duration::from_millis(size("SLUICEGATE_STOPPED_MS", 700));
    // A machine that runs other tests as well is late itself; the full size has it alone.
    let slack = Duration::from_millis(size("SLUICEGATE_SLACK_MS", 150));
    let policy = |on_error| "gcra:1000000/1h".parse::<PreparedPolicy>().unwrap().on_error(on_error);
    for on_error in [OnError::Deny, OnError::Allow, OnError::Local(Share::of(1, 2).unwrap())] {
        server.query::<()>("FLUSHALL");
        let policy = policy(on_error);
        let store = RedisStore::connect(&server.url()).await.unwrap();
        eventually_true("it answers", async || {
            store.take(b"j", &policy, 0).await.unwrap().source == Source::Store
        })
        .await;
        server.signal("-STOP");
        let start = now();
        let tasks = (0..8).map(|_| {
            let (store, policy) = (store.clone(), policy.clone());
            tokio::spawn(async move {
                let (mut times, mut decided) = (Vec::new(), 0_u64);
                while start.elapsed() < span {
                    let began = now();
                    let answer = store.take(b"k", &policy, 1).await.unwrap();
                    times.push(began.elapsed());
                    assert_eq!(answer.source, Source::Fallback);
                    assert_eq!(answer.allowed(), !matches!(on_error, OnError::Deny));
                    decided += 1;
                    crate::servers::pass(Duration::from_micros(200)).await;
                }
                (times, decided)
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let (mut times, mut decided) = (Vec::new(), 0);
        for task in tasks {
            let (its, count) = task.await.unwrap();
            times.extend(its);
            decided += count;
        }
        let timeouts = store.counters().timeouts;
        let opened = store.counters().breaker_opened;
        server.signal("-CONT");
        let back = eventually_true("it answers again", async || {
            store.take(b"j", &policy, 0).await.unwrap().source == Source::Store
        })
        .await;
        // Requests that were sent without waiting are applied late, and then no more.
        let peek = store.apply(Request::one(b"k", &policy, Operation::Peek(0))).await.unwrap();
        let late = 1_000_000 - peek.remaining;
        times.sort_unstable();
        let tail = times[times.len() * 999 / 1000];
        println!(
            "figure: stopped for {} ms under {on_error:?}: {decided} answers, p99.9 {:.1} ms, {timeouts} \
             timeouts before the circuit breaker opened, {late} takes done late; answers {} ms after it goes on",
            span.as_millis(),
            tail.as_secs_f64() * 1e3,
            back.as_millis(),
        );
        assert!(tail <= deadline + slack, "{tail:?}");
        assert!(opened == 1 && timeouts <= 20, "opened {opened} times, {timeouts} timeouts");
        assert!(late <= 20, "{late} done late");
        assert!(back <= Duration::from_secs(1) + slack, "{back:?}");
    }
}

/// `local` admits its share, less the usage in the last answers.
#[tokio::test]
async fn local_fallback_starts_with_the_last_known_state() {
    let mut server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let share = OnError::Local(Share::of(1, 2).unwrap());
    let policy = "fixed-window:100/1h".parse::<PreparedPolicy>().unwrap().on_error(share);
    assert_eq!(store.take(b"warm", &policy, 60).await.unwrap().source, Source::Store);
    server.kill();
    let mut admitted = [0, 0];
    for _ in 0..100 {
        for (key, admitted) in [b"warm", b"cold"].into_iter().zip(&mut admitted) {
            let answer = store.take(key, &policy, 1).await.unwrap();
            assert_eq!(answer.source, Source::Fallback);
            *admitted += u32::from(answer.allowed());
        }
    }
    // Half of 100, of which half of 60 is used.
    println!(
        "figure: a half here admits {admitted:?} of a key with 60 of 100 used, and of a new one"
    );
    assert_eq!(admitted, [20, 50]);
    // Operations that only change a state have no fallback.
    for operation in [Operation::Charge(1), Operation::Refund(1), Operation::Reset] {
        assert!(matches!(
            store.apply(Request::one(b"warm", &policy, operation)).await.unwrap_err(),
            StoreError::Unavailable(_)
        ));
    }
    assert_eq!(store.counters().fallback_local, 200);
}

/// RELIABILITY 15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_killed_server_costs_at_most_a_burst() {
    let kills = size("SLUICEGATE_REDIS_KILLS", 2);
    let arguments = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let mut server = Server::with(Engine::Redis70, &arguments);
    let (rate, burst) = (500, 100);
    let policy: PreparedPolicy = format!("gcra:{rate}/1s:burst={burst}").parse().unwrap();
    let mut options = Options::default();
    options.deadline = Duration::from_millis(100);
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    let clock = SystemClock::new();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let begin = clock.now();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (store, policy, stop) = (store.clone(), policy.clone(), stop.clone());
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = store.take(b"k", &policy, 1).await.unwrap();
                    admitted += u64::from(answer.allowed() && answer.source == Source::Store);
                    crate::servers::pass(Duration::from_micros(300)).await;
                }
                admitted
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for _ in 0..kills {
        let before = store.counters().store;
        eventually_true("it decides", async || store.counters().store > before + 200).await;
        server.kill();
        tokio::task::block_in_place(|| server.restart());
        let again = store.counters().store;
        slowest = slowest.max(
            eventually_true("it decides again", async || store.counters().store > again).await,
        );
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    let elapsed = clock.now().as_micros() - begin.as_micros();
    let bound = burst + rate * elapsed / 1_000_000 + 1 + kills * burst;
    println!(
        "figure: {kills} kills with AOF everysec: {admitted} admitted in {} ms (bound {bound}); decides \
         again {} ms after it answers",
        elapsed / 1000,
        slowest.as_millis()
    );
    assert!(admitted <= bound);
    assert!(slowest <= Duration::from_secs(1), "{slowest:?}");
}

/// RELIABILITY 21; the warning of the other half is in `settings`.
#[tokio::test]
async fn store_full_server_is_unavailable() {
    let server =
        Server::with(Engine::Redis70, &["--maxmemory", "10mb", "--maxmemory-policy", "noeviction"]);
    let store = store_of(&server).await;
    let policy = "gcra:10/1h".parse::<PreparedPolicy>().unwrap().on_error(OnError::Allow);
    assert_eq!(store.take(b"old", &policy, 1).await.unwrap().source, Source::Store);
    // Less than it takes up already.
    server.query::<()>("CONFIG SET maxmemory 100kb");
    for key in 0..20_u32 {
        let answer = store.take(&key.to_le_bytes(), &policy, 1).await.unwrap();
        assert_eq!((answer.allowed(), answer.source), (true, Source::Fallback));
    }
    let counters = store.counters();
    println!(
        "figure: full: {} of 20 answered as the policy says, and counted",
        counters.fallback_allow
    );
    assert_eq!((counters.fallback_allow, counters.unavailable), (20, 20));
    crate::servers::eventually_true("the breaker opens", async || store.unavailable().is_some())
        .await;
    assert_eq!(
        store.counters().breaker_opened,
        1,
        "it takes no writes, therefore the breaker is open"
    );
}
