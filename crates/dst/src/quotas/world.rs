//! A run of a plan: time passes in steps of [`TICK`].

use std::collections::VecDeque;

use anyhow::Result;
use sluicegate_core::{Answer, KeyedOperation, Policy, StoreError, Timestamp, as_micros};
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_server::simulation::{SimulatedAction, SimulatedQuotaStream, SimulatedQuotas};

use super::{
    envoy::{BucketId, Envoy, Reports},
    plan::{Action, Quotas, SPAN, plan},
};
use crate::{
    event_log::{EventLog, Output, RunOutcome},
    plan::{Plan, World},
    random::{Random, RandomByTime},
    time::{START, VirtualTime},
};

/// The steps of time, in milliseconds.
const TICK: u64 = 5;
/// How long a message takes at most, and until both sides have noticed that a stream is broken.
const MAX_DELAY: u64 = 400;
/// Nothing fails in the time after the last step: Envoys get all of a limit, and pass at least this part of it in the last seconds.
const CALM: u64 = 60_000;
const MEASURED: u64 = 10_000;
const MIN_USE: u64 = 90;
const MIN_TOKENS: u64 = 5;

const DOMAIN: &str = "simulation";

impl World for Quotas {
    type Action = Action;
    const NAME: &str = "quotas";

    fn generate(seed: u64, random: &Random) -> Plan<Self> {
        plan(seed, random)
    }

    fn processes(&self) -> usize {
        self.envoys
    }

    fn check(&self, action: &Action) -> Result<()> {
        self.check_action(action)
    }

    fn run(plan: &Plan<Self>, output: Output) -> Result<RunOutcome> {
        Run::new(plan, output)?.run()
    }
}

/// A limit that is divided.
struct Limit {
    /// Units per second in thousandths, and the burst.
    rate: u64,
    burst: u64,
    /// The most that any interval up to now has passed beyond the rate, in thousandths of a unit.
    excess: u64,
    /// Units that passed in the measured time at the end, and the units that came.
    passed: u64,
    came: u64,
}

/// A stream between an Envoy and a server.
struct Stream {
    server: usize,
    quotas: SimulatedQuotaStream,
    /// Messages on their way, each with the time of its arrival.
    reports: VecDeque<(u64, Reports)>,
    actions: VecDeque<(u64, Vec<SimulatedAction>)>,
    /// Answers of the store on their way.
    answers: Option<(u64, Vec<Result<Answer, StoreError>>)>,
    /// When the server and the Envoy notice that it is broken.
    broken: Option<(u64, u64)>,
}

struct Run<'p> {
    plan: &'p Plan<Quotas>,
    log: EventLog,
    random: RandomByTime,
    millis: u64,
    quotas: SimulatedQuotas,
    store: MemoryStore,
    limits: Vec<Limit>,
    ids: Vec<BucketId>,
    envoys: Vec<Host>,
    /// When each server has started, or will.
    servers: Vec<u64>,
    /// Broken streams that their server has not noticed.
    orphans: Vec<Stream>,
    streams: u64,
    /// Until when the store is unavailable, and whether it applies operations; until when it is slow, and how slow.
    unavailable: (u64, bool),
    slow: (u64, u64),
    violation: Option<String>,
}

/// An Envoy with its requests and its stream.
struct Host {
    envoy: Envoy,
    /// When it has started, or will.
    starts: u64,
    stream: Option<Stream>,
    has_tried: bool,
    /// Requests per second for each key, and parts of a request that are due, in thousandths.
    rates: Vec<u64>,
    due: Vec<u64>,
}

