//! A store of which the time is tokio's, which tests let pass.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use sluicegate_core::{
    Answer, Applied, Decision, Entry, Operation, Outcome, Policy, ReadEntry, Request, Retry,
    Source, Store, StoreStatus, TableUsage, Timestamp, apply,
};
use tokio::{task::yield_now, time::Instant};

#[derive(Debug)]
pub(crate) struct Virtual {
    start: Instant,
    entries: Mutex<HashMap<Vec<u8>, Option<Entry>>>,
    /// Whether it answers without a future.
    at_once: bool,
    away: AtomicBool,
    /// The source of its answers.
    source: Mutex<Source>,
    /// Whether the answer to the next hold is lost: the store decides it, and the request gets a fallback denial.
    loses_answer: AtomicBool,
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
        let (away, source) = (AtomicBool::new(false), Mutex::new(Source::Store));
        let loses_answer = AtomicBool::new(false);
        Self { start, entries: Mutex::default(), at_once, away, source, loses_answer }
    }

    pub(crate) fn lose_next_answer(&self) {
        self.loses_answer.store(true, Relaxed);
    }

    pub(crate) fn set_source(&self, source: Source) {
        *self.source.lock().unwrap() = source;
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
            apply(policy, entry, now, operation).expect("the policy supports the operation")
        })
    }

    fn answer(&self, decision: Decision) -> Answer {
        Answer::new(decision, *self.source.lock().unwrap())
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

fn fallback_denial(decision: Decision) -> Answer {
    let outcome = Outcome::Deny { retry: Retry::After(Duration::from_millis(100)) };
    Answer::new(Decision { outcome, ..decision }, Source::Fallback)
}

impl Store for Virtual {
    type Error = Away;

    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, Away>> {
        let one = request.single().expect("the middleware takes from one key");
        let decide = move || {
            let decision = self.decide(one.key, one.policy.policy(), one.operation)?;
            let is_lost = one.operation.id().is_some() && self.loses_answer.swap(false, Relaxed);
            Ok(if is_lost { fallback_denial(decision) } else { self.answer(decision) })
        };
        if self.at_once {
            return Applied::Now(decide());
        }
        Applied::later(async move {
            yield_now().await;
            decide()
        })
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
