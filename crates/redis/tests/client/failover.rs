//! Holds through a failover: holds that the replica did not have are lost, and cause an excess of at most their
//! units.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate_core::{Entry, Operation, PreparedPolicy, Request, Retry, Source, Store, Timestamp};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, now, size};

use crate::{
    sentinel::{FAILOVER_TIMEOUT, follows, sentinels, settled, url},
    servers::{eventually_true, eventually_within, pass, store_of},
};

/// Pseudo-random numbers, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Whether the operation on the hold `id` was allowed, by the store.
async fn apply_hold(
    store: &RedisStore,
    key: &[u8],
    policy: &PreparedPolicy,
    operation: Operation<'_>,
) -> bool {
    let answer = store.apply(Request::one(key, policy, operation)).await.unwrap();
    assert_eq!(answer.source, Source::Store);
    answer.allowed()
}

fn hold(id: &str) -> Operation<'_> {
    Operation::Hold { id: id.as_bytes(), cost: 1, ttl: None }
}

fn settle(id: &str) -> Operation<'_> {
    Operation::Settle { id: id.as_bytes(), used: Some(3) }
}

/// The ids of the open holds of a key.
async fn open_ids(store: &RedisStore, key: &[u8]) -> HashSet<String> {
    let mut ids = HashSet::new();
    let collect = &mut |entry: Option<&Entry>, now: Timestamp| {
        let holds = entry.into_iter().flat_map(|entry| entry.holds(now));
        ids = holds.map(|hold| String::from_utf8(hold.id.to_vec()).unwrap()).collect();
    };
    store.read(key, collect).await.unwrap();
    ids
}

/// A replica is promoted while its primary still serves: the later operations of the primary are lost, hold by hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_lets_at_most_the_lost_holds_exceed_the_limit() {
    const UNITS: usize = 10;
    let mut primary = Server::start(Engine::Redis70);
    let of = ["--replicaof", "127.0.0.1", &primary.port().to_string()];
    let replica = Server::with(Engine::Redis70, &of);
    follows(&replica).await;
    let old = store_of(&primary).await;
    let policy: PreparedPolicy = "concurrency:10/1h,fixed-window:1000/365d".parse().unwrap();
    let rate: PreparedPolicy = "fixed-window:1000/365d".parse().unwrap();
    let keys = size("SLUICEGATE_FAILOVER_KEYS", 60);
    let mut random = Random(3);
    let name = |key: u64| format!("k{key}").into_bytes();
    // Of each key: the ids that its clients hold, and those that were settled.
    let mut held: Vec<Vec<String>> = Vec::new();
    for key in 0..keys {
        let ids: Vec<_> = (0..random.below(11)).map(|number| format!("first-{number}")).collect();
        for id in &ids {
            assert!(apply_hold(&old, &name(key), &policy, hold(id)).await);
        }
        held.push(ids);
    }
    // `WAIT` covers the writes of its own connection, and therefore all before them.
    let mut connection = primary.connect();
    redis::cmd("SET").arg("last").arg(1).query::<()>(&mut connection).unwrap();
    let copied: u64 = redis::cmd("WAIT").arg(1).arg(30_000).query(&mut connection).unwrap();
    assert_eq!(copied, 1);
    replica.query::<()>("REPLICAOF NO ONE");
    let new = store_of(&replica).await;
    let replicated = held.clone();
    let mut settled_late = Vec::new();
    for (key, held) in (0..).zip(&mut held) {
        // Some settle, some hold: neither reaches the replica.
        let mut gone = Vec::new();
        for _ in 0..random.below(4).min(held.len() as u64) {
            let id = held.remove(usize::try_from(random.below(held.len() as u64)).unwrap());
            assert!(apply_hold(&old, &name(key), &policy, settle(&id)).await);
            gone.push(id);
        }
        settled_late.push(gone);
        for number in 0..random.below(6) {
            let id = format!("tail-{number}");
            let allowed = apply_hold(&old, &name(key), &policy, hold(&id)).await;
            assert_eq!(allowed, held.len() < UNITS);
            if allowed {
                held.push(id);
            }
        }
    }
    primary.kill();
    let (mut lost, mut over, mut most_over, mut exact) = (0, 0, 0, 0);
    for (key, held) in (0..).zip(&mut held) {
        let index = usize::try_from(key).unwrap();
        let name = name(key);
        let known = open_ids(&new, &name).await;
        assert_eq!(known, replicated[index].iter().cloned().collect(), "the replicated holds");
        let tail: Vec<_> = held.iter().filter(|id| !known.contains(*id)).cloned().collect();
        // Until it is full by its own ledger.
        for number in 0.. {
            let id = format!("new-{number}");
            if !apply_hold(&new, &name, &policy, hold(&id)).await {
                break;
            }
            held.push(id);
        }
        let exceeds = held.len().saturating_sub(UNITS);
        assert!(exceeds <= tail.len(), "{held:?} with {tail:?} lost");
        if settled_late[index].is_empty() {
            assert_eq!(exceeds, tail.len(), "no more and no less");
            exact += 1;
        }
        (lost, over, most_over) = (lost + tail.len(), over + exceeds, most_over.max(exceeds));
        // Their holders learn that they are lost, and charge nothing; a settle that was lost is charged once.
        for id in &tail {
            assert!(!apply_hold(&new, &name, &policy, settle(id)).await, "{id}");
        }
        for id in &settled_late[index] {
            assert!(apply_hold(&new, &name, &policy, settle(id)).await, "{id}");
            assert!(!apply_hold(&new, &name, &policy, settle(id)).await, "{id}");
        }
        let peek = new.apply(Request::one(&name, &rate, Operation::Peek(0))).await.unwrap();
        let open = open_ids(&new, &name).await.len();
        assert_eq!(
            peek.limit - peek.remaining,
            u32::try_from(3 * settled_late[index].len() + open).unwrap()
        );
    }
    println!(
        "figure: a failover that loses the last {lost} holds of {keys} keys with {UNITS} units each: {over} units are held \
         beyond the limits, at most {most_over} of a key, and never more than it lost ({exact} keys without lost settles: \
         exactly what they lost)"
    );
    assert!(lost > 0 && over > 0);
}

