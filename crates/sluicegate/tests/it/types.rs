//! Traits of the public types, checked by the compiler; and errors that convert.

use std::fmt::Debug;

use sluicegate::{
    Answer, ClockedStore, Error, HoldOutcome, Jitter, LimitError, Limiter, LocalLimiter,
    LocalPermit, ManualClock, MemoryStore, OnError, OperationError, Permit, Policy, PolicyError,
    PreparedPolicy, PushError, RequestError, RuntimeClock, Shaper, Share, SingleLimiter,
    SnapshotError, StoreError, Timestamp, TimestampError, WaitOptions, WhenFull,
};

const fn shared<T: Clone + Debug + Send + Sync + 'static>() {}
const fn owned<T: Debug + Send + Sync + 'static>() {}
const fn error<T: std::error::Error + Send + Sync + 'static>() {}
const fn convertible<T: std::error::Error + Clone + PartialEq + Send + Sync + 'static>()
where
    Error: From<T>,
{
}

const _: () = {
    shared::<Limiter>();
    shared::<LocalLimiter>();
    shared::<LocalLimiter<ManualClock>>();
    shared::<SingleLimiter>();
    shared::<SingleLimiter<ManualClock>>();
    shared::<ManualClock>();
    shared::<RuntimeClock>();
    shared::<PreparedPolicy>();
    shared::<WaitOptions>();
    shared::<Jitter>();
    shared::<Answer>();
    owned::<Permit>();
    owned::<LocalPermit>();
    owned::<LocalPermit<ManualClock>>();
    owned::<HoldOutcome>();
    owned::<HoldOutcome<Vec<Permit>>>();
    owned::<Shaper<String>>();
    owned::<ClockedStore<ManualClock>>();
    convertible::<Error>();
    convertible::<LimitError>();
    convertible::<OperationError>();
    convertible::<PolicyError>();
    convertible::<PushError<u8>>();
    convertible::<RequestError>();
    convertible::<StoreError>();
    convertible::<TimestampError>();
    error::<SnapshotError>();
};

/// Futures can be spawned.
#[tokio::test]
async fn futures_of_limiters_are_send() {
    fn send<F: Future + Send>(future: F) -> F {
        future
    }
    let (local, limiter) = (LocalLimiter::new(), Limiter::in_memory());
    let policy: PreparedPolicy = "gcra:9/1s".parse().unwrap();
    let timeout = std::time::Duration::ZERO;
    assert!(send(local.until_ready("k", &policy, 1, timeout)).await.allowed());
    assert!(send(limiter.until_ready("k", &policy, 1, timeout)).await.unwrap().allowed());
    assert!(send(limiter.take("k", &policy, 1)).await.unwrap().allowed());
    assert_eq!(send(limiter.take_many(vec![("k".to_owned(), policy.clone(), 1)])).await.len(), 1);
    let (ttl, holds) =
        (std::time::Duration::from_secs(9), || [("h".to_owned(), policy.clone(), 1)]);
    let held = send(limiter.hold("h", &policy, 1, ttl)).await.unwrap();
    let permit = held.into_permit().expect("the key is unused");
    assert!(send(permit.renew()).await.unwrap().allowed());
    assert!(send(permit.settle(1)).await.unwrap().allowed());
    assert!(send(limiter.hold_with_id("h", &policy, "id", 1, ttl)).await.unwrap().allowed());
    assert!(send(limiter.hold_all(holds(), ttl)).await.unwrap().allowed());
    let held = send(limiter.hold_until_ready("h", &policy, 1, ttl, timeout)).await;
    assert!(held.unwrap().allowed());
    assert!(send(limiter.hold_all_until_ready(holds(), ttl, timeout)).await.unwrap().allowed());
    let held = send(local.hold_until_ready("h", &policy, 1, ttl, timeout)).await;
    assert!(held.unwrap().allowed());
    assert!(send(local.hold_all_until_ready(holds(), ttl, timeout)).await.unwrap().allowed());
    let shaper = Shaper::new(limiter, "s", &"leaky-queue:1/1s".parse().unwrap(), 1).unwrap();
    shaper.push(7).unwrap();
    assert_eq!(send(shaper.next()).await, Ok(Some(7)));
}

#[test]
fn limiter_debug_is_short_and_shows_no_hash_keys() {
    let keys = [0x0123_4567_89ab_cdef, 0x1234_5678_9abc_def0, 0x2345_6789_abcd_ef01, 42_424_242];
    let table = MemoryStore::with_hash_keys(keys, 4 << 20, WhenFull::Deny);
    let local = LocalLimiter::from(ClockedStore::new(table, ManualClock::default()));
    let policy: PreparedPolicy = "concurrency:9/1s,fixed-window:9/1h".parse().unwrap();
    let held = local.hold("k", &policy, 1, None).unwrap();
    for shown in [format!("{local:?}"), format!("{:?}", Limiter::from(local.clone()))] {
        assert!(shown.len() < 300 && shown.contains("keys: 1, "), "{shown}");
        for key in keys {
            assert!(!shown.contains(&key.to_string()), "{shown}");
        }
    }
    drop(held);
}

#[test]
fn error_of_every_part_converts_and_keeps_its_text() {
    fn policy() -> Result<Policy, Error> {
        Ok("gcra:0/1s".parse::<Policy>()?)
    }
    fn share() -> Result<Share, Error> {
        Ok(Share::of(2, 1)?)
    }
    fn lease() -> Result<PreparedPolicy, Error> {
        Ok("leaky-queue:1/1s".parse::<PreparedPolicy>()?.lease(2)?)
    }
    fn reserve() -> Result<bool, Error> {
        let policy = "fixed-window:1/1s".parse::<PreparedPolicy>()?;
        Ok(LocalLimiter::new().reserve("k", &policy, 1, std::time::Duration::ZERO)?.allowed())
    }
    fn time() -> Result<Timestamp, Error> {
        Ok(Timestamp::from_micros(u64::MAX)?)
    }
    fn on_error() -> Result<OnError, Error> {
        Ok("open".parse::<OnError>()?)
    }
    fn push() -> Result<(), Error> {
        let policy = "leaky-queue:1/1s".parse::<PreparedPolicy>()?;
        Ok(Shaper::new(Limiter::in_memory(), "k", &policy, 0)?.push(1)?)
    }
    assert!(
        matches!(policy(), Err(Error::Policy(error)) if error.to_string().starts_with("invalid limit `0`"))
    );
    assert!(matches!(share(), Err(Error::Limit(LimitError::Domain { name: "share", .. }))));
    assert!(matches!(lease(), Err(Error::Store(StoreError::Settings(_)))));
    assert!(matches!(reserve(), Err(Error::Store(StoreError::Operation(_)))));
    assert!(
        matches!(time(), Err(Error::Timestamp(error)) if error.to_string().starts_with("invalid time `"))
    );
    assert!(matches!(on_error(), Err(Error::Limit(LimitError::Domain { name: "on_error", .. }))));
    assert_eq!(push(), Err(Error::QueueFull));
    assert_eq!(push().unwrap_err().to_string(), "the queue is full");
}
