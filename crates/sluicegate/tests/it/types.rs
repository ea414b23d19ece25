//! Traits of the public types, checked by the compiler; and errors that convert.

use std::fmt::Debug;

use sluicegate::{
    Error, Jitter, LimitError, Limiter, LocalLimiter, ManualClock, Policy, PreparedPolicy,
    PushError, Shaper, Share, SingleLimiter, StoreError, WaitOptions,
};

const fn shared<T: Clone + Debug + Send + Sync + 'static>() {}
const fn error<T: std::error::Error + Clone + Send + Sync + 'static>() {}

const _: () = {
    shared::<Limiter>();
    shared::<LocalLimiter>();
    shared::<LocalLimiter<ManualClock>>();
    shared::<SingleLimiter>();
    shared::<SingleLimiter<ManualClock>>();
    shared::<ManualClock>();
    shared::<PreparedPolicy>();
    shared::<WaitOptions>();
    shared::<Jitter>();
    error::<Error>();
    error::<PushError<u8>>();
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
        Ok("fixed-window:1/1s".parse::<PreparedPolicy>()?.lease(2)?)
    }
    fn reserve() -> Result<bool, Error> {
        let policy = "fixed-window:1/1s".parse::<PreparedPolicy>()?;
        Ok(LocalLimiter::new().reserve("k", &policy, 1, std::time::Duration::ZERO)?.allowed())
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
    assert_eq!(push(), Err(Error::QueueFull));
    assert_eq!(push().unwrap_err().to_string(), "the queue is full");
}
