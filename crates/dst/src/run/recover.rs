//! The end of a run: everything works again.

use std::time::Duration;

use sluicegate_core::{Gcra, Operation, Outcome, Retry, Source};
use tokio::time::{Instant, sleep, sleep_until};

use super::world::{Key, World};
use crate::{
    library::Library,
    plan::{Action, FaultKind, Request, Step},
    redis_model::ARMED,
};

/// The time after which unused leases have been returned: twice their lifetime.
const LEASES_RETURNED: Duration = Duration::from_secs(2);

/// Milliseconds within which all requests of the library end: their longest timeout, and how long permits are kept.
const IDLE: u64 = 5_000;
/// Milliseconds within which shapers release all that they have: twice what the slowest rate needs for all processes.
const RELEASED: u64 = 400_000;

/// Connections that an idle process sets up one after the other.
const CONNECTIONS: usize = 2;

/// Every seed that is a multiple of this checks how much of the rate of a leased key is used.
const UTILISATION_SEEDS: u64 = 8;
/// The least part of it, in percent.
const MIN_USED_PERCENT: u64 = 95;
/// The measurement takes until the rate has brought this many times the units that leases may hold.
const PARTS: u64 = 20;
/// No key is measured for longer than this.
const MAX_MEASURED: Duration = Duration::from_secs(20);
/// Maximum time between two rounds of requests. Several units come in it, which leases take at once.
const ROUND: Duration = Duration::from_millis(250);
/// Minimum time in which a burst but for its first unit comes back: rounds that come less often than that lose units.
const MIN_BURST_TIME: Duration = Duration::from_millis(300);
/// Time between two checks of tasks that end by themselves.
const POLL: Duration = Duration::from_millis(10);

