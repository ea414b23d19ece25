//! Where the state of keys is kept: in this process, or in Redis or Valkey.
//!
//! Who decides goes through [`Home::ask`], which waits for nobody where the state is here. Only what
//! answers RESP asks a [`MemoryStore`] itself, for the sake of its batches.

use std::{borrow::Cow, cell::Cell, io, sync::Arc};

use sluicegate_core::{
    Answer, Applied, Clock, Entry, KeyedOperation, KeyedTake, MultiKeyAnswer, MultiKeyOperation,
    OnError, Operation, Policy, PreparedPolicy, ReserveError, Source, Store, StoreError, Timestamp,
};
use sluicegate_memory as memory;
use sluicegate_memory::MemoryStore;
use sluicegate_redis::{RedisStore, RoundTrips, TestClock};
use tokio::runtime::Handle;

use crate::{Config, StoreConfig, store::snapshot_file};

/// Where the state of keys is kept.
#[expect(clippy::large_enum_variant, reason = "there is one, which every decision looks into")]
#[derive(Debug)]
pub(crate) enum Home {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis or Valkey, by its own clock, or by the [`RequestClock`].
    Redis(RedisStore),
}

/// A policy as its home knows it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum HomeRule {
    Memory(memory::NumberedPolicy),
    Redis(PreparedPolicy),
}

/// One of several questions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    /// Whom it is about.
    pub(crate) key: &'a [u8],
    /// The rule.
    pub(crate) rule: &'a HomeRule,
    /// What is asked.
    pub(crate) operation: Operation,
}

/// One of several keys that are asked together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Take<'a> {
    /// Whom it is about.
    pub(crate) key: &'a [u8],
    /// The rule.
    pub(crate) rule: &'a HomeRule,
    /// Units asked for.
    pub(crate) cost: u32,
}

/// Why a question got no answer. Its text is a whole error reply, the class word first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// The policy cannot be reserved from.
    #[error("ERR {0}")]
    Reserve(#[from] ReserveError),
    /// The key holds something else: `SGSTATE` or `WRONGTYPE`, in the words of every backend.
    #[error("{0}")]
    State(String),
    /// The store cannot be asked, or does not answer in time; what was asked may have been done.
    #[error("SGSTORE {0}")]
    Away(String),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Reserve(error) => Self::Reserve(error),
            StoreError::Corrupt(_, text) => Self::State(text),
            error => Self::Away(error.to_string()),
        }
    }
}

impl HomeRule {
    /// The policy.
    pub(crate) fn policy(&self) -> &Policy {
        match self {
            Self::Memory(rule) => rule.policy(),
            Self::Redis(rule) => rule.policy(),
        }
    }

    /// As the store in this process knows it.
    #[inline]
    pub(crate) const fn memory(&self) -> Option<&memory::NumberedPolicy> {
        match self {
            Self::Memory(rule) => Some(rule),
            Self::Redis(_) => None,
        }
    }
}

impl Home {
    /// Where `config` says. A store elsewhere that does not answer is told of, and asked again later.
    pub(crate) async fn open(config: &Config, now: Timestamp) -> io::Result<Self> {
        let Some(StoreConfig { url, options, on_error, .. }) = &config.store else {
            let store = snapshot_file::load(config, now)?;
            let store = if config.test_clock { store.without_forgetting() } else { store };
            return Ok(Self::Memory(store));
        };
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if config.memory.state_file.is_some() {
            let both = "invalid --state-file together with --store: the store keeps the state; remove one of \
                        them";
            return Err(wrong(both.to_owned()));
        }
        let mut options = options.clone();
        options.runtime = Some(Handle::current());
        options.on_error = *on_error;
        if config.test_clock {
            if !options.prefix.is_empty() {
                let both = "invalid --store-prefix together with --test-clock: keys of a test clock have the \
                            prefix `sg:test:`; remove one of them";
                return Err(wrong(both.to_owned()));
            }
            options.test_clock = Some(TestClock::new(Arc::new(RequestClock)));
        }
        let store = RedisStore::new(url, options).map_err(|error| wrong(error.to_string()))?;
        match store.status().await {
            Ok(status) => {
                status.problems().for_each(|problem| tracing::warn!("store: {problem}"));
            }
            // The store has logged that it is unavailable.
            Err(_) if store.unavailable().is_some() => {}
            Err(error) => tracing::warn!(%error, "cannot check the store"),
        }
        Ok(Self::Redis(store))
    }