impl<'p> Run<'p> {
    fn new(plan: &'p Plan<Quotas>, output: Output) -> Result<Self> {
        let (mut rules, mut limits, mut ids) = ("rules:\n".to_owned(), Vec::new(), Vec::new());
        for (index, key) in plan.keys.iter().enumerate() {
            let text = &key.0[0].policy;
            let proxies = plan.world.proxies;
            rules += &format!(
                "- {{name: r{index}, match: {{domain: {DOMAIN}, descriptor.limit: l{index}}}, policy: '{text}', \
                 quota: {{proxies: {proxies}}}}}\n"
            );
            let policy: Policy = text.parse()?;
            let limit = &policy.limits()[0];
            let (units, period) = limit.rate();
            let rate = u64::from(units) * 1_000_000_000 / as_micros(period);
            let burst = limit.capacity().into();
            limits.push(Limit { rate, burst, excess: 0, passed: 0, came: 0 });
            ids.push([("limit".to_owned(), format!("l{index}"))].into());
        }
        let quotas = SimulatedQuotas::new(&rules).map_err(anyhow::Error::msg)?;
        let keys = plan.keys.len();
        let host = |_| Host {
            envoy: Envoy::default(),
            starts: 0,
            stream: None,
            has_tried: false,
            rates: vec![0; keys],
            due: vec![0; keys],
        };
        Ok(Self {
            plan,
            log: EventLog::new(&VirtualTime::start(), output),
            random: RandomByTime::new(plan.seed, "quotas"),
            millis: 0,
            quotas,
            store: store(),
            limits,
            ids,
            envoys: (0..plan.world.envoys).map(host).collect(),
            servers: vec![0; plan.world.servers],
            orphans: Vec::new(),
            streams: 0,
            unavailable: (0, false),
            slow: (0, 0),
            violation: None,
        })
    }

    fn run(mut self) -> Result<RunOutcome> {
        let ends = SPAN + CALM;
        let mut steps = self.plan.steps.iter().peekable();
        while self.millis < ends && self.violation.is_none() {
            while let Some(step) = steps.next_if(|step| step.at <= self.millis) {
                self.log.add_at(self.millis, format_args!("{step}"));
                self.act(step.process, step.action);
            }
            for envoy in 0..self.envoys.len() {
                self.run_envoy(envoy);
            }
            self.serve();
            self.millis += TICK;
            for limit in &mut self.limits {
                limit.excess = limit.excess.saturating_sub(limit.rate * TICK / 1000);
            }
        }
        self.check_use();
        Ok(RunOutcome::new(&self.log, self.millis, self.violation))
    }

    fn now(&self) -> Timestamp {
        Timestamp::saturating_from_micros(START + self.millis * 1000)
    }

    fn delay(&self) -> u64 {
        let most = if self.random.below(self.millis, 8) == 0 { MAX_DELAY } else { 20 };
        self.random.below(self.millis, most)
    }

    fn violate(&mut self, what: &str) {
        let millis = self.millis;
        self.violation.get_or_insert_with(|| format!("after {millis} ms: {what}"));
    }

    fn act(&mut self, process: usize, action: Action) {
        match action {
            Action::Demand { key, rate } => self.envoys[process].rates[key] = rate,
            Action::RestartEnvoy { span } => {
                self.break_stream(process);
                let host = &mut self.envoys[process];
                (host.envoy, host.has_tried) = (Envoy::default(), false);
                host.starts = self.millis + span;
                let stream = host.stream.take();
                self.orphans.extend(stream);
            }
            Action::Break => self.break_stream(process),
            Action::Crash { server, span } => {
                self.servers[server] = self.millis + span;
                for envoy in 0..self.envoys.len() {
                    if self.envoys[envoy].stream.as_ref().is_some_and(|it| it.server == server) {
                        self.break_stream(envoy);
                        let stream = self.envoys[envoy].stream.as_mut();
                        stream.into_iter().for_each(|it| {
                            it.broken = it.broken.map(|(_, envoy)| (0, envoy));
                        });
                    }
                }
                self.orphans.retain(|it| it.server != server);
                if self.plan.world.forgets {
                    self.store = store();
                }
            }
            Action::Unavailable { span, applies } => {
                self.unavailable = (self.millis + span, applies)
            }
            Action::Slow { span, latency } => self.slow = (self.millis + span, latency),
        }
    }

    fn break_stream(&mut self, envoy: usize) {
        let (server, own) = (self.millis + self.delay(), self.millis + self.delay());
        let Some(stream) = &mut self.envoys[envoy].stream else { return };
        stream.broken.get_or_insert((server, own));
        stream.reports.clear();
        stream.actions.clear();
    }

