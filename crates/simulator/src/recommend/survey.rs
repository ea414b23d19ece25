//! One pass over events: a profile of each key, and every candidate's decisions on it.

use std::time::Duration;

use sluicegate_core::{Entry, Operation, Timestamp, apply, as_micros};

use super::{
    candidates::{Candidate, HOUR, MAX_INTERVAL, MIN_BURST},
    key_sample::KeySample,
    profile::Profile,
};
use crate::{event::Event, heavy_hitters::MAX_BUSY_KEYS};

/// A pause of all keys that does not count as a part of the traffic: one wrong time makes such a pause.
pub const LONG_PAUSE: Duration = HOUR;

/// Reads events once, and decides them under all candidates.
///
/// Memory is bounded by [`MAX_BUSY_KEYS`] keys. With more, a random sample of them and the busiest are followed.
///
/// ```
/// use sluicegate_simulator::{Recommendation, Survey, TraceReader};
///
/// let mut reader = TraceReader::new("t_us,key,cost\n0,alice,1\n250000,alice,1\n".as_bytes())?;
/// let mut survey = Survey::new();
/// loop {
///     let batch = reader.next_batch()?;
///     if batch.is_empty() {
///         break;
///     }
///     batch.events().for_each(|event| survey.add(&event));
/// }
/// let recommendation = Recommendation::new(&survey);
/// assert_eq!((recommendation.requests, recommendation.people), (2, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Survey {
    pub(super) candidates: Vec<Candidate>,
    pub(super) keys: KeySample<KeyRecord>,
    pub(super) requests: u64,
    /// Other events, which are not decided.
    pub(super) others: u64,
    /// Times of the first and the last request, in microseconds.
    pub(super) times: Option<(u64, u64)>,
    /// The time between them in microseconds, without long pauses.
    pub(super) length: u64,
}

/// What is known of a key.
#[derive(Debug)]
pub(super) struct KeyRecord {
    pub(super) profile: Profile,
    state: State,
    /// Requests denied by each candidate; empty if none has denied any.
    denied: Box<[u32]>,
}

/// The state of a key under all candidates.
#[derive(Debug)]
enum State {
    /// Unused, but for one request that all admitted.
    Once { at: u64, cost: u32 },
    /// The theoretical arrival time under each candidate, in microseconds; an earlier time than now is no state.
    Arrivals(Box<[u64]>),
}

impl Default for Survey {
    fn default() -> Self {
        Self::new()
    }
}

impl Survey {
    /// Without events.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(MAX_BUSY_KEYS)
    }

    /// Follows at most so many keys.
    pub(super) fn with_capacity(keys: usize) -> Self {
        let keys = KeySample::new(keys);
        let candidates = Candidate::all();
        Self { candidates, keys, requests: 0, others: 0, times: None, length: 0 }
    }

    /// Adds an event, not before the last one. Requests are decided, by their cost; other events are counted.
    pub fn add(&mut self, event: &Event<'_>) {
        if !event.kind.is_request() {
            self.others += 1;
            return;
        }
        let now = event.time.as_micros();
        self.requests += 1;
        let (first, last) = self.times.unwrap_or((now, now));
        self.times = Some((first, now));
        let gap = now.saturating_sub(last);
        self.length += if gap < as_micros(LONG_PAUSE) { gap } else { 0 };
        let (candidates, cost) = (&self.candidates, event.cost.unwrap_or(0));
        if let Some(record) = self.keys.get_mut(event.key) {
            record.profile.add(now);
            record.decide(candidates, event.time, cost);
            return;
        }
        let mut record = KeyRecord {
            profile: Profile::new(now),
            state: State::Arrivals(Box::default()),
            denied: Box::default(),
        };
        record.decide(candidates, event.time, cost);
        self.keys.insert(event.key, record, |record| record.profile.requests());
    }
}

impl KeyRecord {
    /// Requests denied by the candidate of that index.
    pub(super) fn denied(&self, candidate: usize) -> u64 {
        self.denied.get(candidate).copied().unwrap_or(0).into()
    }