/// One hold of a client, by its own clock.
#[derive(Clone, Copy)]
struct Held {
    granted: Instant,
    ended: Instant,
    /// Whether the store knew nothing of it when it was settled.
    is_lost: bool,
}

/// A primary is killed while its clients hold: once a sentinel has promoted the replica, those holds still count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_keeps_replicated_holds() {
    const UNITS: usize = 8;
    let mut primary = Server::start(Engine::Redis70);
    let of = ["--replicaof", "127.0.0.1", &primary.port().to_string()];
    let replica = Server::with(Engine::Redis70, &of);
    follows(&replica).await;
    let sentinels = sentinels(primary.port(), 1000);
    settled(&sentinels).await;
    let mut options = Options::default();
    options.deadline = Duration::from_millis(100);
    let store = RedisStore::connect_with(&url(&sentinels), options).await.unwrap();
    // No hold expires within the test.
    let policy: PreparedPolicy = "concurrency:8/1m".parse().unwrap();
    let (stop, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let log = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..12_u64)
        .map(|task| {
            let (store, policy) = (store.clone(), policy.clone());
            let (stop, granted, log) = (Arc::clone(&stop), Arc::clone(&granted), Arc::clone(&log));
            tokio::spawn(async move {
                let mut random = Random(task);
                let by_store = |answer: Option<sluicegate_core::Answer>| {
                    answer.filter(|answer| answer.source == Source::Store)
                };
                for number in 0.. {
                    let id = format!("{task}-{number}").into_bytes();
                    let hold = Operation::Hold { id: &id, cost: 1, ttl: None };
                    loop {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let answer = store.apply(Request::one(b"k", &policy, hold)).await.ok();
                        if by_store(answer).is_some_and(|answer| answer.allowed()) {
                            break;
                        }
                        pass(Duration::from_millis(2)).await;
                    }
                    granted.fetch_add(1, Ordering::Relaxed);
                    let begin = now();
                    // Short ones and ones that outlast the outage.
                    let long = if random.below(4) == 0 { 3000 } else { 60 };
                    pass(Duration::from_millis(20 + random.below(long))).await;
                    let ended = now();
                    let settle = Operation::Settle { id: &id, used: None };
                    let retry = loop {
                        let answer = store.apply(Request::one(b"k", &policy, settle)).await.ok();
                        if let Some(answer) = by_store(answer) {
                            break answer.retry();
                        }
                        pass(Duration::from_millis(2)).await;
                    };
                    let is_lost = retry == Some(Retry::Never);
                    log.lock().unwrap().push(Held { granted: begin, ended, is_lost });
                }
            })
        })
        .collect();
    eventually_true("holds are granted", async || granted.load(Ordering::Relaxed) > 60).await;
    primary.kill();
    let killed = now();
    eventually_within(FAILOVER_TIMEOUT, "a sentinel names the replica", async || {
        sentinels.iter().any(|sentinel| {
            let command = "SENTINEL GET-MASTER-ADDR-BY-NAME main";
            let named = sentinel.try_query::<(String, u16)>(command);
            named.is_ok_and(|(_, port)| port == replica.port())
        })
    })
    .await;
    let before = granted.load(Ordering::Relaxed);
    eventually_true("the replica grants holds", async || {
        granted.load(Ordering::Relaxed) > before + 30
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let log = std::mem::take(&mut *log.lock().unwrap());
    let through = log.iter().filter(|hold| hold.granted < killed && hold.ended > killed).count();
    // A settle whose reply was lost also returns that the hold is not open: that counts as lost here.
    let lost = log.iter().filter(|hold| hold.is_lost).count();
    let mut changes: Vec<_> =
        log.iter().flat_map(|hold| [(hold.granted, 1_isize), (hold.ended, -1)]).collect();
    changes.sort_unstable();
    let (mut held, mut most) = (0, 0);
    for (_, change) in changes {
        held += change;
        most = most.max(held);
    }
    println!(
        "figure: a failover by 3 sentinels with {through} of {UNITS} units held throughout: {} holds, at most {most} units \
         at one time, {lost} holds not known when they were settled",
        log.len()
    );
    assert!(usize::try_from(most).unwrap() <= UNITS + lost, "{most} with {lost} lost");
    assert!(through > 0, "no hold outlasted the failover");
    let left = open_ids(&store_of(&replica).await, b"k").await;
    assert!(left.len() <= UNITS, "{left:?}");
}
