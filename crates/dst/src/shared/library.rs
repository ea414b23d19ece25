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
use sluicegate::{HoldOutcome, Limiter, Permit, Shaper};
use sluicegate_core::{Answer, Limit, PreparedPolicy, Source, StoreError, wait::peeks_first};
use tokio::time::{sleep, timeout};

use super::{
    plan::{PermitEnd, PermitPlan},
    process::{CheckedStore, DEADLINE, Moment, Process, Record},
};
use crate::check::FinishedWait;

/// Ids of holds of permits that ended while the store failed, with their keys, and when they were requested and ended.
type EndedPermits = BTreeMap<Vec<u8>, (Vec<u8>, u64, u64)>;
/// Shapers by key.
type Shapers = BTreeMap<Vec<u8>, Arc<Shaper<u64>>>;

/// The library in a process.
#[derive(Clone, Debug)]
pub(super) struct Library {
    process: Process,
    limiter: Limiter,
    record: Arc<Record>,
    ended_permits: Arc<Mutex<EndedPermits>>,
    shapers: Arc<Mutex<Shapers>>,
    /// Requests and permits that have not ended.
    open: Arc<AtomicUsize>,
}

impl Library {
    pub(super) fn new(process: &Process) -> Self {
        let store = CheckedStore::new(process);
        Self {
            process: process.clone(),
            record: store.record(),
            limiter: Limiter::new(store),
            ended_permits: Arc::default(),
            shapers: Arc::default(),
            open: Arc::default(),
        }
    }