    /// Requests, reports and messages of an Envoy.
    fn run_envoy(&mut self, envoy: usize) {
        let (now, host) = (self.millis, &mut self.envoys[envoy]);
        if host.starts > now {
            return;
        }
        if host.stream.as_ref().is_some_and(|it| it.broken.is_some_and(|(_, own)| own <= now)) {
            let stream = host.stream.take();
            self.orphans.extend(stream);
        }
        self.receive(envoy);
        for key in 0..self.ids.len() {
            let host = &mut self.envoys[envoy];
            host.due[key] += host.rates[key] * TICK;
            let count = host.due[key] / 1000;
            host.due[key] %= 1000;
            if count == 0 {
                continue;
            }
            let (passed, is_new) = host.envoy.request(&self.ids[key], count, now);
            self.pass(key, count, passed);
            if is_new {
                if !std::mem::replace(&mut self.envoys[envoy].has_tried, true) {
                    self.connect(envoy);
                }
                let reports = self.envoys[envoy].envoy.first_report(&self.ids[key]);
                self.send(envoy, reports);
            }
        }
        if let Some(reports) = self.envoys[envoy].envoy.reports(now) {
            if self.envoys[envoy].stream.is_none() {
                self.connect(envoy);
            }
            self.send(envoy, reports);
        }
    }

    /// Requests pass: no interval may have more than the burst and the rate.
    fn pass(&mut self, key: usize, came: u64, passed: u64) {
        let limit = &mut self.limits[key];
        limit.excess += passed * 1000;
        if self.millis >= SPAN + CALM - MEASURED {
            limit.passed += passed;
            limit.came += came;
        }
        // Each Envoy rounds to whole requests, and time passes in steps.
        let most = limit.burst * 1000 + limit.rate * TICK / 1000 + 1000 * self.envoys.len() as u64;
        if limit.excess > most {
            let excess = limit.excess / 1000;
            self.violate(&format!(
                "bound: {excess} units above the rate of limit {key} have passed"
            ));
        }
    }

