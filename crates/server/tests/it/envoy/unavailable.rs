//! An unavailable store: a fallback denial fails the call with `UNAVAILABLE`, whichever setting caused it.

use sluicegate_core::OnError;
use std::time::Duration;

use sluicegate_redis::Options;
use sluicegate_server::{FallbackDenial, StoreConfig};
use sluicegate_testing::{Engine, Server};
use tonic::Code as Failure;

use super::client::{Service, descriptor, limited, request};
use crate::harness::TempDir;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: open
    on_error: allow
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: closed
    on_error: deny
    rate_limit: {unit: year, requests_per_unit: 100}
  - key: share
    on_error: local
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
";

/// A service on `store`, with a fallback.
fn on(store: &Server, folder: &TempDir, on_error: OnError) -> Service {
    with(store, folder, on_error, FallbackDenial::Unavailable)
}

fn with(store: &Server, folder: &TempDir, on_error: OnError, denial: FallbackDenial) -> Service {
    let file = folder.file("rules.yaml");
    std::fs::write(&file, RULES).unwrap();
    Service::with(|config| {
        let mut at = StoreConfig::new(store.url());
        at.redis = Options::default();
        at.redis.deadline = Duration::from_secs(5);
        at.redis.connect_timeout = Duration::from_secs(5);
        at.on_error = on_error;
        config.fallback_denial = denial;
        config.store = Some(at);
        config.rules = vec![file];
    })
}

/// Whether it passes, or the failure of the call.
fn passes(service: &Service, keys: &[&str]) -> Result<bool, Failure> {
    let descriptors = keys.iter().map(|key| match *key {
        "brought" => limited(&[("brought", "x")], 100),
        key => descriptor(&[(key, "x")]),
    });
    let response = service
        .should_rate_limit(request(descriptors.collect()))
        .map_err(|status| status.code())?;
    assert!(response.statuses.iter().all(|status| status.code > 0), "{response:?}");
    Ok(response.overall_code == 1)
}

#[test]
fn fallback_denial_is_unavailable_and_never_over_limit() {
    let (mut store, folder) = (Server::start(Engine::Redis70), TempDir::new());
    let denies = on(&store, &folder, OnError::Deny);
    let allows = on(&store, &folder, OnError::Allow);
    let counts = with(&store, &folder, OnError::Deny, FallbackDenial::TooManyRequests);
    let all = ["user", "tried", "open", "closed", "share", "free", "brought", "unknown"];
    for service in [&denies, &allows] {
        assert_eq!(passes(service, &all), Ok(true));
    }
    store.kill();
    for (keys, without, allowed) in [
        (&["user"][..], Err(Failure::Unavailable), Ok(true)),
        (&["brought"], Err(Failure::Unavailable), Ok(true)),
        // Nothing is enforced by it.
        (&["tried"], Ok(true), Ok(true)),
        (&["open"], Ok(true), Ok(true)),
        (&["closed"], Err(Failure::Unavailable), Err(Failure::Unavailable)),
        // No decision is needed.
        (&["free", "unknown"], Ok(true), Ok(true)),
        // There is one answer for all of them.
        (&["open", "user"], Err(Failure::Unavailable), Ok(true)),
        (&["open", "closed"], Err(Failure::Unavailable), Err(Failure::Unavailable)),
    ] {
        assert_eq!(passes(&denies, keys), without, "{keys:?}");
        assert_eq!(passes(&allows, keys), allowed, "{keys:?}");
        assert_eq!(passes(&counts, keys), Ok(without == Ok(true)), "{keys:?}");
    }
    let mut answers = (0..4).map(|_| passes(&denies, &["share"]));
    let denied = answers.find(|answer| *answer != Ok(true));
    assert_eq!(denied, Some(Err(Failure::Unavailable)), "beyond the local share");
    let mut answers = (0..4).map(|_| passes(&counts, &["share"]));
    assert_eq!(answers.find(|answer| *answer != Ok(true)), Some(Ok(false)));
    // Refunds have no fallback.
    let mut back = descriptor(&[("open", "x")]);
    back.is_negative_hits = true;
    let failed = allows.should_rate_limit(request(vec![back])).unwrap_err();
    assert_eq!(failed.code(), Failure::Unavailable);
    assert!(failed.message().starts_with("nothing was decided: "), "{}", failed.message());

    store.restart();
    sluicegate_testing::eventually_true("the store answers again", || {
        passes(&denies, &["user"]) == Ok(true)
    });
}
