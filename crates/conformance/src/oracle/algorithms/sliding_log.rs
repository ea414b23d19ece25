//! `sliding-log`: an event for every request of the last period.

use num_traits::Zero;

use super::api::{Algorithm, Properties};
use crate::oracle::exact::{Q, at_least_zero, q};
use crate::oracle::text::{LimitText, duration, number};

/// Upper bound on `keep-max`.
const MAX_KEPT_UNITS: u64 = 1 << 20;

/// At most `n` in any `p` microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    n: Q,
    p: Q,
    count_all: bool,
    keep: Option<Keep>,
}

/// Requests that passed or were recorded, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct State {
    events: Vec<Event>,
}

/// One entry of a log.
#[derive(Clone, Debug)]
struct Event {
    t: Q,
    weight: Q,
}

/// Keeps events for `span` microseconds, up to `max_units` units, even after they stop counting.
#[derive(Clone, Debug, PartialEq)]
struct Keep {
    span: Q,
    max_units: Q,
}

impl Keep {
    fn parse(n: &Q, p: &Q, text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        let (span, max_units) = match (text.value("keep")?, text.value("keep-max")?) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err("`keep-max` without `keep`".to_owned()),
            (Some(span), max_units) => (duration(span)?, max_units),
        };
        let max_units = match max_units {
            Some(units) => number(units, 1, MAX_KEPT_UNITS)?,
            None => (n * &span / p).ceil().min(q(MAX_KEPT_UNITS)),
        };
        Ok(Some(Self { span, max_units }))
    }
}

impl Parameters {
    /// Whether an event counts at `now`; one exactly a period old does not.
    fn live(&self, event: &Event, now: &Q) -> bool {
        event.t > now - &self.p
    }

    fn live_sum(&self, events: &[Event], now: &Q) -> Q {
        events.iter().filter(|event| self.live(event, now)).map(|event| &event.weight).sum()
    }

    /// Whether the log holds more than `keep-max` allows. Without `keep`, nothing is allowed.
    fn over_allowance(&self, events: &[Event]) -> bool {
        let total: Q = events.iter().map(|event| &event.weight).sum();
        self.keep.as_ref().is_none_or(|keep| total > keep.max_units)
    }
}

impl Algorithm for Parameters {
    type State = State;
    const NAMES: &[&str] = &["sliding-log"];

    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        let (n, p, count_all) = (text.n.clone(), duration(text.period)?, text.count_all()?);
        let keep = Keep::parse(&n, &p, text)?;
        Ok(Some(Self { n, p, count_all, keep }))
    }

    fn properties(&self) -> Properties<'_> {
        let plain = Properties::of(&self.n, Some(&self.p));
        Properties { records_denials: self.count_all, keeps_log: true, ..plain }
    }

    fn unused(&self, _now: &Q) -> State {
        State { events: Vec::new() }
    }

    fn latest(&self, state: &State) -> Option<Q> {
        state.events.last().map(|newest| newest.t.clone())
    }

    fn at(&self, state: &State, now: &Q) -> State {
        let retained = self.keep.as_ref().map_or(&self.p, |keep| (&keep.span).max(&self.p));
        let horizon = now - retained;
        let mut events = state.events.clone();
        for event in &mut events {
            event.t = event.t.clone().min(now.clone());
        }
        events.retain(|event| event.t > horizon);
        State { events }
    }

    fn recovered(&self, state: &State, now: &Q) -> bool {
        !state.events.iter().any(|event| self.live(event, now))
    }

    fn forgotten(&self, state: &State, _now: &Q) -> bool {
        state.events.is_empty()
    }

    fn passes(&self, state: &State, now: &Q, units: &Q) -> bool {
        self.live_sum(&state.events, now) + units <= self.n
    }

    fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q {
        // The sum only falls when an event turns a period old, so it is enough to try those times.
        let wait = |event: &Event| at_least_zero(&event.t + &self.p - now);
        let mut waits: Vec<Q> = state.events.iter().map(wait).collect();
        waits.sort();
        let least = waits.into_iter().find(|d| self.passes(state, &(now + d), units));
        least.expect("an empty log admits every cost within its limit")
    }

    fn remaining(&self, state: &State, now: &Q) -> Q {
        at_least_zero(&self.n - self.live_sum(&state.events, now))
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        let newest = state.events.iter().rfind(|event| self.live(event, now));
        newest.map_or_else(Q::zero, |event| &event.t + &self.p - now)
    }

    fn charge(&self, state: &State, now: &Q, cost: &Q) -> State {
        let mut events = state.events.clone();
        if !cost.is_zero() {
            events.push(Event { t: now.clone(), weight: cost.clone() });
        }
        State { events }
    }

    fn refund(&self, state: &State, now: &Q, cost: &Q) -> State {
        let mut left = cost.clone();
        let mut events = state.events.clone();
        for event in events.iter_mut().rev() {
            if self.live(event, now) {
                let taken = left.clone().min(event.weight.clone());
                event.weight = &event.weight - &taken;
                left = left - taken;
            }
        }
        events.retain(|event| !event.weight.is_zero());
        State { events }
    }

    fn trim(&self, state: &State, now: &Q) -> State {
        let mut events = self.tidy(state, now).events;
        while let Some((oldest, rest)) = events.split_first() {
            let not_needed = self.live(oldest, now) && self.live_sum(rest, now) >= self.n;
            if !(not_needed && self.over_allowance(&events)) {
                break;
            }
            events.remove(0);
        }
        State { events }
    }

    fn tidy(&self, state: &State, now: &Q) -> State {
        let mut events = state.events.clone();
        while let Some(oldest) = events.first() {
            if self.live(oldest, now) || !self.over_allowance(&events) {
                break;
            }
            events.remove(0);
        }
        State { events }
    }

    fn used(&self, state: &State, now: &Q) -> Q {
        self.live_sum(&state.events, now)
    }
}
