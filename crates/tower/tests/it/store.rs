//! A store of which the time is tokio's, which tests let pass.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use sluicegate_core::{
    Answer, Applied, Decision, Entry, HoldOperation, KeyedTake, MultiKeyAnswer, MultiKeyOperation,
    Operation, Policy, PreparedPolicy, ReadEntry, Store, StoreStatus, TableUsage, Timestamp, apply,
    apply_hold,
};
use tokio::{task::yield_now, time::Instant};

#[derive(Debug)]
pub(crate) struct Virtual {
    start: Instant,
    entries: Mutex<HashMap<Vec<u8>, Option<Entry>>>,
    /// Whether it answers without a future.
    at_once: bool,
    away: AtomicBool,
}

/// The store is unavailable.
#[derive(Debug)]
pub(crate) struct Away;

impl fmt::Display for Away {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no reply")
    }
}

impl std::error::Error for Away {}

impl Virtual {
    pub(crate) fn new(at_once: bool) -> Self {
        let start = Instant::now();
        Self { start, entries: Mutex::default(), at_once, away: AtomicBool::new(false) }
    }

    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Relaxed);
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let entries = self.entries.lock().unwrap();
        entries.keys().map(|key| String::from_utf8(key.clone()).unwrap()).collect()
    }

    pub(crate) fn decide(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, Away> {
        self.with_entry(key, |entry, now| {
            apply(policy, entry, now, operation).expect("only what can be reserved is")
        })
    }

    fn with_entry<T>(
        &self,
        key: &[u8],
        decide: impl FnOnce(&mut Option<Entry>, Timestamp) -> T,
    ) -> Result<T, Away> {
        if self.away.load(Relaxed) {
            return Err(Away);
        }
        let now = Timestamp::from_micros(1_000_000_000_000).unwrap() + self.start.elapsed();
        let mut entries = self.entries.lock().unwrap();
        Ok(decide(entries.entry(key.to_vec()).or_default(), now))
    }
}

impl Store for Virtual {
    type Error = Away;

    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, Away>> {
        let decide = move || self.decide(key, policy.policy(), operation).map(Answer::from);
        if self.at_once {
            return Applied::Now(decide());
        }
        Applied::later(async move {
            yield_now().await;
            decide()
        })
    }

    fn apply_hold<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: HoldOperation<'a>,
    ) -> Applied<'a, Result<Answer, Away>> {
        let decide = move || {
            self.with_entry(key, |entry, now| {
                apply_hold(policy.policy(), entry, now, operation).expect("a valid hold")
            })
        };
        if self.at_once {
            return Applied::Now(decide().map(Answer::from));
        }
        Applied::later(async move {
            yield_now().await;
            decide().map(Answer::from)
        })
    }

    fn apply_multi_key<'a>(
        &'a self,
        _: MultiKeyOperation<'a>,
        _: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, Away>> {
        unimplemented!("the middleware takes from one key")
    }

    fn read<'a>(&'a self, _: &'a [u8], _: ReadEntry<'a>) -> Applied<'a, Result<(), Away>> {
        unimplemented!("the middleware reads no state")
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::Local(TableUsage::default())
    }

    fn reset<'a>(&'a self, _: &'a [u8]) -> Applied<'a, Result<bool, Away>> {
        unimplemented!("the middleware resets no key")
    }
}
