//! Limits in memory, or in Redis or Valkey.

use std::time::Duration;

use sluicegate_core::{Decision, Operation, Outcome, Policy, Retry, Store};
use sluicegate_redis::{KeyedOperation, RedisStore};
use tokio::time::{Instant, sleep};

use crate::{Answer, Counters, Error, LocalLimiter, Options, Rule, Source, local::wait_operation};

/// Limits in this process, or in Redis or Valkey for all processes together.
///
/// Cheap to clone; all clones share their state. Keys are any bytes. The usage of a key carries over from one
/// policy to another. A key should therefore name the client and what is limited: `login:user7`.
#[derive(Clone, Debug)]
pub struct Limiter(Backend);

#[derive(Clone, Debug)]
enum Backend {
    Local(LocalLimiter),
    Redis(RedisStore),
}

impl Limiter {
    /// Limits in this process, with up to 1 GiB of state.
    #[must_use]
    pub fn in_memory() -> Self {
        LocalLimiter::new().into()
    }

    /// Connects to Redis or Valkey at `url`: `redis://[[user]:password@]host[:port][/db]`,
    /// `rediss://` for TLS, `redis+cluster://host,host`, `redis+sentinel://host,host/name`.
    ///
    /// ```no_run
    /// use sluicegate::{Limiter, OnError, Rule};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::connect("redis://127.0.0.1/").await?;
    /// let rule = "gcra:30/60s:burst=16".parse::<Rule>()?.on_error(OnError::Allow);
    /// if !limiter.take("user7", &rule, 1).await?.allowed() {
    ///     println!("too many");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Settings`] if the URL is invalid, [`Error::Unavailable`] if the store does not answer.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        RedisStore::connect(url).await.map(Self::from)
    }

    /// [`Limiter::connect`] with options: deadline, key prefix, bounds, TLS.
    ///
    /// # Errors
    /// As [`Limiter::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, Error> {
        RedisStore::connect_with(url, options).await.map(Self::from)
    }

    /// Takes `cost` units, all or none.
    ///
    /// ```
    /// use sluicegate::{Limiter, Retry, Rule};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let rule: Rule = "gcra:1/1s:burst=3,fixed-window:100/day".parse()?;
    /// assert!(limiter.take("user7", &rule, 3).await?.allowed());
    /// let denied = limiter.take("user7", &rule, 1).await?;
    /// assert!(matches!(denied.retry(), Some(Retry::After(wait)) if wait.as_secs_f64() <= 1.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the key holds a value that Sluicegate did not write. While the store is
    /// unavailable, [`Rule::on_error`] decides.
    pub async fn take(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
    ) -> Result<Answer, Error> {
        self.ask(key.as_ref(), rule, Operation::Take(cost)).await
    }

    /// Returns what [`Limiter::take`] would return, and changes nothing.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn peek(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
    ) -> Result<Answer, Error> {
        self.ask(key.as_ref(), rule, Operation::Peek(cost)).await
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards. Later requests
    /// wait until the units are available again.
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`Error::Unavailable`] or [`Error::Timeout`] while the store is unavailable.
    pub async fn charge(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
    ) -> Result<Answer, Error> {
        self.ask(key.as_ref(), rule, Operation::Charge(cost)).await
    }

    /// Gives back up to `cost` of the units in use.
    ///
    /// # Errors
    /// As [`Limiter::charge`]. The store may have executed the refund: do not repeat it.
    pub async fn refund(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
    ) -> Result<Answer, Error> {
        self.ask(key.as_ref(), rule, Operation::Refund(cost)).await
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, Rule};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let rule: Rule = "gcra:1/1s:burst=1".parse()?;
    /// let first = limiter.reserve("api", &rule, 1, Duration::from_secs(5)).await?;
    /// let second = limiter.reserve("api", &rule, 1, Duration::from_secs(5)).await?;
    /// assert!(first.delay().is_zero() && second.delay().as_secs_f64() > 0.9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`Error::Reserve`] unless every limit is of the gcra family or a
    /// `leaky-queue`.
    pub async fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Answer, Error> {
        self.ask(key.as_ref(), rule, Operation::Reserve { cost, max_wait }).await
    }

    /// Waits until `cost` units are taken. Returns a denial immediately if that cannot succeed before
    /// `timeout`.
    ///
    /// With limits of the gcra family and `leaky-queue`, this is one reservation: waiting requests pass in
    /// arrival order and evenly spaced, those of other processes included. A future that is dropped while it
    /// waits has used its units. With other limits, this tries again after each retry time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, Rule};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let rule: Rule = "leaky-queue:100/1s".parse()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("api", &rule, 1, Duration::from_secs(60)).await?.allowed());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let (key, start) = (key.as_ref(), Instant::now());
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let answer = self.ask(key, rule, wait_operation(rule.policy(), cost, left)).await?;
            match answer.outcome {
                Outcome::Allow { delay } => {
                    sleep(delay).await;
                    return Ok(answer);
                }
                Outcome::Deny { retry: Retry::After(wait) }
                    if wait <= left && asks_again(rule, &answer) =>
                {
                    sleep(wait).await;
                }
                Outcome::Deny { .. } => return Ok(answer),
            }
        }
    }

    /// Resets the key, for every policy.
    ///
    /// # Errors
    /// As [`Limiter::charge`].
    pub async fn reset(&self, key: impl AsRef<[u8]>, rule: &Rule) -> Result<Answer, Error> {
        self.ask(key.as_ref(), rule, Operation::Reset).await
    }

    /// Makes independent takes from several keys in one round trip. The answers are in the same order.
    ///
    /// ```
    /// use sluicegate::{Limiter, Rule};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let rule: Rule = "gcra:30/60s".parse()?;
    /// let answers = limiter.take_many(&[("user7", &rule, 1), ("user8", &rule, 31)]).await;
    /// assert!(answers[0].as_ref().unwrap().allowed());
    /// assert!(!answers[1].as_ref().unwrap().allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take_many<K: AsRef<[u8]>>(
        &self,
        takes: &[(K, &Rule, u32)],
    ) -> Vec<Result<Answer, Error>> {
        match &self.0 {
            Backend::Local(local) => {
                let take = |(key, rule, cost): &(K, &Rule, u32)| {
                    Ok(here(local.take(key.as_ref(), rule, *cost)))
                };
                takes.iter().map(take).collect()
            }
            Backend::Redis(store) => {
                let take = |(key, rule, cost): &'_ (K, &'_ Rule, u32)| {
                    (key.as_ref().to_vec(), rule.redis().clone(), Operation::Take(*cost))
                };
                let owned: Vec<_> = takes.iter().map(take).collect();
                let questions = owned.iter().map(|&(ref key, ref rule, operation)| {
                    KeyedOperation { key, policy: rule, operation }
                });
                let questions: Vec<_> = questions.collect();
                store.ask_many(&questions).await
            }
        }
    }

    /// Applies any [`Operation`].
    ///
    /// # Errors
    /// As the method for that operation.
    pub async fn ask(
        &self,
        key: &[u8],
        rule: &Rule,
        operation: Operation,
    ) -> Result<Answer, Error> {
        match &self.0 {
            Backend::Local(local) => Ok(here(local.ask(key, rule, operation)?)),
            Backend::Redis(store) => store.ask(key, rule.redis(), operation).await,
        }
    }

    /// Applies an operation without a future, if the state is in this process.
    pub(crate) fn ask_now(
        &self,
        key: &[u8],
        rule: &Rule,
        operation: Operation,
    ) -> Option<Result<Decision, Error>> {
        match &self.0 {
            Backend::Local(local) => Some(local.ask(key, rule, operation).map_err(Error::from)),
            Backend::Redis(_) => None,
        }
    }

    /// Decisions by source, and other counts; all zero without Redis.
    #[must_use]
    pub fn counters(&self) -> Counters {
        match &self.0 {
            Backend::Local(_) => Counters::default(),
            Backend::Redis(store) => store.counters(),
        }
    }

    /// Gives unused leased units back to the store. Without this call, they are forfeited.
    pub async fn close(&self) {
        if let Backend::Redis(store) = &self.0 {
            store.close().await;
        }
    }
}

/// Whether a denial is worth another question later: a reservation has said all there is, unless it was
/// not the store that said so.
fn asks_again(rule: &Rule, answer: &Answer) -> bool {
    !rule.policy().can_reserve() || answer.source == Source::Fallback
}

/// What was decided in this process, where the state is.
fn here(decision: Decision) -> Answer {
    Answer { decision, source: Source::Store }
}

impl Store for Limiter {
    type Error = Error;

    async fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, Error> {
        match &self.0 {
            Backend::Local(local) => Ok(local.apply(key, policy, operation).await?),
            Backend::Redis(store) => store.apply(key, policy, operation).await,
        }
    }

    #[inline(always)]
    fn apply_now(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Option<Result<Decision, Error>> {
        match &self.0 {
            Backend::Local(local) => Some(local.decide(key, policy, operation)),
            Backend::Redis(_) => None,
        }
    }
}

impl From<LocalLimiter> for Limiter {
    fn from(local: LocalLimiter) -> Self {
        Self(Backend::Local(local))
    }
}

impl From<RedisStore> for Limiter {
    fn from(store: RedisStore) -> Self {
        Self(Backend::Redis(store))
    }
}
