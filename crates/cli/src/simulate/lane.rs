//! Policies side by side: each event is read once, and decided under all of them.

use std::{
    collections::VecDeque,
    io,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use sluicegate_core::{Decision, Policy, StoreError, Timestamp};
use sluicegate_simulator::{Batch, Event, Fleet, Report, Rows, Simulation, TimeSeries, periods};

use super::options::{Change, Format, Simulate};
use crate::output::{Output, output};

/// The windows that the table shows, besides the policies' own.
const TABLE_SPANS: [u64; 5] = [1, 2, 3, 10, 60];
/// The lifetime of leases, that of all stores unless an option changes it.
const LEASE_LIFETIME: Duration = Duration::from_secs(1);
/// Minimum number of events that are worth a thread.
const MIN_EVENTS_PER_THREAD: usize = 2048;

/// All policies.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    first: Option<Timestamp>,
    threads: usize,
}

/// What decides the events of a lane.
#[derive(Debug)]
enum Decider {
    Store(Box<Simulation>),
    /// Processes that lease units from the store.
    Fleet(Box<Fleet>),
}

/// A policy with the results of its decisions.
#[derive(Debug)]
pub(super) struct Lane {
    decider: Decider,
    output: LaneOutput,
    changes: Vec<Change>,
    /// Changes that are still to come, in order.
    to_come: VecDeque<Change>,
    /// The policy of the command line, before any change.
    given: Option<Policy>,
}

/// Output of the decisions under one policy.
#[derive(Debug)]
struct LaneOutput {
    rows: Option<Rows<Output>>,
    report: Option<Report>,
    track: Option<TimeSeries>,
    /// The policy now in force for events that name none.
    policy: Option<Policy>,
    /// The policy that the first event names, if none is given.
    named: Option<Policy>,
    wants_report: bool,
    /// Lengths of the windows that are known before the first event.
    spans: Vec<Duration>,
    /// Whether the busiest keys are counted, which is not the case if policies are compared.
    counts_keys: bool,
}

impl Lanes {
    /// A lane for each policy, or one for the policies that the trace names. With `follow`, each records data for
    /// charts, and follows that key.
    ///
    /// # Errors
    /// A policy cannot be leased.
    pub(super) fn new(
        options: &Simulate,
        follow: Option<Option<&[u8]>>,
    ) -> Result<Self, StoreError> {
        let mut spans = TABLE_SPANS.map(Duration::from_secs).to_vec();
        spans.extend(options.all_policies().flat_map(periods));
        let given: Vec<Option<Policy>> = match &*options.policies {
            [] => vec![None],
            policies => policies.iter().cloned().map(Some).collect(),
        };
        let csv = options.format == Format::Csv;
        // Rows are those of one decision for each event.
        let deciders: &[Option<u32>] = match options.lease {
            None => &[None],
            Some(_) if csv => &[options.lease],
            Some(_) => &[None, options.lease],
        };
        let lane = |index: usize, given: &Option<Policy>, lease: Option<u32>| {
            let (changes, default) = (options.changes_of(index), given.clone());
            let decider = match lease {
                None => Decider::Store(Box::new(Simulation::new(default))),
                Some(units) => {
                    let processes = options.processes;
                    Decider::Fleet(Box::new(Fleet::new(default, processes, units, LEASE_LIFETIME)?))
                }
            };
            Ok(Lane {
                decider,
                output: LaneOutput {
                    rows: csv.then(|| Rows::new(output())),
                    report: None,
                    track: follow.map(TimeSeries::new),
                    policy: given.clone(),
                    named: None,
                    wants_report: !csv || follow.is_some(),
                    spans: spans.clone(),
                    counts_keys: options.policies.len() < 2 && deciders.len() < 2,
                },
                to_come: changes.clone().into(),
                changes,
                given: given.clone(),
            })
        };
        let of_policy =
            |(index, given)| deciders.iter().map(move |lease| lane(index, given, *lease));
        let lanes: Result<_, StoreError> = given.iter().enumerate().flat_map(of_policy).collect();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { lanes: lanes?, first: None, threads })
    }

    /// Decides all events of `batch` under every policy.
    pub(super) fn decide(&mut self, batch: Batch<'_>) -> anyhow::Result<()> {
        let Some(event) = batch.events().next() else { return Ok(()) };
        let first = *self.first.get_or_insert(event.time);
        let all = &mut self.lanes[..];
        let threads =
            if batch.len() < MIN_EVENTS_PER_THREAD { 1 } else { self.threads.min(all.len()) };
        if threads == 1 {
            return all.iter_mut().try_for_each(|lane| lane.decide(first, batch));
        }
        // Lanes are independent. Some policies take much longer than others, therefore a thread takes the next
        // lane when it is free.
        let next = Mutex::new(all.iter_mut().enumerate());
        let work = || loop {
            let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let (index, lane) = taken?;
            if let Err(error) = lane.decide(first, batch) {
                return Some((index, error));
            }
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let ours = work();
            let others = others.into_iter().map(|thread| match thread.join() {
                Ok(failed) => failed,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // Joins every thread, and returns the error of the first policy.
            let failed = others.chain([ours]).flatten().min_by_key(|(index, _)| *index);
            failed.map_or(Ok(()), |(_, error)| Err(error))
        })
    }

    /// The only lane.
    pub(super) fn only(&mut self) -> &mut Lane {
        &mut self.lanes[0]
    }

    /// Flushes the rows.
    pub(super) fn finish_rows(&mut self) -> io::Result<()> {
        for lane in &mut self.lanes {
            if let Some(rows) = lane.output.rows.take() {
                rows.finish()?;
            }
        }
        Ok(())
    }

    /// Finishes after the last event. Charts reach at least `until` after the first one.
    pub(super) fn finish(&mut self, until: Option<Duration>) {
        if self.first.is_none() {
            self.first = self.lanes.iter().find_map(|lane| lane.output.first());
        }
        let until = self.first.zip(until).map(|(first, until)| first + until);
        for lane in &mut self.lanes {
            lane.finish(self.first, until);
        }
        // All charts end at the same time.
        let end =
            self.lanes.iter().filter_map(|it| it.output.track.as_ref()).map(TimeSeries::end).max();
        let end = end.map(Timestamp::saturating_from_micros);
        for lane in &mut self.lanes {
            if let Some(track) = &mut lane.output.track {
                track.finish(end);
            }
        }
    }

    /// Whether the change with this text came after the last event.
    pub(super) fn is_unused(&self, change: &str) -> bool {
        self.lanes.iter().flat_map(|lane| &lane.to_come).any(|it| it.text == change)
    }

    pub(super) fn all(&self) -> &[Lane] {
        &self.lanes
    }

    /// Time of the first event.
    pub(super) const fn first(&self) -> Option<Timestamp> {
        self.first
    }
}

