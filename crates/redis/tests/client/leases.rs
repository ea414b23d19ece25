//! Leases: bounds, returned units, and saved round trips (RELIABILITY 42, simulated).

use std::{collections::BTreeMap, time::Duration};

use sluicegate_core::{KeyedOperation, Operation, PreparedPolicy, Request, Source, Store};
use sluicegate_redis::RedisStore;
use sluicegate_testing::{Cluster, Engine, Server};

use crate::{
    cluster,
    proxy::{Fault, Proxy},
    servers::{connect, eventually_true, patient, store_of},
};

#[tokio::test]
async fn lease_hot_key_is_taken_in_chunks() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy = "gcra:1000000/1s".parse::<PreparedPolicy>().unwrap().lease(100).unwrap();
    let mut sources = [0_u32; 2];
    for _ in 0..10_000 {
        let answer = store.take(b"k", &policy, 1).await.unwrap();
        assert!(answer.allowed());
        sources[usize::from(answer.source == Source::Lease)] += 1;
    }
    println!("figure: 10000 takes of a hot key with leases of 100 send {} requests", sources[0]);
    assert!(sources[0] <= 200, "{sources:?}");
    assert_eq!(store.counters().lease, u64::from(sources[1]));
}

#[tokio::test]
async fn lease_unused_units_are_returned_exactly_once() {
    unused_units_are_returned_exactly_once(&Server::start(Engine::Redis70).url()).await;
}

async fn unused_units_are_returned_exactly_once(url: &str) {
    let store = connect(url).await;
    // Nothing drains during the test.
    let policy = "gcra:10000/365d".parse::<PreparedPolicy>().unwrap().lease(64).unwrap();
    for _ in 0..100 {
        assert!(store.take(b"unused", &policy, 1).await.unwrap().allowed());
    }
    let used = async || {
        let peek = store.apply(Request::one(b"unused", &policy, Operation::Peek(0))).await.unwrap();
        10_000 - peek.remaining
    };
    assert!(used().await > 100);
    store.close().await;
    assert_eq!(used().await, 100);
    let counters = store.counters();
    assert_eq!(counters.lease_forfeited, 0, "{counters:?}");
    // The same without `flush`, when the time of the lease is over.
    for _ in 0..10 {
        let _ = store.take(b"unused", &policy, 1).await.unwrap();
    }
    eventually_true("leases end", async || used().await == 110).await;
}

/// A refund of more than was used returns the unspent units, too: they are not spent as well.
#[tokio::test]
async fn lease_ends_with_a_refund_of_more_than_was_used() {
    refund_of_more_than_was_used_ends_a_lease(&Server::start(Engine::Redis70).url()).await;
}

async fn refund_of_more_than_was_used_ends_a_lease(url: &str) {
    let store = connect(url).await;
    for policy in ["gcra:200/365d", "sliding-log:200/1h", "sliding-counter:200/1h"] {
        let policy = policy.parse::<PreparedPolicy>().unwrap().lease(100).unwrap();
        let key = policy.policy().to_string();
        let take = async || store.take(key.as_bytes(), &policy, 1).await.unwrap().allowed();
        for _ in 0..20 {
            assert!(take().await);
        }
        let refund = Request::one(key.as_bytes(), &policy, Operation::Refund(200));
        assert_eq!(store.apply(refund).await.unwrap().remaining, 200);
        let mut admitted = 0;
        for _ in 0..300 {
            admitted += u32::from(take().await);
        }
        assert_eq!(admitted, 200, "{key}");
    }
}

#[tokio::test]
async fn lease_units_that_cannot_be_returned_are_forfeited() {
    let server = Server::start(Engine::Redis70);
    let proxy = Proxy::to(server.port()).await;
    let mut options = patient();
    options.deadline = Duration::from_millis(200);
    let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
    let policy = "gcra:10000/365d".parse::<PreparedPolicy>().unwrap().lease(64).unwrap();
    for _ in 0..20 {
        assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
    }
    // The return is done, but its answer is lost: it is not sent again, and counted as lost.
    proxy.set(Fault::Hole);
    store.close().await;
    proxy.set(Fault::None);
    let counters = store.counters();
    assert!(counters.lease_returned == 0 && counters.lease_forfeited > 0, "{counters:?}");
    let other = store_of(&server).await;
    let peek = other.apply(Request::one(b"k", &policy, Operation::Peek(0))).await.unwrap();
    assert_eq!(10_000 - peek.remaining, 20, "done once");
}

