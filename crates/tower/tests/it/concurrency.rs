//! Many tasks on one key admit exactly the burst, in this process and over Redis.

use std::sync::Arc;

use http::Request;
use sluicegate::{Limiter, LocalLimiter, OnError, PreparedPolicy, Store};
use sluicegate_testing::{Engine, Server};
use sluicegate_tower::{NamedPolicy, RateLimitLayer, Rules};
use tower::{Layer, ServiceExt};

use crate::{
    layer::{CountingService, policy},
    server::limiter,
};

async fn admits_exactly<S: Store + 'static>(
    store: S,
    rules: impl Into<Rules>,
    tasks: u32,
    each: u32,
) {
    let counted = CountingService::default();
    let service = RateLimitLayer::new(store, rules).layer(counted.clone());
    let send = |_| {
        let service = service.clone();
        tokio::spawn(async move {
            let mut passed = 0;
            for _ in 0..each {
                let status = service.clone().oneshot(Request::new(())).await.unwrap().status();
                passed += u32::from(status == 200);
            }
            passed
        })
    };
    let mut passed = 0;
    for task in (0..tasks).map(send).collect::<Vec<_>>() {
        passed += task.await.unwrap();
    }
    println!("figure: {} requests, {passed} passed, {} arrived", tasks * each, counted.count());
    assert_eq!((passed, counted.count()), (100, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn layer_many_tasks_on_one_key_admit_the_burst() {
    let named = || policy("gcra:100/1d");
    admits_exactly(LocalLimiter::new(), named(), 64, 100).await;
    admits_exactly(Arc::new(Limiter::in_memory()), named(), 64, 100).await;
    let redis = Server::start(Engine::Redis70);
    let limiter = limiter(&redis).await;
    admits_exactly(limiter.clone(), named(), 32, 20).await;
    let prepared: PreparedPolicy = "gcra:100/1d".parse().unwrap();
    // Another key space: the first has used up its own.
    limiter.reset("7:default,").await.unwrap();
    let prepared = prepared.lease(10).unwrap().on_error(OnError::Allow);
    admits_exactly(limiter, NamedPolicy::prepared("default", prepared), 32, 20).await;
}

#[tokio::test]
async fn layer_prepared_policy_uses_on_error_without_redis() {
    let redis = Server::start(Engine::Redis70);
    let limiter = limiter(&redis).await;
    drop(redis);
    let prepared: PreparedPolicy = "gcra:1/1d".parse().unwrap();
    for (on_error, expected) in [(OnError::Allow, 200), (OnError::Deny, 503), (OnError::Fail, 503)]
    {
        let named = NamedPolicy::prepared("default", prepared.on_error(on_error));
        let layer = RateLimitLayer::new(limiter.clone(), named);
        let answer =
            layer.layer(CountingService::default()).oneshot(Request::new(())).await.unwrap();
        assert_eq!(answer.status(), expected, "{on_error:?}");
    }
    // A policy without settings has no fallback.
    let layer = RateLimitLayer::new(limiter, prepared.policy().clone());
    let answer = layer.layer(CountingService::default()).oneshot(Request::new(())).await.unwrap();
    assert_eq!(answer.status(), 503);
}