impl Lane {
    fn decide(&mut self, first: Timestamp, batch: Batch<'_>) -> anyhow::Result<()> {
        let mut rest = batch;
        while let Some(change) = self.to_come.front() {
            let at = first + change.after;
            let (before, behind) = rest.split_at_time(at);
            self.decide_unchanged(before)?;
            rest = behind;
            if rest.is_empty() {
                return Ok(());
            }
            self.change(at);
        }
        self.decide_unchanged(rest)
    }

    fn decide_unchanged(&mut self, batch: Batch<'_>) -> anyhow::Result<()> {
        let output = &mut self.output;
        match &mut self.decider {
            Decider::Store(simulation) => simulation.decide_batch(batch, |event, decision| {
                output.add(event, decision).map_err(anyhow::Error::from)
            }),
            Decider::Fleet(fleet) => batch.events().try_for_each(|event| {
                let decision = fleet.decide(&event)?;
                Ok(output.add(&event, &decision)?)
            }),
        }
    }

    /// Applies the next change.
    fn change(&mut self, now: Timestamp) {
        if let Some(Change { policy, .. }) = self.to_come.pop_front() {
            if let Some(track) = &mut self.output.track {
                track.change(now, &policy);
            }
            match &mut self.decider {
                Decider::Store(simulation) => simulation.change(policy.clone()),
                Decider::Fleet(fleet) => fleet.change(policy.clone()),
            }
            self.output.policy = Some(policy);
        }
    }

    fn finish(&mut self, first: Option<Timestamp>, until: Option<Timestamp>) {
        while let (Some(change), Some(first), Some(until)) = (self.to_come.front(), first, until) {
            let at = first + change.after;
            if at >= until {
                break;
            }
            self.change(at);
        }
        let output = &mut self.output;
        if output.wants_report {
            if output.report.is_none() {
                output.report = Some(output.new_report());
            }
            output.report.iter_mut().for_each(Report::finish);
        }
        if let Some(track) = &mut output.track {
            track.finish(until);
        }
    }

    /// Adds a decision of another store. They come in the order of events.
    pub(super) fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()> {
        self.output.add(event, decision)
    }

    /// The policy of the command line, or else that of the first event.
    pub(super) fn policy(&self) -> Option<&Policy> {
        self.given.as_ref().or(self.output.named.as_ref())
    }

    pub(super) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Its name: the policy, and whether units are leased.
    pub(super) fn name(&self) -> String {
        let policy = self.policy().map(ToString::to_string);
        let policy = policy.unwrap_or_else(|| "policies named in the trace".to_owned());
        match self.fleet() {
            Some(fleet) => format!("{policy}, leases of {}", fleet.units()),
            None => policy,
        }
    }

    /// The processes that lease, if there are any.
    pub(super) fn fleet(&self) -> Option<&Fleet> {
        match &self.decider {
            Decider::Store(_) => None,
            Decider::Fleet(fleet) => Some(fleet),
        }
    }

    pub(super) fn report(&self) -> &Report {
        self.output.report.as_ref().expect("a finished lane has a report")
    }

    pub(super) fn track(&self) -> Option<&TimeSeries> {
        self.output.track.as_ref()
    }
}

impl LaneOutput {
    fn add(&mut self, event: &Event<'_>, decision: &Decision) -> io::Result<()> {
        if let Some(rows) = &mut self.rows {
            rows.write(event.time, event.key, event.cost, decision)?;
        }
        if self.wants_report {
            if self.report.is_none() {
                self.start(event);
            }
            if let Some(report) = &mut self.report {
                report.add(event, decision);
            }
        }
        if let Some(track) = &mut self.track {
            track.add(event, decision, self.policy.as_ref());
        }
        Ok(())
    }

    /// Creates the report at the first event, which may name the policy.
    #[cold]
    fn start(&mut self, event: &Event<'_>) {
        if self.policy.is_none() {
            self.named = str::from_utf8(event.policy).ok().and_then(|text| text.parse().ok());
            self.spans.extend(self.named.iter().flat_map(periods));
        }
        self.report = Some(self.new_report());
    }

    fn new_report(&self) -> Report {
        if self.counts_keys { Report::new(&self.spans) } else { Report::without_keys(&self.spans) }
    }

    fn first(&self) -> Option<Timestamp> {
        self.track.as_ref().and_then(TimeSeries::first)
    }
}