/// The debt drains in 200 ms, but the key is unused only when the hold has ended.
#[tokio::test]
async fn lease_units_that_have_drained_beside_a_hold_are_forfeited() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy = "gcra:1000/1s".parse::<PreparedPolicy>().unwrap().lease(64).unwrap();
    let hold = Operation::Hold { id: b"h", cost: 500, ttl: Some(Duration::from_mins(10)) };
    assert!(store.apply(Request::one(b"k", &policy, hold)).await.unwrap().allowed());
    for _ in 0..65 {
        assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
    }
    eventually_true("leases end", async || {
        let counters = store.counters();
        counters.lease_returned + counters.lease_forfeited > 0
    })
    .await;
    assert_eq!(store.counters().lease_returned, 0);
}

/// Eight clients on one key, some of which die with their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_eight_clients_of_which_some_die_stay_in_bounds() {
    let server = Server::start(Engine::Redis70);
    eight_clients_of_which_some_die_stay_in_bounds(&server.url(), &server).await;
}

async fn eight_clients_of_which_some_die_stay_in_bounds(url: &str, node: &Server) {
    let policy = "gcra:2000/1s:burst=200".parse::<PreparedPolicy>().unwrap().lease(50).unwrap();
    let begin = micros(node);
    let mut tasks = Vec::new();
    for client in 0..8 {
        let (url, policy) = (url.to_owned(), policy.clone());
        tasks.push(tokio::spawn(async move {
            let mut store = connect(&url).await;
            let mut admitted = 0_u64;
            for turn in 0..1500 {
                if client < 4 && turn % 300 == 299 {
                    // Dies: its leases are forfeited.
                    store = connect(&url).await;
                }
                admitted += u64::from(store.take(b"eight", &policy, 1).await.unwrap().allowed());
                crate::servers::pass(Duration::from_millis(1)).await;
            }
            admitted
        }));
    }
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    let could = 200 + (micros(node) - begin) * 2 / 1000;
    let bound = could + 8 * 50;
    println!(
        "figure: 8 clients with leases, 16 of them dead: {admitted} admitted, {:.1} % of {could} (bound {bound})",
        admitted as f64 * 100.0 / could as f64
    );
    assert!(admitted <= bound);
    // On a busy machine the threads may have requested less than was available.
    let requested = could.min(8 * 1500);
    assert!(admitted * 100 >= requested * 80, "{admitted} of {requested}");
}

#[tokio::test]
async fn lease_of_each_kind_saves_requests_and_returns_or_forfeits_units() {
    each_kind_saves_requests_and_returns_or_forfeits_units(&Server::start(Engine::Redis70).url())
        .await;
}

async fn each_kind_saves_requests_and_returns_or_forfeits_units(url: &str) {
    // Of a window that has just begun, a chunk is forfeited whose request was slow: it may have been taken before.
    for (number, (policy, most_forfeited)) in [
        ("token-bucket:10000/365d:refill=interval", 64),
        ("fixed-window:10000/1d", 1000),
        ("fixed-window:10000/365d:align=clock", 0),
        ("fixed-window:10000/year", 0),
        ("sliding-log:10000/1d", 64),
        ("sliding-counter:10000/365d", 64),
        ("gcra:10000/365d,fixed-window:20000/1d,sliding-log:30000/1d", 1000),
    ]
    .into_iter()
    .enumerate()
    {
        let mut options = patient();
        options.lease_lifetime = Duration::from_mins(5);
        let store = RedisStore::connect_with(url, options).await.unwrap();
        let key = format!("kind{number}").into_bytes();
        let policy = policy.parse::<PreparedPolicy>().unwrap().lease(64).unwrap();
        for _ in 0..1000 {
            assert!(store.take(&key, &policy, 1).await.unwrap().allowed());
        }
        let counters = store.counters();
        // 1, 2, 4 ... 64 units, then 64 at a time; some chunks of a window may be forfeited.
        assert!(counters.lease >= 800, "{policy:?}: {counters:?}");
        store.close().await;
        let peek = store.apply(Request::one(&key, &policy, Operation::Peek(0))).await.unwrap();
        let forfeited = store.counters().lease_forfeited;
        assert_eq!(u64::from(10_000 - peek.remaining), 1000 + forfeited, "{policy:?}");
        assert!(forfeited <= most_forfeited, "{policy:?}: {forfeited}");
    }
}

/// Each client spends what it leased in the window of the lease: no window passes more than its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_of_a_fixed_window_is_not_spent_in_the_next() {
    units_of_a_fixed_window_are_not_spent_in_the_next(&Server::start(Engine::Redis70).url()).await;
}

