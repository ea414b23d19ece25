//! The caches around an operation.

use std::time::Duration;

use sluicegate_core::{Decision, Outcome, PreparedPolicy, Retry};

use super::*;
use crate::{Options, lease::LeaseOutcome};

/// The future of a refund may be dropped after the refund was sent, and another request cached a denial.
#[tokio::test]
async fn begin_of_a_refund_or_reset_drops_denials_cached_until_it_ends() {
    let store = new_store();
    let (inner, key) = (store.inner(), b"k");
    let policy: PreparedPolicy = "gcra:1/1h".parse().unwrap();
    let policy = inner.planned(&policy);
    let take = PlannedOperation { key, policy: &policy, operation: Operation::Take(1) };
    let denied = Decision {
        outcome: Outcome::Deny { retry: Retry::After(Duration::from_hours(1)) },
        ..policy.plan.unused_decision
    };
    let now = inner.context.now();
    for operation in [Operation::Refund(1), Operation::Reset, Operation::Charge(1)] {
        let guard = inner.begin(key, operation);
        inner.record(take, inner.denials.begin_query(key, now), &denied);
        assert!(inner.cached_denial(take, now).is_some());
        drop(guard);
        let is_cached = inner.cached_denial(take, now).is_some();
        assert_eq!(is_cached, operation == Operation::Charge(1), "{operation:?}");
    }
}

/// Another policy changes the state, and the denied request may pass: also if the reply comes after another key of the
/// shard was forgotten.
#[tokio::test]
async fn record_under_another_policy_drops_denials() {
    let store = new_store();
    let (inner, key) = (store.inner(), b"k");
    let [policy, other] = ["fixed-window:1/1h", "gcra:1000/1s"].map(|text| {
        let policy: PreparedPolicy = text.parse().unwrap();
        inner.planned(&policy).into_owned()
    });
    let take = PlannedOperation { key, policy: &policy, operation: Operation::Take(1) };
    let denied = Decision {
        outcome: Outcome::Deny { retry: Retry::After(Duration::from_hours(1)) },
        ..policy.plan.unused_decision
    };
    let now = inner.context.now();
    let reserve = Operation::Reserve { cost: 1, max_wait: Duration::ZERO };
    for operation in [Operation::Take(1), Operation::Take(0), Operation::Charge(1), reserve] {
        for is_late in [false, true] {
            for (its_policy, is_cached) in [(&policy, true), (&other, false)] {
                inner.record(take, inner.denials.begin_query(key, now), &denied);
                let token = inner.denials.begin_query(key, now);
                if is_late {
                    // All keys of a shard have one epoch.
                    (0..256_u32).for_each(|other| inner.denials.forget(&other.to_le_bytes()));
                }
                let planned = PlannedOperation { key, policy: its_policy, operation };
                inner.record(planned, token, &its_policy.plan.unused_decision);
                let found = inner.cached_denial(take, now).is_some();
                assert_eq!(found, is_cached, "{operation:?} {is_late}");
            }
        }
    }
}

fn new_store() -> RedisStore {
    let options = Options { deadline: Duration::from_secs(30), ..Options::default() };
    RedisStore::new("redis://127.0.0.1/", options).unwrap()
}

/// Adds 99 unspent units to the lease of the key `k`. Nothing drains during a test.
fn add_leased_units(inner: &Inner) {
    let policy: PreparedPolicy = "gcra:1000/365d".parse().unwrap();
    let policy = policy.lease(100).unwrap();
    let policy = inner.planned(&policy);
    let now = inner.context.now();
    let outcome = inner.leases.take(b"k", &policy, 1, now, &mut None);
    let LeaseOutcome::Refill(.., token) = outcome else { panic!("{outcome:?}") };
    let decision =
        Decision { reset_after: Duration::from_hours(24 * 300), ..policy.plan.unused_decision };
    let granted = Chunk { units: 100, cost: 1, decision, window_end: Timestamp::MAX };
    assert_eq!(inner.leases.granted(b"k", &policy, granted, (token, now)), 0);
}

fn forfeited(inner: &Inner) -> u64 {
    inner.context.counts.lease_forfeited.read()
}

#[tokio::test]
async fn begin_of_a_reset_forfeits_units_granted_until_it_ends() {
    let store = new_store();
    let inner = store.inner();
    add_leased_units(inner);
    let guard = inner.begin(b"k", Operation::Reset);
    assert_eq!(forfeited(inner), 99);
    add_leased_units(inner);
    drop(guard);
    assert_eq!(forfeited(inner), 2 * 99);
    assert!(inner.leases.expired(None).is_empty());
}

#[tokio::test]
async fn begin_of_a_refund_lowers_the_debt_of_chunks_granted_until_it_ends() {
    let store = new_store();
    let inner = store.inner();
    let guard = inner.begin(b"k", Operation::Refund(30));
    add_leased_units(inner);
    drop(guard);
    let owed = || {
        let [unspent] = &*inner.leases.expired(None) else { panic!("one lease") };
        (unspent.unspent.units, unspent.unspent.owed(inner.context.now(), Duration::ZERO))
    };
    assert_eq!(owed(), (99, 69));
    add_leased_units(inner);
    let _guard = inner.begin(b"k", Operation::Refund(30));
    assert_eq!((owed(), forfeited(inner)), ((99, 69), 0));
}

/// The certificates say that TLS is wanted: a password must not be sent without it.
#[test]
fn new_certificates_without_tls_is_an_error() {
    let mut options = Options::default();
    options.tls.ca = Some("ca.pem".into());
    let mut client = Options::default();
    client.tls.client = Some(("cert.pem".into(), "key.pem".into()));
    for options in [options, client] {
        let error = RedisStore::new("redis://:password@127.0.0.1/", options).unwrap_err();
        let expected = "invalid store URL for certificates: expected TLS, such as `rediss://`";
        assert_eq!(error, StoreError::Settings(expected.to_owned()));
    }
}
