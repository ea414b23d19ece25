//! Replies that are late, cut, or wrong (RELIABILITY 20), through a proxy in this test.

use std::{sync::atomic::Ordering, time::Duration};

use sluicegate_core::{Operation, PreparedPolicy, Request, Source, Store, StoreError};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, size};

use crate::{
    proxy::{Fault, Proxy},
    servers::eventually_true,
    servers::store_of,
};

/// Every key has a limit of its own, so that an answer to another request is detected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire_faults_never_swap_answers() {
    let server = Server::start(Engine::Redis70);
    let proxy = Proxy::to(server.port()).await;
    let times = size("SLUICEGATE_WIRE_FAULTS", 25);
    let policies: Vec<PreparedPolicy> =
        (0..32).map(|key| format!("gcra:{}/1h", 1000 + key).parse().unwrap()).collect();
    for fault in
        [Fault::Delay, Fault::Slices, Fault::Hole, Fault::Cut, Fault::Garbage, Fault::Reset]
    {
        let mut options = Options::default();
        // Bytes that come one by one are only late. Other answers are later than their deadline, or never come.
        let millis = if fault == Fault::Slices { 30_000 } else { 60 };
        options.deadline = Duration::from_millis(millis);
        let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
        let (mut answered, mut fallen) = (0_u64, 0_u64);
        for _ in 0..times {
            eventually_true("the store answers", async || {
                store.take(b"key0", &policies[0], 0).await.unwrap().source == Source::Store
            })
            .await;
            proxy.set(fault);
            let replies = policies.iter().enumerate().map(async |(key, policy)| {
                (key, store.take(format!("key{key}").as_bytes(), policy, 0).await.unwrap())
            });
            for (key, answer) in futures_util::future::join_all(replies).await {
                match answer.source {
                    Source::Store => {
                        answered += 1;
                        let expected = u32::try_from(1000 + key).unwrap();
                        assert_eq!(answer.limit, expected, "{fault:?}: another's answer");
                    }
                    _ => fallen += 1,
                }
            }
            proxy.set(Fault::None);
        }
        // Any fault has ended by now.
        let took = eventually_true("the store answers again", async || {
            store.take(b"key0", &policies[0], 0).await.unwrap().source == Source::Store
        })
        .await;
        println!(
            "figure: {fault:?} x {times}: {answered} right answers, 0 of others, {fallen} fallbacks; \
             answers again after {} ms",
            took.as_millis()
        );
        assert_eq!(answered + fallen, times * 32);
        assert!(fallen == 0 || fault != Fault::Slices, "bytes that come one by one are no fault");
    }
    eventually_true("connections that broke are closed", async || {
        proxy.open.load(Ordering::SeqCst) <= 1
    })
    .await;
}

/// A refund whose answer is lost has been applied; a second one would admit units that were never returned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire_refund_with_a_lost_answer_is_sent_once() {
    let server = Server::start(Engine::Redis70);
    let proxy = Proxy::to(server.port()).await;
    let mut options = Options::default();
    options.deadline = Duration::from_millis(100);
    let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
    // Nothing drains during the test.
    let policy: PreparedPolicy = "gcra:1000/365d".parse().unwrap();
    let direct = store_of(&server).await;
    let used = async || {
        1000 - direct
            .apply(Request::one(b"k", &policy, Operation::Peek(0)))
            .await
            .unwrap()
            .remaining
    };
    let mut expected = 0;
    for fault in [Fault::Hole, Fault::Cut, Fault::Reset, Fault::Garbage] {
        let _ = direct.apply(Request::one(b"k", &policy, Operation::Charge(100))).await.unwrap();
        expected += 100;
        eventually_true("the store answers", async || {
            store.take(b"j", &policy, 0).await.unwrap().source == Source::Store
        })
        .await;
        proxy.set(fault);
        let error =
            store.apply(Request::one(b"k", &policy, Operation::Refund(10))).await.unwrap_err();
        assert!(matches!(error, StoreError::Timeout(_) | StoreError::Unavailable(_)), "{error}");
        proxy.set(Fault::None);
        expected -= 10;
        eventually_true("the refund is done", async || used().await == expected).await;
        // And once: whatever comes after it is done after it.
        eventually_true("the store answers again", async || {
            store.take(b"j", &policy, 0).await.unwrap().source == Source::Store
        })
        .await;
        assert_eq!(used().await, expected, "{fault:?}");
    }
    println!("figure: 4 refunds whose answers were lost: each done once");
}

/// Callers that have gone before the answer, and later callers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire_cancelled_request_takes_no_other_answer() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    // No unit comes back while the test runs, however slow the machine is.
    let policies: Vec<PreparedPolicy> =
        (0..100).map(|key| format!("gcra:{}/365d", 1000 + key).parse().unwrap()).collect();
    for round in 0..50_u32 {
        for (key, policy) in policies.iter().enumerate() {
            let key = key.to_be_bytes();
            let take = store.take(&key, policy, 1).into_future();
            tokio::pin!(take);
            // Begun, and given up.
            let begun = std::future::poll_fn(|context| {
                let polled = std::future::Future::poll(take.as_mut(), context);
                std::task::Poll::Ready(polled.is_ready())
            });
            let _ = begun.await;
        }
        let answer = store.take(b"last", &policies[7], 1).await.unwrap();
        assert_eq!((answer.limit, answer.remaining), (1007, 1006 - round));
    }
}