async fn units_of_a_fixed_window_are_not_spent_in_the_next(url: &str) {
    /// Of the clock, which the servers of a test share.
    fn window() -> u128 {
        use std::time::{SystemTime, UNIX_EPOCH};
        #[expect(clippy::disallowed_methods, reason = "windows are on the clock")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_millis() / 500
    }

    let policy = "fixed-window:100/500ms:align=clock".parse::<PreparedPolicy>().unwrap();
    let policy = policy.lease(30).unwrap();
    let first = window();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (url, policy) = (url.to_owned(), policy.clone());
            tokio::spawn(async move {
                let store = connect(&url).await;
                let mut admitted = BTreeMap::new();
                let (mut last, mut taken) = (first, 0);
                while last < first + 6 {
                    crate::servers::pass(Duration::from_millis(1)).await;
                    let before = window();
                    taken = if before == last { taken } else { 0 };
                    last = before;
                    // Each second window ends with leases of which units are left, and the next one is used up.
                    if before.is_multiple_of(2) && taken >= 10 {
                        continue;
                    }
                    taken += 1;
                    let answer = store.take(b"window", &policy, 1).await.unwrap();
                    let decided = matches!(answer.source, Source::Store | Source::Lease);
                    // Otherwise the window that it belongs to is unknown.
                    if answer.allowed() && decided && window() == before {
                        *admitted.entry(before).or_insert(0_u32) += 1;
                    }
                }
                admitted
            })
        })
        .collect();
    let mut admitted: BTreeMap<u128, u32> = BTreeMap::new();
    for task in tasks {
        for (window, units) in task.await.unwrap() {
            *admitted.entry(window).or_default() += units;
        }
    }
    println!("figure: four clients with leases in windows of 100 units: {:?}", admitted.values());
    assert!(admitted.values().all(|units| *units <= 100), "{admitted:?}");
}

#[tokio::test]
async fn lease_policy_without_chunks_is_not_leased() {
    for policy in ["leaky-queue:9/1s", "gcra:9/1s:borrow", "fixed-window:9/1s:count=all"] {
        let error = policy.parse::<PreparedPolicy>().unwrap().lease(10).unwrap_err();
        assert!(error.to_string().contains("for a lease"), "{error}");
    }
    assert!("token-bucket:9/1s".parse::<PreparedPolicy>().unwrap().lease(10).is_ok());
}

/// Takes of a batch that a lease decides are in order, beside operations that it does not.
#[tokio::test]
async fn lease_decides_takes_of_a_batch() {
    takes_of_a_batch_are_decided(&Server::start(Engine::Redis70).url()).await;
}

async fn takes_of_a_batch_are_decided(url: &str) {
    let store = connect(url).await;
    let leased = "gcra:10000/365d".parse::<PreparedPolicy>().unwrap().lease(64).unwrap();
    let plain: PreparedPolicy = "fixed-window:5/1d".parse().unwrap();
    for _ in 0..20 {
        let batch: Vec<_> = (0..10)
            .map(|place| match place % 2 {
                0 => KeyedOperation { key: b"hot", policy: &leased, operation: Operation::Take(1) },
                _ => KeyedOperation { key: b"cold", policy: &plain, operation: Operation::Take(1) },
            })
            .collect();
        for (place, answer) in store.apply_many(&batch).await.into_iter().enumerate() {
            let answer = answer.unwrap();
            assert_eq!(answer.limit, [10_000, 5][place % 2]);
        }
    }
    let counters = store.counters();
    assert!(counters.lease >= 80, "{counters:?}");
    let cold = store.apply(Request::one(b"cold", &plain, Operation::Peek(1))).await.unwrap();
    assert!(!cold.allowed());
}

/// Everything above that no single server is needed for. `node` is one of the servers; they have one clock.
async fn leases_conform(url: &str, node: &Server) {
    unused_units_are_returned_exactly_once(url).await;
    refund_of_more_than_was_used_ends_a_lease(url).await;
    each_kind_saves_requests_and_returns_or_forfeits_units(url).await;
    takes_of_a_batch_are_decided(url).await;
    units_of_a_fixed_window_are_not_spent_in_the_next(url).await;
    eight_clients_of_which_some_die_stay_in_bounds(url, node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_in_valkey_conforms() {
    let server = Server::start(Engine::Valkey91);
    leases_conform(&server.url(), &server).await;
}

/// The keys of the policies, and those of a batch, are on several nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_in_a_cluster_conforms() {
    let cluster = Cluster::start(Engine::Redis70, &[]);
    leases_conform(&cluster::url(&cluster), &cluster.nodes[0]).await;
}

/// The time of a server, in microseconds.
fn micros(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.query("TIME");
    seconds * 1_000_000 + micros
}
