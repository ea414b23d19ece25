//! Every operation, by the server's clock, and the round trips that caches save.

use std::time::Duration;

use sluicegate_core::{
    KeyedOperation, OnError, Operation, PreparedPolicy, Request, Retry, Source, Store, StoreError,
};
use sluicegate_redis::RedisStore;

use sluicegate_testing::{Engine, Server};

use crate::servers::{patient, store_of};

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

#[tokio::test]
async fn store_every_operation_is_answered_by_every_engine() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        let policy = policy("gcra:10/1h:burst=5");

        let answer = store.take(b"k", &policy, 2).await.unwrap();
        assert!(answer.allowed() && answer.source == Source::Store);
        assert_eq!((answer.remaining, answer.limit), (3, 5));
        let apply =
            async |operation| store.apply(Request::one(b"k", &policy, operation)).await.unwrap();
        assert_eq!(apply(Operation::Peek(1)).await.remaining, 3);
        assert_eq!(apply(Operation::Charge(4)).await.remaining, 0);
        assert!(!apply(Operation::Take(1)).await.allowed());
        assert_eq!(apply(Operation::Refund(3)).await.remaining, 2);
        assert!(apply(Operation::Take(1)).await.allowed());
        let hour = Duration::from_secs(3600);
        let reserved = apply(Operation::Reserve { cost: 5, max_wait: hour }).await;
        assert!(reserved.allowed() && reserved.delay() > Duration::from_secs(1400));
        assert_eq!(apply(Operation::Reset).await.remaining, 5);
        assert_eq!(server.query::<u64>("DBSIZE"), 0);

        // Without a fallback, no denial is cached.
        let strict = policy.on_error(OnError::Fail);
        assert!(
            store.apply(Request::one(b"k", &strict, Operation::Take(5))).await.unwrap().allowed()
        );
        for _ in 0..2 {
            let denied =
                store.apply(Request::one(b"k", &strict, Operation::Take(1))).await.unwrap();
            assert_eq!((denied.allowed(), denied.source), (false, Source::Store));
        }
        let window = "fixed-window:1/1m".parse().unwrap();
        let reserve = Operation::Reserve { cost: 1, max_wait: hour };
        let error = store.apply(Request::one(b"k", &window, reserve)).await.unwrap_err();
        assert!(matches!(error, StoreError::Operation(_)), "{error}");
    }
}

#[tokio::test]
async fn store_decision_takes_one_round_trip() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let calls = || {
        let stats: String = server.query("INFO commandstats");
        let calls = |name: &str| {
            let line =
                stats.lines().find_map(|it| it.strip_prefix(&format!("cmdstat_{name}:calls=")));
            line.map_or(0, |it| it.split(',').next().unwrap().parse::<u64>().unwrap())
        };
        calls("evalsha") + calls("eval")
    };
    for text in
        ["gcra:1000/1s", "gcra:1000/1s,sliding-log:500/1m", "fixed-window:1000/day:tz=Europe/Paris"]
    {
        let policy = policy(text);
        let _ = store.take(b"k", &policy, 1).await.unwrap();
        let before = calls();
        for _ in 0..50 {
            assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
        }
        assert_eq!(calls() - before, 50, "{text}");
    }
}

#[tokio::test]
async fn script_missing_on_the_server_is_sent_again() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policies = [
        policy("gcra:1000000/1s"),
        policy("sliding-log:100/1s"),
        policy("gcra:9/1s,fixed-window:9/1s"),
    ];
    for _ in 0..20 {
        server.query::<()>("SCRIPT FLUSH");
        let takes: Vec<_> = policies
            .iter()
            .cycle()
            .take(60)
            .map(|policy| KeyedOperation { key: b"k", policy, operation: Operation::Take(1) })
            .collect();
        for answer in store.apply_many(&takes).await {
            assert_ne!(answer.unwrap().source, Source::Fallback);
        }
        let _ = store.apply(Request::one(b"k", &policies[0], Operation::Reset)).await.unwrap();
        server.query::<()>("SCRIPT FLUSH");
        for policy in &policies {
            assert_eq!(store.take(b"j", policy, 0).await.unwrap().source, Source::Store);
        }
    }
    // One script for all concurrent requests, and one for the next.
    let sent = store.counters().scripts_sent;
    assert!((100..=140).contains(&sent), "{sent}");
}

