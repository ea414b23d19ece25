//! Where the state of keys is kept: in this process, or in Redis or Valkey.
//!
//! Who decides goes through [`Home::ask`], which waits for nobody where the state is here. Only what
//! answers RESP asks a [`MemoryStore`] itself, for the sake of its batches.

use std::{borrow::Cow, io};

use sluicegate_core::{Entry, Operation, Policy, ReserveError, Timestamp};
use sluicegate_memory as memory;
use sluicegate_memory::MemoryStore;
use sluicegate_redis as redis;
use sluicegate_redis::{
    Answer, MultiKeyAnswer, OnError, RedisStore, RoundTrips, Source, StoreError,
    script::TEST_PREFIX,
};
use tokio::runtime::Handle;

use crate::{Config, StoreConfig, store::snapshot_file};

/// Where the state of keys is kept.
#[expect(clippy::large_enum_variant, reason = "there is one, which every decision looks into")]
#[derive(Debug)]
pub(crate) enum Home {
    /// In this process.
    Memory(MemoryStore),
    /// In Redis or Valkey, by its own clock: unless `test_clock` says that requests tell the time, of
    /// keys that no other server asks about.
    Redis { store: RedisStore, test_clock: bool },
}

/// A policy as its home knows it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum HomeRule {
    Memory(memory::PreparedPolicy),
    Redis(redis::PreparedPolicy),
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
    pub(crate) const fn memory(&self) -> Option<&memory::PreparedPolicy> {
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
            options.prefix = TEST_PREFIX.to_vec();
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
        Ok(Self::Redis { store, test_clock: config.test_clock })
    }

    /// The rule of a policy, to be kept by who asks often. `on_error` says what is answered while a
    /// store elsewhere is away.
    pub(crate) fn rule(&self, policy: &Policy, on_error: OnError, now: Timestamp) -> HomeRule {
        match self {
            Self::Memory(store) => HomeRule::Memory(store.prepare(policy, now)),
            Self::Redis { store, .. } => HomeRule::Redis(store.prepare(policy, on_error)),
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
            // Boxed: where the state is here, nobody is to carry about the room that this takes.
            Self::Redis { store, test_clock: false } => {
                let rule = elsewhere(store, rule);
                Ok(Box::pin(store.ask(key, &rule, operation)).await?)
            }
            Self::Redis { store, test_clock: true } => {
                let rule = elsewhere(store, rule);
                let decision = Box::pin(store.ask_at(key, &rule, operation, now)).await?;
                Ok(Answer { decision, source: Source::Store })
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
            Self::Redis { test_clock: true, .. } => {
                let mut answers = Vec::with_capacity(questions.len());
                for Question { key, rule, operation } in questions {
                    answers.push(self.ask(key, rule, *operation, now).await);
                }
                answers
            }
            Self::Redis { store, test_clock: false } => {
                let rules: Vec<_> = questions.iter().map(|it| elsewhere(store, it.rule)).collect();
                let questions = questions.iter().zip(&rules).map(|(question, rule)| {
                    let Question { key, operation, .. } = *question;
                    redis::KeyedOperation { key, policy: rule, operation }
                });
                let questions: Vec<_> = questions.collect();
                let answers = store.ask_many(&questions).await;
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
                let rules: Vec<_> = takes.iter().map(|take| local(store, take.rule, now)).collect();
                let takes = takes.iter().zip(&rules);
                let takes: Vec<_> = takes
                    .map(|(&Take { key, cost, .. }, rule)| memory::KeyedTake {
                        key,
                        policy: rule,
                        cost,
                    })
                    .collect();
                let joint = if stores {
                    store.take_together(&takes, now)
                } else {
                    store.peek_together(&takes, now)
                };
                Ok(MultiKeyAnswer { joint: joint.ok_or_else(none)?, source: Source::Store })
            }
            Self::Redis { store, test_clock } => {
                let rules: Vec<_> = takes.iter().map(|it| elsewhere(store, it.rule)).collect();
                let takes = takes.iter().zip(&rules);
                let takes: Vec<_> = takes
                    .map(|(&Take { key, cost, .. }, rule)| redis::KeyedTake {
                        key,
                        policy: rule,
                        cost,
                    })
                    .collect();
                Ok(match (test_clock, stores) {
                    (false, true) => Box::pin(store.take_together(&takes)).await?,
                    (false, false) => Box::pin(store.peek_together(&takes)).await?,
                    (true, true) => {
                        let joint = Box::pin(store.take_together_at(&takes, now)).await?;
                        MultiKeyAnswer { joint, source: Source::Store }
                    }
                    (true, false) => {
                        let joint = Box::pin(store.peek_together_at(&takes, now)).await?;
                        MultiKeyAnswer { joint, source: Source::Store }
                    }
                })
            }
        }
    }

    /// Makes `key` as if never used. Whether there was state that had not recovered.
    pub(crate) async fn reset(&self, key: &[u8], now: Timestamp) -> Result<bool, Trouble> {
        match self {
            Self::Memory(store) => Ok(store.reset(key, now)),
            Self::Redis { store, .. } => {
                let there = match self.read(key, now, |_, _| ()).await {
                    // It cannot be read, but there it is.
                    Err(Trouble::State(text)) if text.starts_with("SGSTATE") => true,
                    entry => entry?.is_some(),
                };
                // All rules reset alike.
                let any = store.prepare(&any_policy(), OnError::default());
                let _ = store.ask(key, &any, Operation::Reset).await?;
                Ok(there)
            }
        }
    }

    /// Gives back `cost` units of `key`, once and without waiting for that.
    pub(crate) fn give_back(&self, key: &[u8], rule: &HomeRule, cost: u32, now: Timestamp) {
        let refund = Operation::Refund(cost);
        match self {
            Self::Memory(store) => {
                let _ = here(store, Question { key, rule, operation: refund }, now);
            }
            Self::Redis { store, .. } => {
                let key: Box<[u8]> = key.into();
                let (store, rule) = (store.clone(), elsewhere(store, rule).into_owned());
                let runtime = store.options().runtime.clone();
                runtime.unwrap_or_else(Handle::current).spawn(async move {
                    if let Err(error) = store.ask(&key, &rule, refund).await {
                        tracing::debug!(%error, "could not return unused units");
                    }
                });
            }
        }
    }

    /// What `read` makes of the state of `key`, if it has any that has not recovered, and of the time by
    /// which it stands there. State in this process is not copied, since it may be large: `read` holds its
    /// lock, and must neither take long nor call the store.
    pub(crate) async fn read<R>(
        &self,
        key: &[u8],
        now: Timestamp,
        read: impl FnOnce(&Entry, Timestamp) -> R,
    ) -> Result<Option<R>, Trouble> {
        let if_live =
            |entry: &Entry, now| (!entry.lifetime(now).is_zero()).then(|| read(entry, now));
        match self {
            Self::Memory(store) => Ok(store.with_entry(key, |entry| if_live(entry, now)).flatten()),
            Self::Redis { store, test_clock } => {
                let (entry, by_store) = store.entry(key).await?;
                let now = if *test_clock { now } else { by_store };
                Ok(entry.and_then(|entry| if_live(&entry, now)))
            }
        }
    }

    /// Why requests are denied whatever their limits say: the store is unavailable, and what is answered
    /// without it is a denial.
    pub(crate) fn not_ready(&self, on_error: OnError) -> Option<String> {
        let Self::Redis { store, .. } = self else { return None };
        let why = store.unavailable().filter(|_| on_error == OnError::Deny)?;
        Some(format!("the store is unavailable, and requests are denied (on_error: deny): {why}"))
    }

    /// Round trips to a store elsewhere so far.
    pub(crate) fn round_trips(&self) -> RoundTrips {
        match self {
            Self::Memory(_) => RoundTrips::default(),
            Self::Redis { store, .. } => store.round_trips(),
        }
    }

    /// The store, where it is in this process.
    pub(crate) const fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis { .. } => None,
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

/// A rule as the store in this process knows it.
fn local<'a>(
    store: &MemoryStore,
    rule: &'a HomeRule,
    now: Timestamp,
) -> Cow<'a, memory::PreparedPolicy> {
    match rule {
        HomeRule::Memory(rule) => Cow::Borrowed(rule),
        HomeRule::Redis(rule) => Cow::Owned(store.prepare(rule.policy(), now)),
    }
}

/// A rule as this store knows it; one of another home says the same, but nothing of `on_error`.
fn elsewhere<'a>(store: &RedisStore, rule: &'a HomeRule) -> Cow<'a, redis::PreparedPolicy> {
    match rule {
        HomeRule::Redis(rule) => Cow::Borrowed(rule),
        HomeRule::Memory(rule) => Cow::Owned(store.prepare(rule.policy(), OnError::default())),
    }
}

fn any_policy() -> Policy {
    "gcra:1/1s".parse().expect("it is a policy")
}
