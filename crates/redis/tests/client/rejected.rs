//! A server that answers with errors: it has no memory left, or the user may not run the commands of a take.

use std::time::Duration;

use sluicegate_core::{Operation, PreparedPolicy, Request, Source, Store, StoreError};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Cluster, Engine, Server, module};

use crate::{
    cluster,
    servers::{eventually_true, pass, patient, store_of},
};

const ENGINES: [Engine; 3] = [Engine::Redis62, Engine::Redis70, Engine::Valkey91];

fn policy() -> PreparedPolicy {
    "fixed-window:1000000/1d".parse().unwrap()
}

async fn decides(store: &RedisStore) {
    let source = async || store.take(b"k", &policy(), 1).await.unwrap().source;
    eventually_true("the store decides again", async || source().await == Source::Store).await;
}

/// Keys that the server holds.
fn keys(server: &Server) -> Vec<String> {
    server.query("KEYS *")
}

/// The breaker opens and closes without a question, and stays open in between although `DEL` is allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_server_without_memory_opens_it() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        decides(&store).await;
        let before = keys(&server);
        server.query::<()>("CONFIG SET maxmemory 1");
        let opened =
            eventually_true("the breaker opens", async || store.unavailable().is_some()).await;
        let why = store.unavailable().unwrap();
        assert!(why.contains("OOM"), "{why}");
        let mut probes = 0;
        while probes < 5 {
            assert!(store.unavailable().is_some(), "{engine:?}");
            assert_eq!(store.take(b"k", &policy(), 1).await.unwrap().source, Source::Fallback);
            pass(Duration::from_millis(100)).await;
            probes += 1;
        }
        server.query::<()>("CONFIG SET maxmemory 0");
        let closed =
            eventually_true("the breaker closes", async || store.unavailable().is_none()).await;
        decides(&store).await;
        let counters = store.counters();
        println!(
            "figure: {engine:?} without memory, without requests: the breaker opens after {} ms and closes {} ms \
             after there is memory; {} connections",
            opened.as_millis(),
            closed.as_millis(),
            counters.connections
        );
        assert_eq!((counters.breaker_opened, counters.connections), (1, 1));
        assert_eq!(keys(&server), before, "a probe leaves no key");
    }
}

/// One command that the user may not run does not affect takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_one_forbidden_command_leaves_it_closed() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        decides(&store).await;
        server.query::<()>("ACL SETUSER default -del -info");
        for _ in 0..40 {
            let error =
                store.apply(Request::one(b"k", &policy(), Operation::Reset)).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
            assert!(store.unavailable().is_none(), "{engine:?}");
        }
        assert_eq!(store.take(b"k", &policy(), 1).await.unwrap().source, Source::Store);
        assert_eq!(store.counters().breaker_opened, 0, "{engine:?}");
    }
}

/// The user may not use the prefix: the store counts as unavailable, but the breakers stay closed, and takes of other
/// keys work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_forbidden_keys_leave_it_closed_and_the_store_unavailable() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        decides(&store).await;
        server.query::<()>("ACL SETUSER default resetkeys ~limits:*");
        let take = async |key: &[u8]| store.take(key, &policy(), 1).await.unwrap().source;
        let is_away = async || {
            assert_eq!(take(b"k").await, Source::Fallback);
            store.unavailable().is_some()
        };
        eventually_true("the store is unavailable", is_away).await;
        let why = store.unavailable().unwrap();
        assert!(why.contains("NOPERM") || why.contains("ACL"), "{why}");
        assert!(why.contains("sg:test:probe"), "{why}");
        // Other keys are still decided by the store.
        for _ in 0..3 {
            assert_eq!(take(b"limits:k").await, Source::Store);
            assert_eq!(store.unavailable(), None, "{engine:?}");
            eventually_true("the store is unavailable again", is_away).await;
        }
        server.query::<()>("ACL SETUSER default allkeys");
        let closed = eventually_true("it is noticed", async || store.unavailable().is_none()).await;
        println!("figure: {engine:?}: permission for keys noticed after {} ms", closed.as_millis());
        assert_eq!(take(b"k").await, Source::Store);
        assert_eq!(store.counters().breaker_opened, 0, "{engine:?}");
        assert_eq!(store.counters().connections, 1, "{engine:?}");
    }
}

