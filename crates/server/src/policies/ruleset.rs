//! The rules in force, and what becomes of them while the server runs.
//!
//! Who decides takes a [`Version`] once and goes by it to the end: a version never changes. Another
//! one takes its place in one step, when the files say something else and what they say can be
//! used; else the one in force stays. What was used is kept by key, and keys hang on names.

mod files;
mod tally;
mod watch;
mod wishes;

use std::{
    borrow::Cow,
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use ahash::AHashMap;
use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, RwLock};
use sluicegate_core::{Policy, PreparedPolicy, Share, Timestamp};
use sluicegate_rules::{Charge, OnError, RuleSet};

use self::wishes::Wishes;
pub use self::{files::Files, wishes::Reloaded};
pub(crate) use self::{
    tally::{Named, Tallies, Tally},
    watch::Watch,
};
use crate::Config;

/// The rules in force.
#[derive(Debug, Default)]
pub(crate) struct Live {
    paths: Vec<PathBuf>,
    current: ArcSwap<Version>,
    /// What is counted of rules; it outlives their versions.
    pub(crate) tallies: Tallies,
    told: Mutex<Told>,
    wishes: Wishes,
}

/// What became of the files so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// How often the rules were read anew, and could be used.
    pub(crate) reloads: u64,
    /// How often not.
    pub(crate) failed: u64,
    /// When the rules in force were read.
    pub(crate) at: Option<Timestamp>,
    /// What is wrong with the files as they stand.
    pub(crate) problem: Option<String>,
    /// What was looked at last, used or not.
    seen: Option<files::Digest>,
}

/// One set of rules, prepared for the store. It never changes.
#[derive(Debug, Default)]
pub(crate) struct Version {
    /// The first that was read is 1; 0 means that there are no files.
    number: u64,
    rules: RuleSet,
    /// Each policy with the fallback of the server, once it was used.
    prepared: Box<[OnceLock<PreparedPolicy>]>,
    /// Policies with the fallback of a rule, by their index.
    special: RwLock<AHashMap<(usize, OnError), PreparedPolicy>>,
}

impl Version {
    fn new(number: u64, rules: RuleSet) -> Self {
        let prepared = rules.all_policies().iter().map(|_| OnceLock::new()).collect();
        Self { number, rules, prepared, special: RwLock::default() }
    }

    /// Which version it is.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The policy called `name`.
    pub(crate) fn policy(&self, name: &[u8]) -> Option<&Policy> {
        self.rules.policy(std::str::from_utf8(name).ok()?)
    }

    /// The name of a policy that `name` probably means.
    #[cold]
    pub(crate) fn similar_policy(&self, name: &[u8]) -> Option<&str> {
        self.rules.similar_policy(std::str::from_utf8(name).ok()?)
    }

    /// The rules.
    pub(crate) const fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The policy of a charge, with the fallback of its rule (`on_error`), or of the server (`default`) if the rule has
    /// none.
    #[inline]
    pub(crate) fn prepared(
        &self,
        charge: &Charge<'_>,
        on_error: Option<OnError>,
        default: sluicegate_core::OnError,
    ) -> Cow<'_, PreparedPolicy> {
        let prepare = |on_error| PreparedPolicy::new(&charge.policy).on_error(on_error);
        let slot = charge.index.and_then(|index| Some((index, self.prepared.get(index)?)));
        Cow::Owned(match (slot, on_error) {
            (Some((_, slot)), None) => {
                return Cow::Borrowed(slot.get_or_init(|| prepare(default)));
            }
            (Some((index, _)), Some(on_error)) => {
                if let Some(policy) = self.special.read().get(&(index, on_error)) {
                    return Cow::Owned(policy.clone());
                }
                let policy = prepare(told(on_error));
                self.special.write().insert((index, on_error), policy.clone());
                policy
            }
            // The policy came with the request.
            (None, on_error) => prepare(on_error.map_or(default, told)),
        })
    }
}

