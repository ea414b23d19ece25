//! Several keys at once: one script if one server has them, otherwise one after the other.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use sluicegate_conformance::{Shape, StoreSubject, check_multi_key, check_multi_key_holds};
use sluicegate_core::{
    BoxFuture, KeyedOperation, ManualClock, OnError, Operation, PreparedPolicy, Request, Retry,
    Share, Source, Store, StoreError,
};
use sluicegate_redis::{Options, RedisStore, TestClock};
use tokio::runtime::Runtime;

use sluicegate_testing::{Cluster, Engine, Server};

use crate::{
    cluster::url,
    servers::{patient, store_of},
};

const ENGINES: [Engine; 2] = [Engine::Redis70, Engine::Valkey91];

#[test]
fn store_random_histories_decide_as_core() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let runtime = Runtime::new().unwrap();
        let clock = Arc::new(ManualClock::default());
        let mut options = patient();
        options.test_clock = Some(TestClock::new(clock.clone()));
        let store = runtime.block_on(RedisStore::connect_with(&server.url(), options)).unwrap();
        let block_on = move |future: BoxFuture<'_, ()>| runtime.block_on(future);
        let mut subject = StoreSubject::new(store, clock, block_on);
        check_multi_key(&mut subject, 300, 250, Shape::default());
        check_multi_key_holds(&mut subject, 600, 250, Shape::default());
    }
}

/// An operation on each of the keys.
fn all_of<'a>(
    operation: Operation<'a>,
    keys: &[&'a [u8]],
    policies: &[&'a PreparedPolicy],
) -> Vec<KeyedOperation<'a>> {
    let keyed = keys.iter().zip(policies);
    keyed.map(|(key, policy)| KeyedOperation { key, policy, operation }).collect()
}

fn takes<'a>(keys: &[&'a [u8]], policies: &[&'a PreparedPolicy]) -> Vec<KeyedOperation<'a>> {
    all_of(Operation::Take(1), keys, policies)
}

#[tokio::test]
async fn multi_key_one_server_decides_together_and_denials_are_cached() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let user: PreparedPolicy = "fixed-window:3/1h".parse().unwrap();
    let all: PreparedPolicy = "fixed-window:5/1h".parse().unwrap();
    let take = async |name: &'static [u8]| {
        store.apply(Request::all(&takes(&[name, b"all"], &[&user, &all])).unwrap()).await.unwrap()
    };
    for left in [2, 1, 0] {
        let answer = take(b"anna").await;
        assert_eq!((answer.remaining, answer.key, answer.source), (left, 0, Source::Store));
    }
    let denied = take(b"anna").await;
    assert_eq!((denied.allowed(), denied.key, denied.source), (false, 0, Source::Store));
    assert!(denied.each()[1].allowed() && denied.each()[1].remaining == 2);
    // The denial is remembered, also for requests for her key alone; no other key was charged for it.
    assert_eq!(take(b"anna").await.source, Source::Cache);
    assert_eq!(store.take(b"anna", &user, 1).await.unwrap().source, Source::Cache);
    assert_eq!(take(b"ben").await.remaining, 1);
    assert_eq!(take(b"ben").await.key, 1);
    let denied = take(b"carl").await;
    assert_eq!((denied.allowed(), denied.key), (false, 1));
    assert_eq!(
        store.apply(Request::one(b"carl", &user, Operation::Peek(0))).await.unwrap().remaining,
        3
    );
    let peeks = all_of(Operation::Peek(1), &[b"dora", b"all"], &[&user, &all]);
    assert!(!store.apply(Request::all(&peeks).unwrap()).await.unwrap().allowed());
}