    fn connect(&mut self, envoy: usize) {
        let server = usize::try_from(self.random.below(self.millis, self.servers.len() as u64));
        let server = server.unwrap_or_default();
        let started = self.servers[server];
        if started > self.millis {
            return;
        }
        self.streams += 1;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.streams.to_be_bytes());
        let not_before = if self.plan.world.forgets {
            Timestamp::saturating_from_micros(START + started * 1000) + SimulatedQuotas::HOLD
        } else {
            Timestamp::EPOCH
        };
        self.envoys[envoy].stream = Some(Stream {
            server,
            quotas: self.quotas.stream(id, not_before, 100),
            reports: VecDeque::new(),
            actions: VecDeque::new(),
            answers: None,
            broken: None,
        });
    }

    fn send(&mut self, envoy: usize, reports: Reports) {
        let arrival = self.millis + self.delay();
        let Some(stream) = &mut self.envoys[envoy].stream else { return };
        if stream.broken.is_none() {
            let last = stream.reports.back().map_or(0, |it| it.0);
            stream.reports.push_back((arrival.max(last), reports));
        }
    }

    /// Messages that arrive at an Envoy.
    fn receive(&mut self, envoy: usize) {
        loop {
            let now = self.millis;
            let host = &mut self.envoys[envoy];
            let arrived = host.stream.as_mut().and_then(|stream| {
                stream.actions.front().filter(|it| it.0 <= now)?;
                stream.actions.pop_front()
            });
            let Some((_, actions)) = arrived else { return };
            for action in actions {
                self.log.add_at(now, format_args!("envoy {envoy}: {:?}", action.assignment));
                let full = self.envoys[envoy].envoy.act(&action, now);
                let Some(key) = self.ids.iter().position(|it| *it == action.bucket) else {
                    continue;
                };
                if let Some(tokens) = full {
                    // A bucket that begins full may pass its tokens beyond the rate, in the intervals that contain its begin.
                    let excess = &mut self.limits[key].excess;
                    *excess = excess.saturating_sub(u64::from(tokens) * 1000);
                }
                self.check_shares(key);
            }
        }
    }

    /// The assignments in force must fit into the limit.
    fn check_shares(&mut self, key: usize) {
        let (mut rate, mut burst) = (0, 0);
        for host in self.envoys.iter().filter(|it| it.starts <= self.millis) {
            if let Some(tokens) = host.envoy.assigned(&self.ids[key], self.millis) {
                rate += u64::from(tokens.per_fill) * 1000 / u64::from(tokens.interval);
                burst += u64::from(tokens.max);
            }
        }
        let limit = &self.limits[key];
        if rate > limit.rate {
            let most = limit.rate;
            self.violate(&format!(
                "shares: {rate} of {most} thousandths per second of limit {key} are assigned"
            ));
        } else if burst > limit.burst {
            self.violate(&format!("burst: buckets of limit {key} have {burst} tokens"));
        }
    }

    /// The streams, on their servers.
    fn serve(&mut self) {
        let now = self.millis;
        self.orphans.retain(|it| it.broken.is_some_and(|(server, _)| server > now));
        for envoy in 0..self.envoys.len() {
            let Some(mut stream) = self.envoys[envoy].stream.take() else { continue };
            if stream.broken.is_none_or(|(server, _)| server > now) {
                self.serve_stream(&mut stream);
            }
            self.envoys[envoy].stream = Some(stream);
        }
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.iter_mut().for_each(|stream| self.serve_stream(stream));
        self.orphans = orphans;
    }

    fn serve_stream(&mut self, stream: &mut Stream) {
        let (millis, now) = (self.millis, self.now());
        while let Some((_, reports)) = stream.reports.pop_front_if(|it| it.0 <= millis) {
            if let Err(error) = stream.quotas.report(&self.quotas, now, DOMAIN, reports) {
                self.violate(&format!("report: {error}"));
            }
        }
        if let Some((at, answers)) = stream.answers.take() {
            if at > millis {
                stream.answers = Some((at, answers));
                return;
            }
            stream.quotas.answers(now, answers);
            if !self.ask(stream) {
                self.answer(stream);
            }
            return;
        }
        if stream.quotas.next_turn().is_some_and(|at| at <= now)
            && stream.quotas.begin_turn(now)
            && !self.ask(stream)
        {
            self.answer(stream);
        }
    }

    /// Sends the next operations to the store. `false`: there are none.
    fn ask(&mut self, stream: &mut Stream) -> bool {
        let operations = stream.quotas.operations();
        if operations.is_empty() {
            return false;
        }
        let answers = operations.iter().map(|it| self.apply(&it.keyed())).collect();
        let latency = if self.slow.0 > self.millis { self.slow.1 } else { 0 };
        stream.answers = Some((self.millis + latency, answers));
        true
    }

    fn apply(&self, it: &KeyedOperation<'_>) -> Result<Answer, StoreError> {
        let (until, applies) = self.unavailable;
        let is_unavailable = until > self.millis;
        if is_unavailable && !applies {
            return Err(StoreError::Unavailable("it does not answer".to_owned()));
        }
        let decided = self.store.apply(it.key, it.policy.policy(), self.now(), it.operation);
        if is_unavailable {
            return Err(StoreError::Timeout(std::time::Duration::from_secs(1)));
        }
        Ok(decided?.into())
    }

    /// Sends the actions of a turn.
    fn answer(&mut self, stream: &mut Stream) {
        let actions = stream.quotas.take_actions();
        if actions.is_empty() || stream.broken.is_some() {
            return;
        }
        let arrival = self.millis + self.delay();
        let last = stream.actions.back().map_or(0, |it| it.0);
        stream.actions.push_back((arrival.max(last), actions));
    }

    /// When nothing has failed for a while, Envoys pass nearly all that they may.
    fn check_use(&mut self) {
        let slots = usize::try_from(self.plan.world.proxies).unwrap_or(usize::MAX);
        if self.violation.is_some() || self.envoys.len() > slots {
            return;
        }
        for key in 0..self.limits.len() {
            let Limit { rate, burst, passed, came, .. } = self.limits[key];
            // A bucket of few tokens overflows between two requests.
            if burst < u64::from(self.plan.world.proxies) * MIN_TOKENS {
                continue;
            }
            let most = (rate * MEASURED / 1_000_000).min(came);
            // With little demand, an Envoy may have less than it asks for, until its next report.
            let is_busy = came * 1_000_000 >= rate * MEASURED / 1000 * 1200;
            if is_busy && passed * 100 < most * MIN_USE {
                self.violate(&format!("use: {passed} of {most} units of limit {key} have passed"));
            }
        }
    }
}

fn store() -> MemoryStore {
    MemoryStore::with_hash_keys([1, 2, 3, 4], 2 << 20, WhenFull::Deny)
}
