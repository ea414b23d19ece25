//! Events decided by a Redis or Valkey, which takes the time from us for keys of a test.

use std::{collections::HashMap, time::Duration};

use sluicegate_core::{Decision, Operation, Policy};
use sluicegate_redis::{Options, PreparedPolicy, RedisStore};
use sluicegate_simulator::{Event, Fault, Kind, TraceError};
use tokio::runtime::Runtime;

use super::Sink;

/// What the server may take for one event: nobody waits for it but us.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Redis {
    runtime: Runtime,
    store: RedisStore,
    policy: Option<PreparedPolicy>,
    rules: HashMap<Vec<u8>, PreparedPolicy>,
    /// Keys of this run, which are made as if never used when they are first met.
    run: String,
}

impl Redis {
    pub(super) fn new(url: &str, policy: Option<&Policy>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut options = Options::default();
        options.deadline = PATIENCE;
        let store = runtime.block_on(RedisStore::connect_with(url, options))?;
        // Another run's keys are still there: they live for an hour.
        let run = format!("simulate:{}:{}:", std::process::id(), started());
        Ok(Self {
            runtime,
            store,
            policy: policy.map(PreparedPolicy::new),
            rules: HashMap::new(),
            run,
        })
    }

    pub(super) fn ask(&mut self, event: &Event<'_>, sink: &mut impl Sink) -> anyhow::Result<()> {
        let rule = self.rule(event)?;
        let operation = match event.kind {
            Kind::Take => Operation::Take(event.cost),
            Kind::Peek => Operation::Peek(event.cost),
            Kind::Charge => Operation::Charge(event.cost),
            Kind::Refund => Operation::Refund(event.cost),
            Kind::Reset => Operation::Reset,
        };
        let key = [self.run.as_bytes(), event.key].concat();
        let asked = self.store.ask_at(&key, &rule, operation, event.time);
        let decision: Decision = self.runtime.block_on(asked)?;
        Ok(sink.add(event, &decision)?)
    }

    fn rule(&mut self, event: &Event<'_>) -> anyhow::Result<PreparedPolicy> {
        let fault = |fault| TraceError::Line { line: event.line, fault: Box::new(fault) };
        if event.policy.is_empty() {
            return Ok(self.policy.clone().ok_or_else(|| fault(Fault::NoPolicy))?);
        }
        if let Some(rule) = self.rules.get(event.policy) {
            return Ok(rule.clone());
        }
        let text = String::from_utf8_lossy(event.policy);
        let rule: PreparedPolicy =
            text.parse().map_err(|error| anyhow::anyhow!("line {}: {error}", event.line))?;
        self.rules.insert(event.policy.to_vec(), rule.clone());
        Ok(rule)
    }
}

/// When this run began, so that no two runs have the same keys.
#[expect(clippy::disallowed_methods, reason = "it only tells runs apart")]
fn started() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros())
}