    /// The rule of a policy, to be kept by who asks often. `on_error` says what is answered while a
    /// store elsewhere is away.
    pub(crate) fn rule(&self, policy: &Policy, on_error: OnError, now: Timestamp) -> HomeRule {
        match self {
            Self::Memory(store) => HomeRule::Memory(store.prepare(policy, now)),
            Self::Redis(_) => HomeRule::Redis(PreparedPolicy::new(policy).on_error(on_error)),
        }
    }

    /// Brings what is kept of a key near, where that is here, for a question that follows soon.
    pub(crate) fn touch(&self, key: &[u8]) {
        if let Self::Memory(store) = self {
            store.prefetch(key);
        }
    }

    /// Applies `operation` to `key`. `now` is the time where the state is here; Redis has its own.
    pub(crate) async fn ask(
        &self,
        key: &[u8],
        rule: &HomeRule,
        operation: Operation,
        now: Timestamp,
    ) -> Result<Answer, Trouble> {
        match self {
            Self::Memory(store) => here(store, Question { key, rule, operation }, now),
            Self::Redis(store) => {
                let rule = elsewhere(rule);
                Ok(at(now, || store.apply(key, &rule, operation)).await?)
            }
        }
    }

    /// Answers questions, each for itself: their answers in the same order. A store elsewhere is sent
    /// all of them at once.
    pub(crate) async fn ask_many(
        &self,
        questions: &[Question<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, Trouble>> {
        match self {
            Self::Memory(store) => questions.iter().map(|&it| here(store, it, now)).collect(),
            Self::Redis(store) => {
                let rules: Vec<_> = questions.iter().map(|it| elsewhere(it.rule)).collect();
                let questions = questions.iter().zip(&rules).map(|(question, rule)| {
                    let Question { key, operation, .. } = *question;
                    KeyedOperation { key, policy: rule, operation }
                });
                let questions: Vec<_> = questions.collect();
                let answers = at(now, || store.apply_many(&questions)).await;
                answers.into_iter().map(|answer| answer.map_err(Trouble::from)).collect()
            }
        }
    }

    /// Takes from several keys, from all of them or from none; or (not `stores`) tells what that would be
    /// answered. A key that is given twice is asked once, the first time.
    pub(crate) async fn take_together(
        &self,
        takes: &[Take<'_>],
        stores: bool,
        now: Timestamp,
    ) -> Result<MultiKeyAnswer, Trouble> {
        let none = || Trouble::Away("missing key: expected at least one".to_owned());
        match self {
            Self::Memory(store) => {
                let rules: Vec<_> = takes.iter().map(|take| elsewhere(take.rule)).collect();
                let takes = takes.iter().zip(&rules);
                let takes = takes.map(|(&Take { key, cost, .. }, rule)| KeyedTake {
                    key,
                    policy: rule,
                    cost,
                });
                let takes: Vec<_> = takes.collect();
                let joint = if stores {
                    store.take_together(&takes, now)
                } else {
                    store.peek_together(&takes, now)
                };
                Ok(MultiKeyAnswer { joint: joint.ok_or_else(none)?, source: Source::Store })
            }
            Self::Redis(store) => {
                let rules: Vec<_> = takes.iter().map(|it| elsewhere(it.rule)).collect();
                let takes = takes.iter().zip(&rules);
                let takes = takes.map(|(&Take { key, cost, .. }, rule)| KeyedTake {
                    key,
                    policy: rule,
                    cost,
                });
                let takes: Vec<_> = takes.collect();
                let operation =
                    if stores { MultiKeyOperation::Take } else { MultiKeyOperation::Peek };
                Ok(at(now, || store.apply_multi_key(operation, &takes)).await?)
            }
        }
    }

    /// Makes `key` as if never used. Whether there was state that had not recovered.
    pub(crate) async fn reset(&self, key: &[u8], now: Timestamp) -> Result<bool, Trouble> {
        match self {
            Self::Memory(store) => Ok(store.reset(key, now)),
            Self::Redis(store) => Ok(at(now, || store.reset(key)).await?),
        }
    }

    /// Gives back `cost` units of `key`, once and without waiting for that.
    pub(crate) fn give_back(&self, key: &[u8], rule: &HomeRule, cost: u32, now: Timestamp) {
        let refund = Operation::Refund(cost);
        match self {
            Self::Memory(store) => {
                let _ = here(store, Question { key, rule, operation: refund }, now);
            }
            Self::Redis(store) => {
                let key: Box<[u8]> = key.into();
                let (store, rule) = (store.clone(), elsewhere(rule).into_owned());
                let runtime = store.options().runtime.clone();
                runtime.unwrap_or_else(Handle::current).spawn(async move {
                    if let Err(error) = at(now, || store.apply(&key, &rule, refund)).await {
                        tracing::debug!(%error, "could not return unused units");
                    }
                });
            }
        }
    }

    /// What `read` makes of the state of `key`, if it has any that has not recovered, and of the time by
    /// which it stands there. State in this process is not copied, since it may be large: `read` holds its
    /// lock, and must neither take long nor call the store.
    pub(crate) async fn read<R: Send>(
        &self,
        key: &[u8],
        now: Timestamp,
        read: impl FnOnce(&Entry, Timestamp) -> R + Send,
    ) -> Result<Option<R>, Trouble> {
        match self {
            Self::Memory(store) => {
                let if_live =
                    |entry: &Entry| (!entry.lifetime(now).is_zero()).then(|| read(entry, now));
                Ok(store.with_entry(key, if_live).flatten())
            }
            Self::Redis(store) => {
                let (mut read, mut result) = (Some(read), None);
                let mut look = |entry: Option<&Entry>, now| {
                    result = entry.and_then(|entry| Some(read.take()?(entry, now)));
                };
                at(now, || store.read(key, &mut look)).await?;
                Ok(result)
            }
        }
    }

    /// Why requests are denied whatever their limits say: the store is unavailable, and what is answered
    /// without it is a denial.
    pub(crate) fn not_ready(&self, on_error: OnError) -> Option<String> {
        let Self::Redis(store) = self else { return None };
        let why = store.unavailable().filter(|_| on_error == OnError::Deny)?;
        Some(format!("the store is unavailable, and requests are denied (on_error: deny): {why}"))
    }

    /// Round trips to a store elsewhere so far.
    pub(crate) fn round_trips(&self) -> RoundTrips {
        match self {
            Self::Memory(_) => RoundTrips::default(),
            Self::Redis(store) => store.round_trips(),
        }
    }

    /// The store, where it is in this process.
    pub(crate) const fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }
}

pub(crate) fn here(
    store: &MemoryStore,
    Question { key, rule, operation }: Question<'_>,
    now: Timestamp,
) -> Result<Answer, Trouble> {
    let decision = match rule {
        HomeRule::Memory(rule) => {
            store.apply_prepared(memory::Request { key, policy: rule, operation }, now)?
        }
        HomeRule::Redis(rule) => store.apply(key, rule.policy(), now, operation)?,
    };
    Ok(Answer { decision, source: Source::Store })
}

/// A rule without the data of a store; one of a store in this process has no `on_error`.
fn elsewhere(rule: &HomeRule) -> Cow<'_, PreparedPolicy> {
    match rule {
        HomeRule::Redis(rule) => Cow::Borrowed(rule),
        HomeRule::Memory(rule) => Cow::Owned(PreparedPolicy::new(rule.policy())),
    }
}

/// The time of the request that this thread decides, for a store with a test clock.
#[derive(Debug)]
struct RequestClock;

thread_local! {
    static REQUEST_TIME: Cell<Timestamp> = const { Cell::new(Timestamp::EPOCH) };
}

impl Clock for RequestClock {
    fn now(&self) -> Timestamp {
        REQUEST_TIME.get()
    }
}

/// Calls an operation of a store at `now`, by the [`RequestClock`] if it has that. A store reads its clock when it is
/// called.
fn at<'a, T>(now: Timestamp, call: impl FnOnce() -> Applied<'a, T>) -> Applied<'a, T> {
    REQUEST_TIME.set(now);
    call()
}
