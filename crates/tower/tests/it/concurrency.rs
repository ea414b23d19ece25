//! Many tasks on one key admit exactly the burst, in this process and over Redis.

use std::sync::Arc;

use http::Request;
use sluicegate::{Limiter, LocalLimiter, OnError, Rule, Store};
use sluicegate_testing::{Engine, Server};
use sluicegate_tower::RateLimitLayer;
use tower::{Layer, ServiceExt};

use crate::{
    layer::{Counted, policy},
    server::limiter,
};

async fn admits_exactly<S: Store + Send + Sync + 'static>(store: S, tasks: u32, each: u32) {
    let counted = Counted::default();
    let service = RateLimitLayer::new(store, policy("gcra:100/1d")).layer(counted.clone());
    let ask = |_| {
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
    for task in (0..tasks).map(ask).collect::<Vec<_>>() {
        passed += task.await.unwrap();
    }
    println!("figure: {} requests, {passed} passed, {} arrived", tasks * each, counted.count());
    assert_eq!((passed, counted.count()), (100, 100));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_on_one_key_admit_exactly_the_burst() {
    admits_exactly(LocalLimiter::new(), 64, 100).await;
    admits_exactly(Arc::new(Limiter::in_memory()), 64, 100).await;
    let redis = Server::start(Engine::Redis70);
    let limiter = limiter(&redis).await;
    admits_exactly(limiter.clone(), 32, 20).await;
    let rule: Rule = "gcra:100/1d".parse().unwrap();
    // Another key space: the first has used up its own.
    let _ = limiter.reset("7:default,", &rule).await.unwrap();
    let rule = rule.lease(10).unwrap().on_error(OnError::Allow);
    admits_exactly(limiter.with_rules([rule]), 32, 20).await;
}

#[tokio::test]
async fn layer_with_rules_uses_on_error_without_redis() {
    let redis = Server::start(Engine::Redis70);
    let limiter = limiter(&redis).await;
    drop(redis);
    let rule: Rule = "gcra:1/1d".parse().unwrap();
    let rules = [(OnError::Allow, 200), (OnError::Deny, 429)];
    for (on_error, expected) in rules {
        let store = limiter.with_rules([rule.on_error(on_error)]);
        let layer = RateLimitLayer::new(store, rule.policy().clone());
        let answer = layer.layer(Counted::default()).oneshot(Request::new(())).await.unwrap();
        assert_eq!(answer.status(), expected);
    }
    // And without one, the layer does.
    let layer = RateLimitLayer::new(limiter, rule.policy().clone());
    let answer = layer.layer(Counted::default()).oneshot(Request::new(())).await.unwrap();
    assert_eq!(answer.status(), 503);
}