    /// Runs a request, or a permit, in the background.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let open = Arc::clone(&self.open);
        open.fetch_add(1, Ordering::Relaxed);
        self.process.spawn(async move {
            task.await;
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Whether all requests and permits have ended, or the process has.
    pub(super) fn is_idle(&self) -> bool {
        self.process.has_ended() || self.open.load(Ordering::Relaxed) == 0
    }

    /// Takes units in the background, as soon as they are available within `timeout` milliseconds.
    pub(super) fn wait(&self, key: Vec<u8>, policy: PreparedPolicy, cost: u32, timeout: u64) {
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

impl Library {
    /// Takes units as `wait` does, and drops the request after `after` milliseconds. Then it has nothing reserved.
    pub(super) fn abandon(
        &self,
        key: Vec<u8>,
        policy: PreparedPolicy,
        cost: u32,
        span: u64,
        after: u64,
    ) {
        let this = self.clone();
        self.spawn(async move {
            let store = CheckedStore::new(&this.process);
            let record = store.record();
            let limiter = Limiter::new(store);
            let waits = limiter.until_ready(&key, &policy, cost, Duration::from_millis(span));
            if timeout(Duration::from_millis(after), waits).await.is_ok() {
                return;
            }
            // After an answer, the refund begins within this millisecond.
            let mut looks = [None, record.reserved()];
            while looks[0] != looks[1] || looks[1].is_none() {
                sleep(Duration::from_millis(1)).await;
                looks = [looks[1], record.reserved()];
            }
            let units = looks[1].unwrap_or_default();
            if units > 0 {
                this.process.checks().violation(format_args!(
                    "waiting: a request of {} that was dropped has {units} units reserved",
                    key.escape_ascii()
                ));
            }
        });
    }
}

// Permits: holds that the library settles when they are settled, dropped or cancelled.

/// Without a fault, a hold has ended this long after its permit: an operation in the background has ended by its deadline.
const SETTLED: Duration = Duration::from_millis(DEADLINE);
/// A request for a hold that waits without a queue pauses for at most this time, and for an eighth of the time that it has waited.
const LOOKS: u64 = 250;
/// A pause is this much longer at most: it is a millisecond at least, and timers have milliseconds.
const LOOK_LATE: u64 = 2;
/// The prefix of the ids of holds that plans name.
const OTHER: &[u8] = b"hold";

impl Library {
    /// Takes a permit in the background, keeps it, and ends it.
    pub(super) fn permit(&self, key: Vec<u8>, policy: PreparedPolicy, plan: PermitPlan) {
        let this = self.clone();
        self.spawn(async move { this.keep_permit(&key, &policy, plan).await });
    }

    async fn keep_permit(&self, key: &[u8], policy: &PreparedPolicy, plan: PermitPlan) {
        let (sent, resets) = (self.process.moment(), self.process.checks().resets(key));
        let open = self.open_holds(key);
        let taken = async {
            let ttl = Duration::from_millis(plan.ttl);
            match plan.timeout {
                0 => self.limiter.hold(key, policy, plan.cost, ttl).await,
                wait => {
                    let wait = Duration::from_millis(wait);
                    self.limiter.hold_until_ready(key, policy, plan.cost, ttl, wait).await
                }
            }
        };
        let outcome = match plan.end {
            PermitEnd::Cancelled(after) => {
                let Ok(outcome) = timeout(Duration::from_millis(after), taken).await else {
                    return self.check_cancelled(key, sent, &open).await;
                };
                outcome
            }
            _ => taken.await,
        };
        self.check_wait(key, plan.timeout, sent, &outcome);
        let Ok(HoldOutcome::Allowed(permit)) = outcome else { return };
        let id = permit.id().to_vec();
        let used = match plan.end {
            PermitEnd::Settled(used) => Some(used),
            PermitEnd::Dropped | PermitEnd::Cancelled(_) => None,
        };
        self.process.checks().got_permit(&id, used);
        let taken = self.process.moment();
        // Other policies are peeked at between two attempts.
        if !peeks_first(policy.policy()) {
            self.check_attempts(&id, sent, taken);
        }
        let is_made = permit.answer().source == Source::Store;
        let permit = if plan.is_kept_alive { permit.keep_alive() } else { permit };
        sleep(Duration::from_millis(plan.kept)).await;
        let is_open =
            is_made && self.is_calm_since(key, sent) && resets == self.process.checks().resets(key);
        let end = self.process.moment();
        if plan.is_kept_alive {
            self.check_renewed(&id, plan.ttl, taken, end);
        }
        let settled = self.end_permit(permit, plan.end).await;
        // Until the settle was answered. The server's clock, which began later, runs up to 200 parts per million faster.
        let lived = self.process.moment().millis - sent.millis;
        let lasts = plan.is_kept_alive || lived + lived / 5000 < plan.ttl;
        if let Some(answer) = settled
            && is_open
            && lasts
            && self.is_calm_since(key, sent)
            && resets == self.process.checks().resets(key)
            && !answer.allowed()
        {
            self.process.checks().violation(format_args!(
                "holds: the hold {} of a permit was not open when it was settled: {answer:?}",
                id.escape_ascii()
            ));
        }
        self.check_ended(key, sent, id, is_made, end).await;
    }

    /// Ends a permit. The answer of the store, if there is one.
    async fn end_permit(&self, permit: Permit, end: PermitEnd) -> Option<Answer> {
        match end {
            PermitEnd::Settled(used) => {
                let answer = permit.settle(used).await.ok();
                answer.filter(|answer| answer.source == Source::Store)
            }
            PermitEnd::Dropped | PermitEnd::Cancelled(_) => {
                drop(permit);
                None
            }
        }
    }

    /// A request that waited for its permit without a queue has looked often enough, because another process may settle a hold at
    /// any time.
    fn check_attempts(&self, id: &[u8], sent: Moment, taken: Moment) {
        let Some(attempts) = self.record.attempts(id) else { return };
        if taken.closed_for == sent.closed_for
            && (attempts.late > LOOK_LATE || attempts.longest > LOOKS + LOOK_LATE)
        {
            self.process.checks().violation(format_args!(
                "waiting: a request for the hold {} has looked after pauses of up to {} ms",
                id.escape_ascii(),
                attempts.longest
            ));
        }
    }

    /// The renewals of a permit go on, whether or not one of them fails, until the hold is over.
    fn check_renewed(&self, id: &[u8], ttl: u64, taken: Moment, now: Moment) {
        let pause = now.millis.saturating_sub(self.record.renewed(id).unwrap_or(taken.millis));
        if now.closed_for == taken.closed_for && pause > ttl / 3 + 2 * DEADLINE {
            self.process.checks().violation(format_args!(
                "holds: the permit {} of {ttl} ms is not renewed for {pause} ms",
                id.escape_ascii()
            ));
        }
    }

    /// The hold of a permit that has ended is not open any more. It was requested at `sent`.
    async fn check_ended(&self, key: &[u8], sent: Moment, id: Vec<u8>, is_made: bool, end: Moment) {
        sleep(SETTLED).await;
        if !self.open_holds(key).contains(&id) {
            return;
        }
        if self.is_calm_since(key, end) {
            self.process.checks().violation(format_args!(
                "holds: the permit {} has ended, and its hold is open",
                id.escape_ascii()
            ));
        } else if is_made {
            self.ended_permits.lock().insert(id, (key.to_vec(), sent.millis, end.millis));
        }
    }

    /// A request that was dropped holds nothing. `others` were open before it was sent.
    async fn check_cancelled(&self, key: &[u8], sent: Moment, others: &[Vec<u8>]) {
        sleep(SETTLED).await;
        let before = self.open_holds(key);
        sleep(SETTLED).await;
        if !self.is_calm_since(key, sent) {
            return;
        }
        let open = self.open_holds(key);
        let is_leaked = |id: &&Vec<u8>| {
            before.contains(*id) && !others.contains(*id) && !self.process.checks().has_permit(id)
        };
        if let Some(id) = open.iter().find(is_leaked) {
            self.process.checks().violation(format_args!(
                "holds: the request for the hold {} was dropped, and the hold is open",
                id.escape_ascii()
            ));
        }
    }

    /// Holds of the key that are open and that the library made.
    fn open_holds(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let mut holds = self.process.servers().open_holds(key);
        holds.retain(|id| !id.starts_with(OTHER));
        holds
    }

    /// Whether no fault has occurred since then, and the process has run.
    fn is_calm_since(&self, key: &[u8], moment: Moment) -> bool {
        let (now, process) = (self.process.moment(), self.process.numbers().0);
        now.closed_for == moment.closed_for
            && self.process.checks().is_calm_since(process, key, moment.millis)
    }

    fn check_wait(
        &self,
        key: &[u8],
        timeout: u64,
        sent: Moment,
        outcome: &Result<HoldOutcome, StoreError>,
    ) {
        let answer = match outcome {
            Ok(HoldOutcome::Allowed(permit)) => Some(permit.answer()),
            Ok(HoldOutcome::Denied(answer)) => Some(answer),
            Err(_) => None,
        };
        let (process, _) = self.process.numbers();
        let paused = self.process.moment().closed_for - sent.closed_for;
        self.process.checks().waited(&FinishedWait {
            process,
            key,
            timeout,
            is_hold: true,
            departs: false,
            sent: sent.millis,
            paused,
            answer,
        });
    }

    /// Whether the hold of a permit that has ended is open, because its settle is still to come.
    pub(super) fn is_settling(&self, key: &[u8]) -> bool {
        let open = self.open_holds(key);
        let ended = self.ended_permits.lock();
        ended.iter().any(|(id, (of, ..))| **of == *key && open.contains(id))
    }

    /// The holds of permits that have ended are settled once the store works again.
    pub(super) fn check_permits(&self, recovered_at: u64) {
        if self.process.has_ended() {
            return;
        }
        let now = self.process.moment().millis;
        for (id, (key, sent, end)) in &*self.ended_permits.lock() {
            // The pauses between two settles double: the last one is as long as the time before it.
            let tried_at = recovered_at + recovered_at.saturating_sub(*end) + 500;
            // The server may have lost the settle.
            let is_lost = self.process.checks().has_lost(key, *end);
            let is_open = now > tried_at && !is_lost && self.open_holds(key).contains(id);
            // If its clock was set back, the hold lasts longer than the library tries to settle it, which is for the lifetime
            // of the hold.
            if is_open && !self.process.checks().has_stepped(key, *sent) {
                self.process.checks().violation(format_args!(
                    "liveness: the permit {} ended at {end} ms, and its hold is open",
                    id.escape_ascii()
                ));
            }
        }
    }
}

// Shapers: queues that release items at the rate of a key.

/// Items that a shaper may have.
const CAPACITY: usize = 64;

impl Library {
    /// Adds items to the shaper of a key.
    pub(super) fn push(&self, key: &[u8], policy: &PreparedPolicy, count: usize) {
        let mut shapers = self.shapers.lock();
        if !shapers.contains_key(key) {
            let made = Shaper::new(self.limiter.clone(), key, policy, CAPACITY);
            let Ok(shaper) = made.map(Arc::new) else {
                return self.process.checks().violation(format_args!("invalid policy of a shaper"));
            };
            self.release_items(key.to_vec(), Arc::clone(&shaper));
            shapers.insert(key.to_vec(), shaper);
        }
        let Some(shaper) = shapers.get(key) else { return };
        for _ in 0..count {
            // The shaper numbers them by their order.
            let number = self.process.checks().pushed(key);
            if shaper.push(number).is_err() && shaper.len() < CAPACITY {
                self.process.checks().violation(format_args!("a shaper refuses an item"));
            }
        }
    }

    /// Releases items for as long as the process runs.
    fn release_items(&self, key: Vec<u8>, shaper: Arc<Shaper<u64>>) {
        let process = self.process.clone();
        self.process.spawn(async move {
            let (mut last, mut patience) = (None, 0);
            loop {
                // It stops waiting now and then, and goes on: neither the item nor its time is lost.
                patience = (patience + 9) % 40;
                let next = timeout(Duration::from_millis(1 + patience), shaper.next()).await;
                let Ok(next) = next else { continue };
                let Ok(Some(item)) = next else { break };
                let millis = process.moment().millis;
                let (index, _) = process.numbers();
                process.log().add(format_args!("process {index}: releases item {item}"));
                process.checks().released(&key, millis);
                if last.is_some_and(|last| last >= item) {
                    let what = format_args!("order: item {item} is released after {last:?}");
                    process.checks().violation(what);
                }
                last = Some(item);
            }
        });
    }

    /// Items that have not been released.
    pub(super) fn unreleased(&self) -> usize {
        if self.process.has_ended() {
            return 0;
        }
        self.shapers.lock().values().map(|shaper| shaper.len()).sum()
    }
}
