//! The active rules, and their reload.
//!
//! A request takes one [`RuleSnapshot`], which never changes, and uses it to the end. When the files change and are valid,
//! a new snapshot replaces the active one in one step; if they are invalid, the active one stays. Usage carries over,
//! because keys contain the names of rules.

mod counters;
mod file_watcher;
mod files;
mod reload_requests;

use std::{
    borrow::Cow,
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use ahash::AHashMap;
use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, RwLock};
use sluicegate_core::{OnError, Policy, PolicySettings, PreparedPolicy, Timestamp};
use sluicegate_rules::{Charge, RuleSet};

use self::reload_requests::ReloadRequests;
pub(crate) use self::{
    counters::{NamedCounters, RuleCounterMap, RuleCounters},
    file_watcher::FileWatcher,
};
pub use self::{files::Files, reload_requests::ReloadReport};
use crate::Config;

/// The active rules.
#[derive(Debug, Default)]
pub(crate) struct RuleStore {
    paths: Vec<PathBuf>,
    current: ArcSwap<RuleSnapshot>,
    /// Events by rule. They outlive snapshots.
    pub(crate) counters: RuleCounterMap,
    status: Mutex<ReloadStatus>,
    requests: ReloadRequests,
    has_warned_of_no_rules: AtomicBool,
}

/// Status of the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReloadStatus {
    /// Number of successful reloads.
    pub(crate) reloads: u64,
    /// Number of failed reloads.
    pub(crate) failed: u64,
    /// When the active rules were read.
    pub(crate) at: Option<Timestamp>,
    /// The error in the current files.
    pub(crate) problem: Option<String>,
    /// Digest of the files that were read last, valid or not.
    digest: Option<files::Digest>,
}

/// One version of the rules, with prepared policies. It never changes.
#[derive(Debug, Default)]
pub(crate) struct RuleSnapshot {
    /// The first version is 1; 0 means that there are no files.
    pub(crate) number: u64,
    pub(crate) rules: RuleSet,
    /// Each policy with the fallback of the server, once it was used.
    prepared: Box<[OnceLock<PreparedPolicy>]>,
    /// Policies with the fallback of a rule, by their index.
    special: RwLock<AHashMap<(usize, OnError), PreparedPolicy>>,
}

impl RuleSnapshot {
    fn new(number: u64, rules: RuleSet) -> Self {
        let prepared = rules.all_policies().iter().map(|_| OnceLock::new()).collect();
        Self { number, rules, prepared, special: RwLock::default() }
    }

    /// The policy called `name`.
    pub(crate) fn policy(&self, name: &[u8]) -> Option<&Policy> {
        self.rules.policy(std::str::from_utf8(name).ok()?)
    }

    /// The name of a policy similar to `name`.
    #[cold]
    pub(crate) fn similar_policy(&self, name: &[u8]) -> Option<&str> {
        self.rules.similar_policy(std::str::from_utf8(name).ok()?)
    }

    /// The policy called `name`, and the units of the lease that it sets; 0 if it sets none.
    pub(crate) fn leased_policy(&self, name: &[u8]) -> Option<(&Policy, u32)> {
        let name = std::str::from_utf8(name).ok()?;
        Some((self.rules.policy(name)?, self.rules.lease(name)))
    }

    /// The policy of a charge, with the fallback of its rule (`on_error`), or of the server (`defaults`) if the rule has
    /// none; and with the lease of the policy, or of the server.
    #[inline]
    pub(crate) fn prepared(
        &self,
        charge: &Charge<'_>,
        on_error: Option<OnError>,
        defaults: PolicySettings,
    ) -> Cow<'_, PreparedPolicy> {
        let default = defaults.on_error;
        // A policy that came with the request has no lease, which would end with the request.
        let lease = charge.index.map_or(0, |index| match self.rules.lease_at(index) {
            0 => defaults.lease,
            units => units,
        });
        let prepare = |on_error| with_settings(&charge.policy, on_error, lease);
        let slot = charge.index.and_then(|index| Some((index, self.prepared.get(index)?)));
        Cow::Owned(match (slot, on_error) {
            (Some((_, slot)), None) => {
                return Cow::Borrowed(slot.get_or_init(|| prepare(default)));
            }
            (Some((index, _)), Some(on_error)) => {
                if let Some(policy) = self.special.read().get(&(index, on_error)) {
                    return Cow::Owned(policy.clone());
                }
                let policy = prepare(on_error);
                self.special.write().insert((index, on_error), policy.clone());
                policy
            }
            // The policy came with the request.
            (None, on_error) => prepare(on_error.unwrap_or(default)),
        })
    }
}