impl World<'_> {
    /// After the last fault everything works again, and a client that comes back when its denial says so is allowed.
    pub(super) async fn recover(&mut self) {
        let ends = |step: &Step| match step.action {
            Action::Fault { kind, .. } | Action::NodeFault { kind, .. }
                if kind == FaultKind::SlowScript =>
            {
                step.at + ARMED
            }
            Action::NodeFault { span, .. } => step.at + span,
            _ => 0,
        };
        let settled = self.plan.steps.iter().map(ends).max().unwrap_or_default();
        sleep_until(self.time.at(settled)).await;
        sleep_until(self.time.at(self.checks.recovered_at())).await;
        while self.servers.is_migrating() {
            sleep(POLL).await;
        }
        // All processes use the same policies by now, and leases under others have been returned.
        self.keys.iter_mut().for_each(|key| key.used.fill(0));
        let idle_by = self.time.millis() + IDLE;
        let is_idle = |world: &Self| {
            world.all_libraries().all(Library::is_idle)
        };
        while !is_idle(self) && self.time.millis() < idle_by {
            sleep(Duration::from_millis(100)).await;
        }
        if !self.all_libraries().all(Library::is_idle) {
            self.checks.violation(format_args!("liveness: a request of the library does not end"));
        }
        sleep(LEASES_RETURNED).await;
        for (index, process) in self.processes.iter().enumerate() {
            let open = process.open_requests();
            if open > 0 {
                self.checks.violation(format_args!("liveness: {open} requests without an answer"));
            }
            for key in &self.keys {
                let name = key.name.escape_ascii();
                if !self.has_answer(index, key).await {
                    let what = format_args!("liveness: process {index} has no answer for {name}");
                    self.checks.violation(what);
                }
                let is_leased = key.policies[0].settings().lease > 1;
                let take = key.request(index, Request::Take(1));
                if is_leased
                    && process
                        .operate(&take)
                        .await
                        .is_ok_and(|answer| answer.source == Source::Lease)
                {
                    self.checks.violation(format_args!(
                        "liveness: process {index} has a lease of {name} that no request used for {LEASES_RETURNED:?}"
                    ));
                }
            }
            self.check_redirects(index).await;
            let open = process.open_breakers();
            if !open.is_empty() {
                let what = format_args!("liveness: process {index}: breakers of {open:?} are open");
                self.checks.violation(what);
            }
            if let Some(why) = process.unavailable() {
                self.checks.violation(format_args!("liveness: process {index}: {why}"));
            }
        }
        self.check_libraries().await;
        for key in &self.keys {
            self.return_after_denial(key).await;
        }
        self.check_utilisation().await;
    }

    fn all_libraries(&self) -> impl Iterator<Item = &Library> {
        self.libraries.iter().chain(&self.closing_libraries)
    }

    /// By now a process has the node of each slot of a cluster, for one command and for several.
    async fn check_redirects(&self, index: usize) {
        let redirects = self.servers.redirects();
        let peek = |key: &Key| key.request(index, Request::Peek(1));
        if self.servers.is_cluster() {
            for key in &self.keys {
                let _ = self.processes[index].operate(&peek(key)).await;
            }
            let peeks: Vec<_> = self.keys.iter().map(peek).collect();
            self.processes[index].operate_all(&peeks).await;
        }
        if self.servers.redirects() != redirects {
            let what = format_args!(
                "liveness: process {index} sends commands to nodes without their keys"
            );
            self.checks.violation(what);
        }
    }

    /// Whether a process gets an answer of the store. A process that was idle may first have to set up its connections to the
    /// nodes of a cluster: to one for the map, and to that with the key.
    async fn has_answer(&self, index: usize, key: &Key) -> bool {
        let process = &self.processes[index];
        for _ in 0..=CONNECTIONS {
            let sent = self.time.millis();
            let answer = process.operate(&key.request(index, Request::Peek(1))).await;
            if answer.is_ok_and(|answer| answer.source == Source::Store) {
                return true;
            }
            if !self.checks.is_connecting(index, sent) {
                return false;
            }
        }
        false
    }

    /// Holds of permits are settled, and shapers release what they have.
    async fn check_libraries(&self) {
        for library in &self.libraries {
            library.check_permits(self.checks.recovered_at());
        }
        let unreleased = || self.all_libraries().map(Library::unreleased).sum::<usize>();
        // Times that were given before a clock was set back are later by as much.
        let end = self.time.millis().max(self.checks.held_until()) + RELEASED;
        while unreleased() > 0 && self.time.millis() < end {
            sleep(Duration::from_millis(100)).await;
        }
        if unreleased() > 0 {
            let what = format_args!("liveness: shapers keep {} items", unreleased());
            self.checks.violation(what);
        }
    }

    /// Takes until it is denied, and again when the denial says so.
    pub(super) async fn return_after_denial(&self, key: &Key) {
        let process = &self.processes[0];
        let take = key.request(0, Request::Take(1));
        if key.policies[0].policy().check_operation(Operation::Take(1)).is_err() {
            return;
        }
        for _ in 0..8 {
            let Ok(answer) = process.operate(&take).await else { return };
            let Outcome::Deny { retry: Retry::After(after) } = answer.outcome else { continue };
            if after > Duration::from_mins(1) {
                return;
            }
            // A state from before the clock was set back lasts longer than the denial says.
            let is_held = self.checks.is_held(&key.name);
            // Clocks differ by up to 400 parts per million.
            sleep(after + after / 1000 + Duration::from_millis(3)).await;
            // A denial from the cache is without what was charged since.
            if answer.source != Source::Store {
                continue;
            }
            let Ok(again) = process.operate(&take).await else { return };
            if !again.allowed() && !is_held && !self.checks.is_held(&key.name) {
                self.checks.violation(format_args!(
                    "honesty: key {} is denied again after {after:?}: {again:?}",
                    key.name.escape_ascii()
                ));
            }
            return;
        }
    }

    /// While all processes request more than there is, as much is admitted as the rate allows.
    async fn check_utilisation(&self) {
        let leased = |key: &&Key| key.policies[0].settings().lease > 1;
        let Some(key) = self.keys.iter().find(leased) else { return };
        let Some(limit) = key.policies[0].policy().as_gcra() else { return };
        let processes = self.processes.len() as u64;
        let held = processes * u64::from(key.policies[0].settings().lease.min(limit.burst()));
        let units = held * PARTS;
        let span = time_of(limit, units);
        let suits =
            span <= MAX_MEASURED && time_of(limit, u64::from(limit.burst()) - 1) >= MIN_BURST_TIME;
        if !suits
            || !self.plan.seed.is_multiple_of(UTILISATION_SEEDS)
            || self.checks.is_held(&key.name)
        {
            return;
        }
        // First, what is there.
        self.take_in_turn(key, 0, u64::from(limit.burst()) + 2 * held).await;
        let rounds = u32::try_from(span.as_micros() / ROUND.as_micros()).unwrap_or(u32::MAX) + 1;
        // All together twice what there is.
        let most = 2 * units / u64::from(rounds) / processes + 1;
        let (mut admitted, begin) = (0, Instant::now());
        for round in 1..=rounds {
            sleep_until(begin + span * round / rounds).await;
            admitted += self.take_in_turn(key, round as usize, most).await;
        }
        if admitted * 100 < units * MIN_USED_PERCENT {
            self.checks.violation(format_args!(
                "liveness: of {units} units of {} {admitted} are used; leases hold {held} at most",
                key.name.escape_ascii()
            ));
        }
    }

    /// Takes by one process after the other, until it is denied or has taken `most` units. Returns how many all have taken.
    async fn take_in_turn(&self, key: &Key, first: usize, most: u64) -> u64 {
        let mut taken = 0;
        for turn in 0..self.processes.len() {
            let index = (first + turn) % self.processes.len();
            for _ in 0..most {
                let answer =
                    self.processes[index].operate(&key.request(index, Request::Take(1))).await;
                if !answer.is_ok_and(|answer| answer.allowed()) {
                    break;
                }
                taken += 1;
            }
        }
        taken
    }
}

/// The time in which this number of units comes.
fn time_of(limit: &Gcra, units: u64) -> Duration {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    limit.period() * units / limit.limit()
}