/// A problem without the excerpt of the file behind it, which has lines of its own: a line of the log is one event.
fn one_line(problem: &str) -> &str {
    problem.lines().next().unwrap_or_default()
}

fn told(on_error: OnError) -> sluicegate_core::OnError {
    match on_error {
        OnError::Allow => sluicegate_core::OnError::Allow,
        OnError::Deny => sluicegate_core::OnError::Deny,
        OnError::Local { part, whole } => {
            sluicegate_core::OnError::Local(Share::of(part, whole).unwrap_or(Share::ALL))
        }
    }
}

impl Live {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// A file that cannot be read or used: a server does not start without its rules.
    pub(crate) fn open(config: &Config, now: Timestamp) -> io::Result<Self> {
        let live = Self { paths: config.rules.clone(), ..Self::default() };
        if !live.paths.is_empty() {
            let read = Files::read(&live.paths).and_then(|files| {
                let rules = files.parse()?;
                Ok((files.digest(), rules))
            });
            let (seen, rules) =
                read.map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?;
            tracing::info!(rules = rules.rules().len(), "rules loaded");
            *live.told.lock() = Told { seen: Some(seen), at: Some(now), ..Told::default() };
            live.tallies.register(rules.metric_names());
            live.current.store(Arc::new(Version::new(1, rules)));
        }
        Ok(live)
    }

    /// These rules, of no file.
    #[cfg(test)]
    pub(crate) fn of(rules: RuleSet) -> Self {
        Self { current: ArcSwap::from_pointee(Version::new(1, rules)), ..Self::default() }
    }

    /// The version in force: to be taken once a request.
    #[inline]
    pub(crate) fn now(&self) -> Guard<Arc<Version>> {
        self.current.load()
    }

    /// What became of the files so far.
    pub(crate) fn told(&self) -> Told {
        self.told.lock().clone()
    }

    /// Reads the files again, whatever was heard of them, in the thread that watches them.
    ///
    /// # Errors
    /// What is wrong, with the file, the line and the column.
    pub(crate) async fn reload(&self) -> Result<Reloaded, String> {
        if self.paths.is_empty() {
            return Err("no rules to reload: start the server with --rules".to_owned());
        }
        self.wishes.reload().await.unwrap_or_else(|| Err("the server has stopped".to_owned()))
    }

    /// Looks at the files: unless they are as when they were seen last, what they say is in force from
    /// then on, if it can be used. `always`: somebody asks, and is told what is wrong once more.
    fn look(&self, always: bool, now: Timestamp) -> Result<Reloaded, String> {
        let before = self.now().number;
        let unchanged = |version| {
            let rules = self.now().rules.rules().len();
            Reloaded { version, rules, changed: false }
        };
        let files = Files::read(&self.paths);
        let seen = match &files {
            Ok(files) => files.digest(),
            Err(problem) => files::digest_of(problem),
        };
        {
            let mut told = self.told.lock();
            // What is wrong is told again to who asks.
            if told.seen == Some(seen) && !(always && told.problem.is_some()) {
                return Ok(unchanged(before));
            }
            told.seen = Some(seen);
        }
        match files.and_then(|files| files.parse()) {
            Ok(rules) => {
                let (version, count) = (before + 1, rules.rules().len());
                let mut told = self.told.lock();
                told.reloads += 1;
                (told.at, told.problem) = (Some(now), None);
                self.tallies.register(rules.metric_names());
                self.current.store(Arc::new(Version::new(version, rules)));
                tracing::info!(version, rules = count, "rules reloaded");
                Ok(Reloaded { version, rules: count, changed: true })
            }
            Err(problem) => {
                let shown = one_line(&problem);
                tracing::error!(
                    version = before,
                    "invalid rules, keeping the previous ones: {shown}"
                );
                let mut told = self.told.lock();
                told.failed += 1;
                told.problem = Some(problem.clone());
                Err(problem)
            }
        }
    }
}
