//! Commands that a server executes after the client has given up waiting (RELIABILITY 57).

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use sluicegate_core::{
    BoxFuture, Clock as _, KeyedOperation, Operation, PreparedPolicy, Request, Source, Store,
    Timestamp,
};
use sluicegate_memory::SystemClock;
use sluicegate_redis::{Connection, Environment, Options, RedisStore};
use sluicegate_testing::{Engine, Server, now, size};

use crate::servers::{eventually_true, pass};

const PIPELINE: usize = 30;

/// Sends pipelines of 30 takes until the span is over; returns the number of takes that the store admitted.
async fn batches(store: &RedisStore, policy: &PreparedPolicy, span: Duration) -> u64 {
    let (start, mut admitted) = (now(), 0);
    while start.elapsed() < span {
        let take = KeyedOperation { key: b"k", policy, operation: Operation::Take(1) };
        for answer in store.apply_many(&[take; PIPELINE]).await {
            let answer = answer.unwrap();
            admitted += u64::from(answer.source == Source::Store && answer.allowed());
        }
        pass(Duration::from_micros(200)).await;
    }
    admitted
}

/// The same, 30 at a time that are no pipeline.
async fn concurrent(store: &RedisStore, policy: &PreparedPolicy, span: Duration) -> u64 {
    let (start, mut admitted) = (now(), 0);
    while start.elapsed() < span {
        let takes = (0..PIPELINE).map(|_| store.take(b"k", policy, 1).into_future());
        for answer in join_all(takes).await {
            let answer = answer.unwrap();
            admitted += u64::from(answer.source == Source::Store && answer.allowed());
        }
        pass(Duration::from_micros(200)).await;
    }
    admitted
}

/// A server stops repeatedly under load: late commands only charge, and few do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_executes_little_late() {
    let span = Duration::from_millis(size("SLUICEGATE_STOPPED_MS", 350));
    let outages = size("SLUICEGATE_LATE_OUTAGES", 3);
    let policy: PreparedPolicy = "gcra:100000000/365d".parse().unwrap();
    for in_pipelines in [true, false] {
        let server = Server::start(Engine::Redis70);
        let mut options = Options::default();
        // A machine that is busy is no outage.
        options.deadline = Duration::from_millis(size("SLUICEGATE_LATE_DEADLINE_MS", 100));
        let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
        let (mut late, mut admitted) = (Vec::new(), 0);
        for _ in 0..outages {
            eventually_true("the store answers", async || {
                store.take(b"probe", &policy, 1).await.unwrap().source == Source::Store
            })
            .await;
            let (client, prepared) = (store.clone(), policy.clone());
            let load = tokio::spawn(async move {
                let span = span + Duration::from_millis(100);
                if in_pipelines {
                    batches(&client, &prepared, span).await
                } else {
                    concurrent(&client, &prepared, span).await
                }
            });
            pass(Duration::from_millis(50)).await;
            server.signal("-STOP");
            pass(span).await;
            server.signal("-CONT");
            admitted += load.await.unwrap();
            eventually_true("the store answers again", async || {
                store.take(b"probe", &policy, 1).await.unwrap().source == Source::Store
            })
            .await;
            let peek = store.apply(Request::one(b"k", &policy, Operation::Peek(0))).await.unwrap();
            let charged = u64::from(100_000_000 - peek.remaining);
            // Nothing is admitted that is not charged.
            assert!(charged >= admitted, "{charged} charged, {admitted} admitted");
            late.push(charged - admitted - late.iter().sum::<u64>());
        }
        println!(
            "figure: {outages} stops of {} ms under {}: {admitted} takes admitted, {late:?} executed late",
            span.as_millis(),
            if in_pipelines { "pipelines of 30" } else { "30 takes at a time" },
        );
        // On a busy machine a pipeline may also be late for another reason, and is then counted too.
        late.sort_unstable();
        assert!(late[late.len() / 2] <= 40, "{late:?}");
    }
}

/// The system, with a clock that a test advances.
#[derive(Debug)]
struct System {
    clock: SystemClock,
    ahead: AtomicU64,
}

impl Environment for System {
    fn now(&self) -> Timestamp {
        self.clock.now() + Duration::from_millis(self.ahead.load(Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        0
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn connect(
        &self,
        host: &str,
        port: u16,
    ) -> BoxFuture<'static, io::Result<Box<dyn Connection>>> {
        let address = (host.to_owned(), port);
        Box::pin(async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            Ok(Box::new(stream) as Box<dyn Connection>)
        })
    }
}

/// The replies to requests that were dropped are not recorded, so that a connection that works looks as if it had stalled.
#[tokio::test]
async fn dropped_requests_do_not_hold_back_the_next_one() {
    let server = Server::start(Engine::Redis70);
    let policy: PreparedPolicy = "gcra:100000000/365d".parse().unwrap();
    let system = Arc::new(System { clock: SystemClock::new(), ahead: AtomicU64::new(0) });
    let mut options = Options::default();
    // The store itself probes its server once a second.
    options.deadline = Duration::from_millis(700);
    options.environment = Some(Arc::clone(&system) as Arc<dyn Environment>);
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
    for round in 0..5 {
        for ahead in [100, 3] {
            let dropped = store.take(b"k", &policy, 1).into_future().now_or_never();
            assert!(dropped.is_none(), "a reply in no time");
            system.ahead.fetch_add(ahead, Ordering::Relaxed);
            // The first one sends a `PING`, and the second one too soon after it for another.
            let answer = store.take(b"k", &policy, 1).await.unwrap();
            assert_eq!(answer.source, Source::Store, "round {round}, {ahead} ms later: {answer:?}");
        }
    }
}
