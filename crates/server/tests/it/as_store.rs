//! A server as the store of other programs.

use std::time::Duration;

use sluicegate_core::{
    KeyedOperation, OnError, Operation, PreparedPolicy, Request, Source, Store as _, StoreError,
};
use sluicegate_redis::RedisStore;
use sluicegate_testing::{Engine, Server};

use crate::{
    harness::Running,
    store::{on, patient},
};

/// A server of Sluicegate has no scripts, and no command that peeks at several keys.
#[test]
fn store_in_a_server_peeks_at_several_keys() {
    let server = Running::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("redis://{}", server.address);
        let store = RedisStore::new(&url, patient()).unwrap();
        let policy: PreparedPolicy = "fixed-window:2/1h".parse().unwrap();
        for (operation, expected) in [
            (Operation::Peek(0), Ok(())),
            (Operation::Take(0), Ok(())),
            (Operation::Peek(0), Err(1)),
        ] {
            let both = [(&b"a"[..], 1), (b"b", 2)].map(|(key, cost)| KeyedOperation {
                key,
                policy: &policy,
                operation: operation.with_cost(cost),
            });
            let answer = store.apply(Request::all(&both).unwrap()).await.unwrap();
            assert_eq!(answer.source, Source::Store);
            let denied = if answer.allowed() { Ok(()) } else { Err(answer.key) };
            assert_eq!(denied, expected, "{operation:?}");
        }
    });
}

#[test]
fn store_in_a_server_is_leased_from() {
    let server = Running::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("redis://{}", server.address);
        let mut options = patient();
        options.lease_lifetime = Duration::from_mins(5);
        let store = RedisStore::new(&url, options).unwrap();
        for (policy, forfeited) in [
            ("fixed-window:10000/366d:align=clock", 0),
            ("gcra:10000/365d", 0),
            ("sliding-log:10000/1d", 64),
        ] {
            let leased = policy.parse::<PreparedPolicy>().unwrap().lease(64).unwrap();
            for _ in 0..500 {
                assert!(store.take(policy.as_bytes(), &leased, 1).await.unwrap().allowed());
            }
            store.close().await;
            let peek = Request::one(policy.as_bytes(), &leased, Operation::Peek(0));
            let used = 10_000 - store.apply(peek).await.unwrap().remaining;
            assert!((500..=500 + forfeited).contains(&used), "{policy}: {used}");
        }
        assert!(store.counters().lease > 1400, "{:?}", store.counters());
    });
}

/// The server adds a prefix that its client does not know. Its error about an argument is never answered by the fallback.
#[test]
fn store_in_a_server_with_a_prefix_rejects_a_key_that_is_too_long() {
    let redis = Server::start(Engine::Redis70);
    let server = on(&redis, |_, at| at.redis.prefix = b"limits:".to_vec());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedisStore::new(&format!("redis://{}", server.address), patient()).unwrap();
        let policy = "gcra:1/1h".parse::<PreparedPolicy>().unwrap().on_error(OnError::Allow);
        let key = vec![b'k'; 65_530];
        let text =
            "invalid key: expected 1 to 65536 bytes, found 65537 with the prefix of the store";
        let rejected = StoreError::Arguments(text.to_owned());
        for _ in 0..2 {
            assert_eq!(store.take(&key, &policy, 1).await.err(), Some(rejected.clone()));
        }
        let of = |key| KeyedOperation { key, policy: &policy, operation: Operation::Take(1) };
        let operations = [of(&b"a"[..]), of(&key)];
        let answers = store.apply_many(&operations).await;
        assert_eq!(answers[1].as_ref().err(), Some(&rejected));
        assert_eq!(answers[0].as_ref().unwrap().source, Source::Store);
        assert_eq!(store.unavailable(), None);
    });
}
