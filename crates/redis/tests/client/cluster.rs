//! A cluster of three primaries with replicas (RELIABILITY 17).

use std::time::Duration;

use sluicegate_core::{
    KeyedOperation, OnError, Operation, PreparedPolicy, Request, Source, Store, StoreError,
};
use sluicegate_redis::{Options, RedisStore};

use sluicegate_testing::{Cluster, Engine, now, size};

use crate::servers::{eventually_true, pass, patient};

pub(crate) fn url(cluster: &Cluster) -> String {
    let hosts: Vec<_> = cluster.nodes.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    format!("redis+cluster://{}", hosts[..2].join(","))
}

/// The URL of one node is not that of its cluster: the texts say so.
async fn url_of_one_node_is_reported(cluster: &Cluster) {
    let store = RedisStore::connect_with(&cluster.nodes[0].url(), patient()).await.unwrap();
    let status = store.inspect().await.unwrap();
    let problem = status.problems().next().unwrap().to_string();
    let one = "is one of 3 nodes of a cluster: it decides on its own keys only; use a URL with redis+cluster://";
    assert!(problem.ends_with(one), "{problem}");
    let policy = "gcra:10/1h".parse::<PreparedPolicy>().unwrap().on_error(OnError::Fail);
    let other = (0..).find(|key| cluster.node_of_key(&format!("key{key}")).0 != 0).unwrap();
    let error = store.take(format!("key{other}").as_bytes(), &policy, 1).await.unwrap_err();
    let expected = "the store is a cluster, expected a URL with `redis+cluster://`";
    assert!(error.to_string().ends_with(expected), "{error}");
}

/// Keys of several slots are taken one after the other: an error gives back what the earlier ones took.
async fn keys_in_turn_are_refunded_after_an_error(cluster: &Cluster, store: &RedisStore) {
    let policy: PreparedPolicy = "gcra:10/365d".parse().unwrap();
    let (node, other) = (0..)
        .map(|key| format!("other{key}"))
        .map(|key| (cluster.node_of_key(&key).0, key))
        .find(|(node, _)| *node != cluster.node_of_key("turn").0)
        .unwrap();
    let _: String = cluster.nodes[node].query(&format!("SET {other} text"));
    let take =
        |key, cost| KeyedOperation { key, policy: &policy, operation: Operation::Take(cost) };
    let takes = [take(b"turn".as_slice(), 3), take(other.as_bytes(), 1)];
    let error = store.apply(Request::all(&takes).unwrap()).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt(..)), "{error}");
    let peek = Request::one(b"turn", &policy, Operation::Peek(1));
    assert_eq!(store.apply(peek).await.unwrap().remaining, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keys_are_found_on_their_nodes_after_failures() {
    let mut cluster = Cluster::start(Engine::Redis70, &[]);
    url_of_one_node_is_reported(&cluster).await;
    let store = RedisStore::connect_with(&url(&cluster), patient()).await.unwrap();
    keys_in_turn_are_refunded_after_an_error(&cluster, &store).await;
    let policy: PreparedPolicy = "gcra:10/1h".parse().unwrap();
    let keys: Vec<_> = (0..300_u32).map(|key| format!("key{key}").into_bytes()).collect();
    let status = store.inspect().await.unwrap();
    assert_eq!((status.servers.len(), status.problems().count()), (3, 0), "{status:?}");

    // Each node learns the script, and each key is found.
    let takes: Vec<_> = keys
        .iter()
        .map(|key| KeyedOperation { key, policy: &policy, operation: Operation::Take(1) })
        .collect();
    for answer in store.apply_many(&takes).await {
        let answer = answer.unwrap();
        assert_eq!((answer.remaining, answer.source), (9, Source::Store));
    }
    assert_eq!(store.counters().redirects, 0, "the map was right");

    // A hot slot moves while requests for it arrive.
    let (from, slot) = cluster.node_of_key("{hot}1");
    let to = (from + 1) % 3;
    let ids: Vec<String> = cluster.nodes.iter().map(|node| node.query("CLUSTER MYID")).collect();
    for key in 0..20 {
        assert!(
            store.take(format!("{{hot}}{key}").as_bytes(), &policy, 3).await.unwrap().allowed()
        );
    }
    cluster.nodes[to].query::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[from]));
    cluster.nodes[from].query::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[to]));
    for key in 0..20 {
        let key = format!("{{hot}}{key}");
        if key.ends_with('5') {
            // New keys of a slot that moves are made where it moves to.
            let fresh = format!("{{hot}}fresh{key}");
            assert_eq!(store.take(fresh.as_bytes(), &policy, 1).await.unwrap().remaining, 9);
        }
        let port = cluster.nodes[to].port();
        cluster.nodes[from].query::<()>(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
        assert_eq!(store.take(key.as_bytes(), &policy, 1).await.unwrap().remaining, 6);
    }
    let redirected = store.counters().redirects;
    assert!(redirected >= 20, "{redirected}");
    for node in &cluster.nodes[..3] {
        node.query::<()>(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[to]));
    }
    for key in 0..20 {
        let answer = store.take(format!("{{hot}}{key}").as_bytes(), &policy, 1).await.unwrap();
        assert_eq!((answer.remaining, answer.source), (5, Source::Store));
    }
    println!("figure: a slot moved under 20 keys: nothing lost, {redirected} requests redirected");
    cluster.settled();

    // Replicas take over, one after the other, then one primary is killed.
    let mut options = Options::default();
    options.deadline = Duration::from_millis(100);
    let store = RedisStore::connect_with(&url(&cluster), options).await.unwrap();
    let hot: PreparedPolicy = "gcra:200/1s:burst=50".parse().unwrap();
    let spots: Vec<_> = keys[..6].to_vec();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let begin = now();
    let tasks: Vec<_> = spots
        .into_iter()
        .map(|key| {
            let (store, hot, stop) = (store.clone(), hot.clone(), stop.clone());
            let key = [b"hot:", &key[..]].concat();
            tokio::spawn(async move {
                let (mut admitted, mut away, mut longest) = (0_u64, None, Duration::ZERO);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = store.take(&key, &hot, 1).await.unwrap();
                    if answer.source == Source::Fallback {
                        away.get_or_insert_with(now);
                    } else {
                        longest =
                            longest.max(away.take().map_or(Duration::ZERO, |it| it.elapsed()));
                        admitted += u64::from(answer.allowed());
                    }
                    pass(Duration::from_millis(2)).await;
                }
                (admitted, longest)
            })
        })
        .collect();
    let rounds = usize::try_from(size("SLUICEGATE_FAILOVERS", 1)).unwrap();
    let mut failovers = 0;
    // Which node of each shard is its primary.
    let mut primaries = [0, 1, 2];
    for _ in 0..rounds {
        for primary in &mut primaries {
            let old = *primary;
            *primary = (old + 3) % 6;
            let mut actual = None;
            eventually_true("the replica takes over", async || {
                // The failover gives up after five seconds, and must then be requested again.
                if actual.is_none_or(|it: std::time::Instant| it.elapsed() > Duration::from_secs(6))
                {
                    let _ = cluster.nodes[*primary].try_query::<()>("CLUSTER FAILOVER");
                    actual = Some(now());
                }
                cluster.is_primary(*primary) && !cluster.is_primary(old)
            })
            .await;
            failovers += 1;
            cluster.settled();
        }
    }
    let heir = (primaries[0] + 3) % 6;
    cluster.nodes[primaries[0]].kill();
    failovers += 1;
    eventually_true("the replica takes over", async || cluster.is_primary(heir)).await;
    let taken_over = now();
    for key in &keys[..6] {
        let key = [b"hot:", &key[..]].concat();
        eventually_true("every key is decided on", async || {
            store.take(&key, &hot, 0).await.unwrap().source == Source::Store
        })
        .await;
    }
    let found = taken_over.elapsed();
    // So that everybody has seen it.
    pass(Duration::from_millis(50)).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (mut worst, mut longest) = (0, Duration::ZERO);
    for task in tasks {
        let (admitted, away) = task.await.unwrap();
        worst = worst.max(admitted);
        longest = longest.max(away);
    }
    let bound = 50 + u64::try_from(begin.elapsed().as_millis()).unwrap() / 5 + failovers * 50;
    println!(
        "figure: {failovers} failovers, the last by a kill: at most {worst} admitted of a key (bound {bound}); \
         away for {} ms at the longest, and {} ms after the replica took over",
        longest.as_millis(),
        found.as_millis()
    );
    assert!(worst <= bound && found <= Duration::from_secs(2), "{found:?}");
    // The status names the missing slots.
    let status = store.inspect().await.unwrap();
    assert_eq!(status.servers.len(), 3, "{status:?}");
}

