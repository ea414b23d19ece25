//! A store of which the time is tokio's, which tests let pass.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use sluicegate_core::{Decision, Entry, Operation, Policy, Store, Timestamp, apply};
use tokio::{task::yield_now, time::Instant};

pub(crate) struct Virtual {
    start: Instant,
    entries: Mutex<HashMap<Vec<u8>, Option<Entry>>>,
    /// Whether it answers without a future.
    at_once: bool,
    away: AtomicBool,
}

/// The store is away.
#[derive(Debug)]
pub(crate) struct Away;

impl fmt::Display for Away {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("nobody answers")
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
        if self.away.load(Relaxed) {
            return Err(Away);
        }
        let now = Timestamp::from_micros(1_000_000_000_000).unwrap() + self.start.elapsed();
        let mut entries = self.entries.lock().unwrap();
        let entry = entries.entry(key.to_vec()).or_default();
        Ok(apply(policy, entry, now, operation).expect("only what can be reserved is"))
    }
}

impl Store for Virtual {
    type Error = Away;

    async fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, Away> {
        yield_now().await;
        self.decide(key, policy, operation)
    }

    fn apply_now(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Option<Result<Decision, Away>> {
        self.at_once.then(|| self.decide(key, policy, operation))
    }
}
