//! Events decided by a Redis or Valkey, at the times of the events, on test keys.

use std::{collections::HashMap, sync::Arc, time::Duration};

use anyhow::Context;
use sluicegate_core::{ManualClock, Policy, PreparedPolicy, Request, Store};
use sluicegate_redis::{Options, RedisStore, TestClock};
use sluicegate_simulator::{Event, Fault, TraceError};
use tokio::runtime::Runtime;

use super::lane::Lane;

/// Maximum time for one event, because no request waits for it.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of policies of a trace that are kept parsed.
const MAX_POLICIES: usize = 1024;

pub(super) struct Redis {
    runtime: Runtime,
    store: RedisStore,
    /// The clock of the store: the time of the event.
    clock: Arc<ManualClock>,
    policy: Option<PreparedPolicy>,
    policies: HashMap<Vec<u8>, PreparedPolicy>,
    /// Prefix of the keys of this run.
    run: String,
}

impl Redis {
    pub(super) fn new(url: &str, policy: Option<&Policy>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut options = Options::default();
        options.deadline = DEADLINE;
        let clock = Arc::new(ManualClock::default());
        options.test_clock = Some(TestClock::new(clock.clone()));
        let store = runtime.block_on(RedisStore::connect_with(url, options))?;
        // The keys of other runs live for an hour.
        let run = format!("simulate:{}:{}:", std::process::id(), started());
        Ok(Self {
            runtime,
            store,
            clock,
            policy: policy.map(PreparedPolicy::new),
            policies: HashMap::new(),
            run,
        })
    }

    pub(super) fn decide(&mut self, event: &Event<'_>, lane: &mut Lane) -> anyhow::Result<()> {
        let policy = self.prepared_policy(event)?;
        let key = [self.run.as_bytes(), event.key].concat();
        self.clock.set(event.time);
        let request = Request::one(&key, &policy, event.operation(policy.policy()));
        let answer = self.runtime.block_on(self.store.apply(request).into_future());
        let answer = answer.with_context(|| format!("line {}", event.line))?;
        Ok(lane.add(event, &answer.decision)?)
    }

    fn prepared_policy(&mut self, event: &Event<'_>) -> anyhow::Result<PreparedPolicy> {
        let fault = |fault| TraceError::Line { line: event.line, fault: Box::new(fault) };
        if event.policy.is_empty() {
            return Ok(self.policy.clone().ok_or_else(|| fault(Fault::NoPolicy))?);
        }
        if let Some(policy) = self.policies.get(event.policy) {
            return Ok(policy.clone());
        }
        let text = String::from_utf8_lossy(event.policy);
        let policy: PreparedPolicy =
            text.parse().map_err(|error| anyhow::anyhow!("line {}: {error}", event.line))?;
        if self.policies.len() == MAX_POLICIES {
            self.policies.clear();
        }
        self.policies.insert(event.policy.to_vec(), policy.clone());
        Ok(policy)
    }
}

/// Start of this run, so that no two runs have the same keys.
#[expect(clippy::disallowed_methods, reason = "it only distinguishes runs")]
fn started() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros())
}