/// A policy with its fallback, and its lease if it can have one.
pub(crate) fn with_settings(policy: &Policy, on_error: OnError, lease: u32) -> PreparedPolicy {
    let prepared = PreparedPolicy::new(policy).on_error(on_error);
    prepared.lease(lease).unwrap_or(prepared)
}

impl RuleStore {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// A file cannot be read, or is invalid: a server does not start without its rules.
    pub(crate) fn open(config: &Config, now: Timestamp) -> io::Result<Self> {
        if config.rules.is_empty() {
            return Ok(Self::default());
        }
        let invalid = |problem| io::Error::new(io::ErrorKind::InvalidData, problem);
        let files = Files::read(&config.rules).map_err(invalid)?;
        let store =
            Self { paths: config.rules.clone(), ..Self::of_files(&files, now).map_err(invalid)? };
        tracing::info!(rules = store.current().rules.rules().len(), "rules loaded");
        Ok(store)
    }

    /// A store of the rules in these files, which it does not read again.
    ///
    /// # Errors
    /// The first error in the files.
    pub(crate) fn of_files(files: &Files, now: Timestamp) -> Result<Self, String> {
        let (store, rules) = (Self::default(), files.parse()?);
        *store.status.lock() =
            ReloadStatus { digest: Some(files.digest()), at: Some(now), ..Default::default() };
        store.counters.register(rules.metric_names());
        store.current.store(Arc::new(RuleSnapshot::new(1, rules)));
        Ok(store)
    }

    /// A store of these rules, without files.
    #[cfg(test)]
    pub(crate) fn of(rules: RuleSet) -> Self {
        Self { current: ArcSwap::from_pointee(RuleSnapshot::new(1, rules)), ..Self::default() }
    }

    /// Warns once that a proxy asks a server without rules.
    pub(crate) fn warn_of_no_rules(&self) {
        if !self.has_warned_of_no_rules.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a proxy asks the gate, but there are no rules: every request passes; expected --rules"
            );
        }
    }

    /// The active snapshot. Load it once for each request.
    #[inline]
    pub(crate) fn current(&self) -> Guard<Arc<RuleSnapshot>> {
        self.current.load()
    }

    /// The status of the files.
    pub(crate) fn status(&self) -> ReloadStatus {
        self.status.lock().clone()
    }

    /// Reads the files again, in the thread that watches them.
    ///
    /// # Errors
    /// The error in the files, with file, line and column.
    pub(crate) async fn reload(&self) -> Result<ReloadReport, String> {
        if self.paths.is_empty() {
            return Err("no rules to reload: start the server with --rules".to_owned());
        }
        self.requests.reload().await.unwrap_or_else(|| Err("the server has stopped".to_owned()))
    }

    /// Activates the rules in the files if these have changed and are valid. With `repeat_error`, the error in unchanged
    /// files is returned again.
    fn reload_if_changed(
        &self,
        repeat_error: bool,
        now: Timestamp,
    ) -> Result<ReloadReport, String> {
        self.replace(Files::read(&self.paths), repeat_error, now)
    }

    /// The same with the contents of files, or the error of reading them.
    pub(crate) fn replace(
        &self,
        files: Result<Files, String>,
        repeat_error: bool,
        now: Timestamp,
    ) -> Result<ReloadReport, String> {
        let before = self.current().number;
        let digest = match &files {
            Ok(files) => files.digest(),
            Err(problem) => files::digest_of(problem),
        };
        {
            let mut status = self.status.lock();
            if status.digest == Some(digest) && !(repeat_error && status.problem.is_some()) {
                let rules = self.current().rules.rules().len();
                return Ok(ReloadReport { version: before, rules, changed: false });
            }
            status.digest = Some(digest);
        }
        match files.and_then(|files| files.parse()) {
            Ok(rules) => {
                let (version, count) = (before + 1, rules.rules().len());
                let mut status = self.status.lock();
                status.reloads += 1;
                (status.at, status.problem) = (Some(now), None);
                self.counters.register(rules.metric_names());
                self.current.store(Arc::new(RuleSnapshot::new(version, rules)));
                tracing::info!(version, rules = count, "rules reloaded");
                Ok(ReloadReport { version, rules: count, changed: true })
            }
            Err(problem) => {
                // Without the excerpt of the file, because the log has one line for each event.
                let shown = problem.lines().next().unwrap_or_default();
                tracing::error!(
                    version = before,
                    "invalid rules, keeping the previous ones: {shown}"
                );
                let mut status = self.status.lock();
                status.failed += 1;
                status.problem = Some(problem.clone());
                Err(problem)
            }
        }
    }
}
