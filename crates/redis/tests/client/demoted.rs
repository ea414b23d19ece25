//! A primary that was demoted: it answers, and takes no writes (RELIABILITY 52).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluicegate_core::{KeyedOperation, OnError, Operation, PreparedPolicy, Share, Source, Store};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, free_port, now, size};

use crate::{
    servers::{eventually_true, patient, store_of},
    tls,
};

const CLIENTS: u64 = 4;

/// Connections that the server has accepted, except for that of this query.
struct Accepted(u64);

impl Accepted {
    fn of(server: &Server) -> Self {
        let stats: String = server.query("INFO stats");
        let line = stats.lines().find_map(|it| it.strip_prefix("total_connections_received:"));
        Self(line.unwrap().trim().parse().unwrap())
    }
}

/// Four clients under load, while their primary is demoted for a time, and after.
async fn demote(what: &str, server: &Server, url: &str, options: Options) {
    let span = Duration::from_millis(size("SLUICEGATE_DEMOTED_MS", 1500));
    let policy: PreparedPolicy = "gcra:1000000/1h".parse().unwrap();
    let policy = policy.on_error(OnError::Local(Share::ALL));
    let stop = Arc::new(AtomicBool::new(false));
    let (mut stores, mut tasks) = (Vec::new(), Vec::new());
    for client in 0..CLIENTS {
        let store = RedisStore::connect_with(url, options.clone()).await.unwrap();
        stores.push(store.clone());
        let (policy, stop) = (policy.clone(), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let key = client.to_le_bytes();
            while !stop.load(Ordering::Relaxed) {
                let _ = store.take(&key, &policy, 1).await.unwrap();
                crate::servers::pass(Duration::from_micros(200)).await;
            }
        }));
    }
    for store in &stores {
        eventually_true("takes are decided", async || store.counters().store > 50).await;
    }
    let before = Accepted::of(server).0;
    server.query::<()>("REPLICAOF 127.0.0.1 1");
    let start = now();
    eventually_true("every breaker opens", async || {
        stores.iter().all(|store| store.health().iter().any(|it| it.breaker_open))
    })
    .await;
    let opened = start.elapsed();
    crate::servers::pass(span.saturating_sub(opened)).await;
    assert!(stores.iter().all(|store| store.unavailable().unwrap().contains("READONLY")));
    // Two connections were for these questions.
    let accepted = Accepted::of(server).0 - before - 2;
    let elapsed = start.elapsed();
    server.query::<()>("REPLICAOF NO ONE");
    let mut slowest = Duration::ZERO;
    for store in &stores {
        let took = eventually_true("the store decides again", async || {
            let before = store.counters().store;
            crate::servers::pass(Duration::from_millis(1)).await;
            store.counters().store > before
        });
        slowest = slowest.max(took.await);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let each_second = accepted as f64 / elapsed.as_secs_f64();
    println!(
        "figure: demoted for {} ms, {CLIENTS} clients ({what}): {accepted} connections, {each_second:.1} a \
         second in all; breakers open after {} ms; decides again {} ms after promotion",
        elapsed.as_millis(),
        opened.as_millis(),
        slowest.as_millis()
    );
    assert!(each_second <= 20.0, "{each_second}");
    assert!(slowest <= Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_is_not_stormed() {
    let server = Server::start(Engine::Redis70);
    demote("plain", &server, &server.url(), Options::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_is_not_stormed_over_tls() {
    let (server, files, port) = tls::simple_server();
    let mut options = patient();
    options.tls.ca = Some(files.path("server.ca"));
    demote("TLS", &server, &format!("rediss://127.0.0.1:{port}/"), options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_is_not_stormed_behind_sentinels() {
    let server = Server::start(Engine::Redis70);
    let watch = format!(
        "sentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 60000",
        server.port()
    );
    let sentinel = Server::sentinel(&watch);
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    demote("Sentinel", &server, &url, Options::default()).await;
}

/// Other commands in flight on the connection are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_answers_other_commands_on_the_connection() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy: PreparedPolicy = "gcra:1000000/1h".parse().unwrap();
    assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
    let rounds = size("SLUICEGATE_DEMOTIONS", 5);
    let mut answered = 0;
    for _ in 0..rounds {
        server.query::<()>("REPLICAOF 127.0.0.1 1");
        let take = KeyedOperation { key: b"k", policy: &policy, operation: Operation::Take(1) };
        let peek = KeyedOperation { operation: Operation::Peek(1), ..take };
        let questions = [peek, take, peek, take, take, peek];
        let batches = (0..50).map(|_| store.apply_many(&questions).into_future());
        for answers in futures_util::future::join_all(batches).await {
            let sources: Vec<_> =
                answers.into_iter().map(|answer| answer.unwrap().source).collect();
            // A pipeline is sent as a whole, or not at all once the breaker is open.
            if sources.contains(&Source::Store) {
                for (question, source) in questions.iter().zip(&sources) {
                    let is_peek = matches!(question.operation, Operation::Peek(_));
                    assert_eq!(*source == Source::Store, is_peek, "{sources:?}");
                    answered += u32::from(is_peek);
                }
            }
        }
        server.query::<()>("REPLICAOF NO ONE");
        eventually_true("the store decides again", async || {
            store.take(b"k", &policy, 1).await.unwrap().source == Source::Store
        })
        .await;
    }
    println!(
        "figure: {rounds} demotions under pipelines: all {answered} reads that were sent beside refused writes \
         were answered; {} connections in all",
        store.counters().connections
    );
    let counters = store.counters();
    assert_eq!((counters.connections, counters.timeouts), (1, 0));
    assert!(answered > 0);
}

/// A server that refuses connections: the breaker opens without a request, and reconnects are few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_refused_connections_open_it() {
    let mut server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    server.kill();
    let is_open = async || store.health().iter().any(|it| it.breaker_open && !it.connected);
    let opened = eventually_true("the breaker opens", is_open).await;
    server.restart();
    let closed =
        eventually_true("the breaker closes", async || store.unavailable().is_none()).await;
    println!(
        "figure: a server that is killed while it is idle: the breaker opens after {} ms, and closes {} \
         ms after the server is back",
        opened.as_millis(),
        closed.as_millis()
    );
    assert_eq!(store.counters().breaker_opened, 1);
    let nowhere =
        RedisStore::new(&format!("redis://127.0.0.1:{}/", free_port()), Options::default());
    let nowhere = nowhere.unwrap();
    let _ = nowhere.take(b"k", &"gcra:1/1s".parse().unwrap(), 1).await.unwrap();
    eventually_true("the breaker opens", async || nowhere.unavailable().is_some()).await;
}