    fn decide(&mut self, candidates: &[Candidate], time: Timestamp, cost: u32) {
        let now = time.as_micros();
        let is_unused = match &self.state {
            State::Once { at, cost } => *at + u64::from(*cost) * MAX_INTERVAL <= now,
            State::Arrivals(arrivals) => arrivals.iter().all(|arrival| *arrival <= now),
        };
        // Most keys are idle most of the time, and need no memory for each candidate then.
        if is_unused && (1..=MIN_BURST).contains(&cost) {
            self.state = State::Once { at: now, cost };
            return;
        }
        let mut arrivals = match std::mem::replace(&mut self.state, State::Once { at: 0, cost: 0 })
        {
            State::Arrivals(arrivals) if !arrivals.is_empty() => arrivals,
            State::Arrivals(_) => vec![0; candidates.len()].into(),
            State::Once { at, cost } => {
                let after = |it: &Candidate| at + u64::from(cost) * it.interval();
                candidates.iter().map(after).collect()
            }
        };
        for (index, (candidate, arrival)) in candidates.iter().zip(&mut arrivals).enumerate() {
            let debt = arrival.saturating_sub(now);
            let (allowed, after) = match candidate.gcra.try_take(debt, cost) {
                Some(take) => (take.allowed, take.after),
                None => decide_slowly(candidate, time, debt, cost),
            };
            *arrival = now + after;
            if !allowed {
                if self.denied.is_empty() {
                    self.denied = vec![0; candidates.len()].into();
                }
                self.denied[index] = self.denied[index].saturating_add(1);
            }
        }
        self.state = State::Arrivals(arrivals);
    }
}

/// As [`Gcra::try_take`](sluicegate_core::Gcra::try_take), for the costs that it leaves to `apply`.
#[cold]
fn decide_slowly(candidate: &Candidate, now: Timestamp, debt: u64, cost: u32) -> (bool, u64) {
    let mut entry = Entry::with_debt(&candidate.policy, now, debt.into());
    let decision = apply(&candidate.policy, &mut entry, now, Operation::Take(cost));
    let allowed = decision.expect("a bucket supports a take").allowed();
    let after = entry.and_then(|entry| entry.debt(now)).unwrap_or(0);
    (allowed, u64::try_from(after).expect("a burst of a candidate takes minutes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{run::Simulation, trace::TraceReader};

    /// Reads a trace.
    fn for_each_event(trace: &str, mut read: impl FnMut(&Event<'_>)) {
        let mut reader = TraceReader::new(trace.as_bytes()).unwrap();
        loop {
            let batch = reader.next_batch().unwrap();
            if batch.is_empty() {
                return;
            }
            batch.events().for_each(|event| read(&event));
        }
    }

    /// Microseconds from one request to the next, mostly short.
    fn waits() -> impl Strategy<Value = u64> {
        prop_oneof![
            8 => 0..4_000_000_u64,
            1 => 0..900_000_000_u64,
            1 => 0..8_000_000_000_u64,
        ]
    }

    proptest! {
        /// Each candidate denies what a simulation of its policy denies.
        #[test]
        fn survey_denies_what_the_policies_deny(
            steps in proptest::collection::vec((waits(), 0..2_u32, 0..9_u32), 1..200),
        ) {
            let mut trace = "t_us,key,cost\n".to_owned();
            let mut now = 1_700_000_000_000_000;
            for (wait, key, cost) in steps {
                now += wait;
                // A few costs are above the lowest bursts.
                let cost = if cost == 8 { 40 } else { cost };
                trace += &format!("{now},{key},{cost}\n");
            }
            let mut survey = Survey::new();
            let mut simulations: Vec<Simulation> = survey
                .candidates
                .iter()
                .map(|candidate| Simulation::new(Some(candidate.policy.clone())))
                .collect();
            let mut denied = vec![[0_u64; 2]; simulations.len()];
            for_each_event(&trace, |event| {
                survey.add(event);
                let key = usize::from(event.key == b"1");
                for (simulation, denied) in simulations.iter_mut().zip(&mut denied) {
                    denied[key] += u64::from(!simulation.decide(event).unwrap().allowed());
                }
            });
            for (candidate, denied) in denied.iter().enumerate() {
                for (key, denied) in [b"0", b"1"].into_iter().zip(denied) {
                    let found = survey.keys.get_mut(key).map_or(0, |it| it.denied(candidate));
                    prop_assert_eq!(found, *denied);
                }
            }
        }
    }

    #[test]
    fn survey_keeps_no_more_keys_than_its_capacity() {
        let mut survey = Survey::with_capacity(64);
        let mut trace = "t_us,key,cost\n".to_owned();
        (0..10_000).for_each(|at| trace += &format!("{at},{at},1\n"));
        for_each_event(&trace, |event| {
            survey.add(event);
            assert!(survey.keys.keys().count() <= 64);
        });
        assert_eq!((survey.requests, survey.times), (10_000, Some((0, 9999))));
    }

    #[test]
    fn survey_length_is_without_long_pauses() {
        let hour = as_micros(HOUR);
        let mut trace = "t_us,key,cost\n".to_owned();
        let times = [0, 40 * hour, 40 * hour + 7, 41 * hour + 6, 42 * hour + 6, 1 << 52];
        times.iter().for_each(|at| trace += &format!("{at},a,1\n"));
        let mut survey = Survey::new();
        for_each_event(&trace, |event| survey.add(event));
        assert_eq!(survey.length, 7 + hour - 1);
    }
}