#[tokio::test]
async fn denial_cache_denial_is_repeated_until_its_retry_time() {
    let server = Server::start(Engine::Valkey91);
    let store = store_of(&server).await;
    let policy = policy("gcra:1/1h:burst=3");
    assert!(store.take(b"k", &policy, 3).await.unwrap().allowed());
    let denied = store.take(b"k", &policy, 1).await.unwrap();
    assert_eq!((denied.allowed(), denied.source), (false, Source::Store));
    let again = store.take(b"k", &policy, 1).await.unwrap();
    assert_eq!((again.allowed(), again.source, again.remaining), (false, Source::Cache, 0));
    assert!(again.retry().unwrap() <= denied.retry().unwrap());
    assert_eq!((again.limit, again.binding), (denied.limit, denied.binding));
    // For this cost, policy and key.
    assert_eq!(store.take(b"k", &policy, 2).await.unwrap().source, Source::Store);
    assert_eq!(store.take(b"j", &policy, 1).await.unwrap().source, Source::Store);
    // This store sees its own refunds at once.
    let _ = store.apply(Request::one(b"k", &policy, Operation::Refund(1))).await.unwrap();
    let answer = store.take(b"k", &policy, 1).await.unwrap();
    assert_eq!((answer.allowed(), answer.source), (true, Source::Store));

    // It sees refunds by others after the bound.
    let mut options = patient();
    options.max_denial_cache = Duration::from_millis(300);
    let other = RedisStore::connect_with(&server.url(), options).await.unwrap();
    assert!(!other.take(b"k", &policy, 1).await.unwrap().allowed());
    let _ = store.apply(Request::one(b"k", &policy, Operation::Reset)).await.unwrap();
    let late = crate::servers::eventually_true("the bound", async || {
        other.take(b"k", &policy, 1).await.unwrap().allowed()
    });
    let late = late.await;
    println!("figure: a reset by another is noticed after {} ms (bound 300)", late.as_millis());
    assert!(late < Duration::from_secs(5), "{late:?}");

    // A cost that never fits is denied for ever each time.
    let never = store.take(b"k", &policy, 9).await.unwrap();
    assert_eq!(never.retry(), Some(Retry::Never));
    let counters = store.counters();
    assert_eq!((counters.cache, counters.fallback_deny), (1, 0));
}

#[tokio::test]
async fn denial_cache_denial_ends_when_the_store_would_allow() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy = policy("gcra:20/1s:burst=1");
    for _ in 0..20 {
        assert!(store.take(b"k", &policy, 1).await.is_ok());
        let denied = store.take(b"k", &policy, 1).await.unwrap();
        let Some(Retry::After(wait)) = denied.retry() else { continue };
        let cached = store.take(b"k", &policy, 1).await.unwrap();
        let Some(Retry::After(actual)) = cached.retry() else { continue };
        assert!(actual <= wait);
        // A client that waits for `retry_after` passes, because there is no other.
        crate::servers::pass(actual).await;
        assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
    }
}

#[tokio::test]
async fn take_many_several_keys_answers_in_order() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let (small, large) = (policy("gcra:3/1h"), policy("fixed-window:100/1h"));
    let keys: Vec<_> = (0..200_u32).map(u32::to_be_bytes).collect();
    let mut takes = Vec::new();
    for key in &keys {
        takes.extend((0..4).map(|_| KeyedOperation {
            key,
            policy: &small,
            operation: Operation::Take(1),
        }));
        takes.push(KeyedOperation { key: b"all", policy: &large, operation: Operation::Take(1) });
    }
    let answers = store.apply_many(&takes).await;
    assert_eq!(answers.len(), takes.len());
    for (place, answer) in answers.iter().enumerate() {
        let answer = answer.as_ref().unwrap();
        if place % 5 == 4 {
            assert_eq!(answer.allowed(), place / 5 < 100);
        } else {
            assert_eq!(answer.allowed(), place % 5 < 3, "{place}");
            assert_eq!(answer.remaining, [2, 1, 0, 0][place % 5]);
        }
    }
    let again = store.apply_many(&takes).await;
    assert!(again.iter().all(|it| it.as_ref().unwrap().source == Source::Cache));
    assert!(store.apply_many(&[]).await.is_empty());
}

/// The operations are independent: one that its policy does not support is an error of its own.
#[tokio::test]
async fn take_many_with_an_unsupported_operation_decides_the_others() {
    for engine in Engine::ALL {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        let (gcra, concurrency) = (policy("gcra:3/1h"), policy("concurrency:2/30s"));
        let takes = [(&b"a"[..], &gcra), (b"b", &concurrency), (b"c", &gcra)]
            .map(|(key, policy)| KeyedOperation { key, policy, operation: Operation::Take(1) });
        let [a, b, c] = &*store.apply_many(&takes).await else { panic!("three answers") };
        assert_eq!((a.as_ref().unwrap().remaining, c.as_ref().unwrap().remaining), (2, 2));
        assert!(matches!(b, Err(StoreError::Operation(_))), "{b:?}");
    }
}

#[tokio::test]
async fn store_client_clock_off_decides_the_same() {
    // The client's clock only selects which windows of a calendar to send; if it is far off, the server requests the
    // windows that it needs.
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy = policy("fixed-window:2/day:tz=Pacific/Auckland,gcra:100/1s");
    for expected in [1, 0] {
        assert_eq!(store.take(b"k", &policy, 1).await.unwrap().remaining, expected);
    }
    assert!(!store.take(b"k", &policy, 1).await.unwrap().allowed());
}