/// A user with permission for the module alone, and for keys of the prefix only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_module_without_scripts_leaves_it_closed() {
    let server = Server::with(Engine::Redis70, &["--loadmodule", module()]);
    server.query::<()>(
        "ACL SETUSER limiter on >pw ~limits:* +@connection +command|info +sg.take +sg.peek",
    );
    let mut options: Options = patient();
    options.prefix = b"limits:".to_vec();
    let url = format!("redis://limiter:pw@127.0.0.1:{}/", server.port());
    let store = RedisStore::connect_with(&url, options).await.unwrap();
    decides(&store).await;
    let before = keys(&server);
    // Longer than a connection is idle.
    pass(Duration::from_millis(1700)).await;
    assert!(store.unavailable().is_none());
    assert_eq!(store.counters().breaker_opened, 0);
    assert_eq!(keys(&server), before, "a probe leaves no key");
    server.query::<()>("CONFIG SET maxmemory 1");
    eventually_true("the breaker opens", async || store.unavailable().is_some()).await;
    server.query::<()>("CONFIG SET maxmemory 0");
    eventually_true("the breaker closes", async || store.unavailable().is_none()).await;
}

/// A key that the user may not use does not end the use of the module for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn module_forbidden_key_leaves_it_in_use_for_others() {
    let server = Server::with(Engine::Redis70, &["--loadmodule", module()]);
    server.query::<()>(
        "ACL SETUSER limiter on >pw ~limits:* +@connection +command|info +sg.take +sg.peek",
    );
    let url = format!("redis://limiter:pw@127.0.0.1:{}/", server.port());
    let store = RedisStore::connect_with(&url, patient()).await.unwrap();
    let take = async |key: &[u8]| store.take(key, &policy(), 1).await.unwrap().source;
    for expected in 1..4 {
        assert_eq!(take(b"k").await, Source::Fallback);
        assert_eq!(take(b"limits:k").await, Source::Store);
        assert_eq!(store.counters().module, expected);
    }
    // Nor does a command that the user may not run.
    let hold = Operation::Hold { id: b"a", cost: 1, ttl: Some(Duration::from_secs(60)) };
    let held = store.apply(Request::one(b"limits:k", &policy(), hold)).await.unwrap();
    assert_eq!(held.source, Source::Fallback);
    assert_eq!(take(b"limits:k").await, Source::Store);
    assert_eq!(store.counters().module, 4);
}

/// Each node of a cluster is probed, whatever the slot of the probe's key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_without_memory_is_unavailable() {
    let cluster = Cluster::start(Engine::Redis70, &[]);
    let store = RedisStore::connect_with(&cluster::url(&cluster), patient()).await.unwrap();
    let keys: Vec<_> = (0..60_u32).map(|key| key.to_le_bytes()).collect();
    for key in &keys {
        assert_eq!(store.take(key, &policy(), 1).await.unwrap().source, Source::Store);
    }
    let limit = |maximum| {
        cluster.nodes.iter().for_each(|node| {
            node.query::<()>(&format!("CONFIG SET maxmemory {maximum}"));
        });
    };
    limit(1);
    eventually_true("every breaker opens", async || store.unavailable().is_some()).await;
    limit(0);
    let is_closed = async || store.health().iter().all(|it| !it.breaker_open);
    eventually_true("every breaker closes", is_closed).await;
    for key in &keys {
        assert_eq!(store.take(key, &policy(), 1).await.unwrap().source, Source::Store);
    }
    assert_eq!(store.counters().breaker_opened, 3);
}
