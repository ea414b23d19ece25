//! The library in a process, and its requests that wait.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate::{Limiter, Shaper};
use sluicegate_core::{Limit, PreparedPolicy};

use crate::{check::FinishedWait, checked_store::CheckedStore, process::Process};

/// Ids of holds of permits that ended while the store failed, with their keys, and when they were requested and ended.
type EndedPermits = BTreeMap<Vec<u8>, (Vec<u8>, u64, u64)>;
/// Shapers by key.
type Shapers = BTreeMap<Vec<u8>, Arc<Shaper<u64>>>;

/// The library in a process.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(super) process: Process,
    pub(super) limiter: Limiter,
    pub(super) ended_permits: Arc<Mutex<EndedPermits>>,
    pub(super) shapers: Arc<Mutex<Shapers>>,
    /// Requests and permits that have not ended.
    open: Arc<AtomicUsize>,
}

impl Library {
    pub(crate) fn new(process: &Process) -> Self {
        Self {
            process: process.clone(),
            limiter: Limiter::new(CheckedStore(process.clone())),
            ended_permits: Arc::default(),
            shapers: Arc::default(),
            open: Arc::default(),
        }
    }

    /// Runs a request, or a permit, in the background.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let open = Arc::clone(&self.open);
        open.fetch_add(1, Ordering::Relaxed);
        self.process.spawn(async move {
            task.await;
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Whether all requests and permits have ended, or the process has.
    pub(crate) fn is_idle(&self) -> bool {
        self.process.has_ended() || self.open.load(Ordering::Relaxed) == 0
    }

    /// Takes units in the background, as soon as they are available within `timeout` milliseconds.
    pub(crate) fn wait(&self, key: Vec<u8>, policy: PreparedPolicy, cost: u32, timeout: u64) {
        let this = self.clone();
        self.spawn(async move {
            let sent = this.process.moment();
            let wait = Duration::from_millis(timeout);
            let result = this.limiter.until_ready(&key, &policy, cost, wait).await;
            let paused = this.process.moment().closed_for - sent.closed_for;
            let (process, _) = this.process.numbers();
            this.process.checks().waited(&FinishedWait {
                process,
                key: &key,
                timeout,
                is_hold: false,
                departs: policy.policy().can_reserve()
                    || policy.policy().limits().iter().any(Limit::is_queue),
                sent: sent.millis,
                paused,
                answer: result.as_ref().ok(),
            });
        });
    }
}
