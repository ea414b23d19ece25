//! The caches around an operation.

use std::time::Duration;

use sluicegate_core::{Outcome, Retry};

use super::*;
use crate::{Options, local::lease::LeaseOutcome};

/// The future of a refund may be dropped after the refund was sent, and another request cached a denial.
#[tokio::test]
async fn begin_of_a_refund_or_reset_drops_denials_cached_until_it_ends() {
    let store = new_store("redis://127.0.0.1/");
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

fn new_store(url: &str) -> RedisStore {
    let options = Options { deadline: Duration::from_secs(30), ..Options::default() };
    RedisStore::new(url, options).unwrap()
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
    assert_eq!(inner.leases.granted(b"k", &policy, (100, 1), (token, now), &decision), 0);
}

fn forfeited(inner: &Inner) -> u64 {
    inner.context.counts.lease_forfeited.read()
}

#[tokio::test]
async fn begin_of_a_reset_forfeits_units_granted_until_it_ends() {
    let store = new_store("redis://127.0.0.1/");
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
    let store = new_store("redis://127.0.0.1/");
    let inner = store.inner();
    let guard = inner.begin(b"k", Operation::Refund(30));
    add_leased_units(inner);
    drop(guard);
    let owed = || {
        let [unspent] = &*inner.leases.expired(None) else { panic!("one lease") };
        (unspent.left, unspent.owed(inner.context.now(), Duration::ZERO))
    };
    assert_eq!(owed(), (99, 69));
    add_leased_units(inner);
    let _guard = inner.begin(b"k", Operation::Refund(30));
    assert_eq!((owed(), forfeited(inner)), ((99, 69), 0));
}