#[tokio::test]
async fn cluster_without_half_its_nodes_is_an_error_that_names_the_slots() {
    let node = Cluster::node(Engine::Redis70, &[]);
    node.query::<()>("CLUSTER ADDSLOTSRANGE 0 8000");
    let url = format!("redis+cluster://127.0.0.1:{}", node.port());
    eventually_true("the node is up", async || {
        node.query::<String>("CLUSTER INFO").contains("cluster_state:ok")
    })
    .await;
    let store = RedisStore::connect_with(&url, patient()).await.unwrap();
    let policy: PreparedPolicy = "gcra:10/1h".parse().unwrap();
    // `foo` is of slot 12182, `bar` of 5061.
    assert_eq!(store.take(b"foo", &policy, 1).await.unwrap().source, Source::Fallback);
    assert_eq!(store.take(b"bar", &policy, 1).await.unwrap().source, Source::Store);
    let status = store.inspect().await.unwrap();
    let actual: Vec<_> = status.problems().map(ToString::to_string).collect();
    assert!(actual.iter().any(|it| it.contains("the cluster serves only ")), "{actual:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_matching_deletes_the_keys_of_its_prefix_on_every_node() {
    let cluster = Cluster::start(Engine::Redis70, &[]);
    let policy: PreparedPolicy = "fixed-window:1/1h".parse().unwrap();
    let mut stores = Vec::new();
    // As a pattern, the first prefix would match the second, too.
    for prefix in ["a*:", "ab:"] {
        let mut options = patient();
        options.prefix = prefix.into();
        let store = RedisStore::connect_with(&url(&cluster), options).await.unwrap();
        for key in 0..30 {
            for key in [format!("f:{key}"), format!("other:{key}")] {
                assert!(store.take(key.as_bytes(), &policy, 1).await.unwrap().allowed());
                // The denial is cached.
                assert!(!store.take(key.as_bytes(), &policy, 1).await.unwrap().allowed());
            }
        }
        stores.push(store);
    }
    assert_eq!(stores[0].delete_matching("[fg]:*").await, Ok(Some(30)));
    for key in 0..30 {
        let (key, other) = (format!("f:{key}"), format!("other:{key}"));
        assert!(stores[0].take(key.as_bytes(), &policy, 1).await.unwrap().allowed());
        assert!(!stores[0].take(other.as_bytes(), &policy, 1).await.unwrap().allowed());
        assert!(!stores[1].take(key.as_bytes(), &policy, 1).await.unwrap().allowed());
    }
    assert_eq!(stores[1].delete_matching("*").await, Ok(Some(60)));
}