#[tokio::test]
async fn multi_key_store_unavailable_each_policy_decides_its_key() {
    let mut server = Server::start(Engine::Redis70);
    let mut options: Options = patient();
    options.deadline = Duration::from_millis(300);
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    let policy =
        |on_error| "fixed-window:2/1h".parse::<PreparedPolicy>().unwrap().on_error(on_error);
    let (deny, allow) = (policy(OnError::Deny), policy(OnError::Allow));
    let local = policy(OnError::Local(Share::ALL));
    server.kill();
    let take = async |policies: [&PreparedPolicy; 2]| {
        let answer =
            store.apply(Request::all(&takes(&[b"a", b"b"], &policies)).unwrap()).await.unwrap();
        assert_eq!(answer.source, Source::Fallback);
        answer
    };
    assert!(take([&allow, &allow]).await.allowed());
    let denied = take([&local, &deny]).await;
    assert_eq!((denied.allowed(), denied.key), (false, 1));
    // The denied request has charged nothing here either.
    let passed =
        [take([&local, &allow]).await, take([&local, &allow]).await, take([&local, &allow]).await];
    assert_eq!(passed.map(|it| it.allowed()), [true, true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_key_several_nodes_are_charged_in_order_and_refunded() {
    let cluster = Cluster::start(Engine::Redis70, &[]);
    let store = RedisStore::connect_with(&url(&cluster), patient()).await.unwrap();
    let user: PreparedPolicy = "fixed-window:100/1h".parse().unwrap();
    let tenant: PreparedPolicy = "gcra:20/1d".parse().unwrap();
    let recorded: PreparedPolicy = "fixed-window:9/1h:count=all".parse().unwrap();
    // Many users of one tenant at a time: the tenant's limit is exact, and none has paid for a denial.
    let names: Vec<Vec<u8>> = (0..8_u8).map(|name| vec![b'u', name]).collect();
    let taking = names.iter().map(async |name| {
        let mut passed = 0;
        for _ in 0..6 {
            let takes = takes(&[name, b"tenant"], &[&user, &tenant]);
            let answer = store.apply(Request::all(&takes).unwrap()).await.unwrap();
            passed += u32::from(answer.allowed());
            if let Some(Retry::After(wait)) = answer.retry() {
                assert_eq!(answer.key, 1);
                assert!(wait > Duration::from_secs(60));
            }
        }
        (name, passed)
    });
    let passed = join_all(taking).await;
    assert_eq!(passed.iter().map(|it| it.1).sum::<u32>(), 20);
    for (name, passed) in passed {
        let used = 100
            - store.apply(Request::one(name, &user, Operation::Peek(0))).await.unwrap().remaining;
        assert_eq!(used, passed, "{name:?}");
    }
    // A hold on keys of several slots is not atomic: an error of the caller.
    let hold = Operation::Hold { id: b"a", cost: 1, ttl: Some(Duration::from_secs(60)) };
    let allow = user.clone().on_error(OnError::Allow);
    let holds = all_of(hold, &[b"u1", b"tenant"], &[&allow, &allow]);
    let error = store.apply(Request::all(&holds).unwrap()).await.err();
    let text = "invalid keys for a hold: expected keys in one slot of the cluster, such as `{acme}:requests` and \
                `{acme}:tokens`";
    assert_eq!(error, Some(StoreError::Arguments(text.to_owned())));
    // One slot: one script.
    let keys: [&[u8]; 2] = [b"{acme}:anna", b"{acme}"];
    let before = store.counters().store;
    let answer =
        store.apply(Request::all(&takes(&keys, &[&user, &tenant])).unwrap()).await.unwrap();
    assert_eq!((answer.remaining, store.counters().store - before), (19, 1));
    // A denial that counts is recorded behind the one that denies, and before it.
    let keys: [&[u8]; 3] = [b"r1", b"tenant", b"r2"];
    let answer = store
        .apply(Request::all(&takes(&keys, &[&recorded, &tenant, &recorded])).unwrap())
        .await
        .unwrap();
    assert_eq!((answer.allowed(), answer.key), (false, 1));
    for key in [&b"r1"[..], b"r2"] {
        let left =
            store.apply(Request::one(key, &recorded, Operation::Peek(0))).await.unwrap().remaining;
        assert_eq!(left, 8, "{key:?}");
    }
}
