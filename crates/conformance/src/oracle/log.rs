//! `sliding-log`: an event for every request of the last period.

use num_traits::Zero;

use super::exact::{Q, at_least_zero};
use super::machine::{Event, Machine, State};

/// At most `n` in any `p` microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) n: Q,
    pub(super) p: Q,
    pub(super) count_all: bool,
    pub(super) keep: Option<Keep>,
}

/// Keeps events for `span` microseconds, up to `max_units` units, even after they stop counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) span: Q,
    pub(super) max_units: Q,
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
        self.keep.as_ref().is_none_or(|keep| total(events) > keep.max_units)
    }

    /// Migrates the state from other parameters of this algorithm: all events that it retains. `at` drops events that
    /// are too old for these parameters.
    pub(super) fn continued(&self, state: &State, now: &Q) -> State {
        self.at(state, now)
    }
}

fn total(events: &[Event]) -> Q {
    events.iter().map(|event| &event.weight).sum()
}

fn events(state: &State) -> &[Event] {
    let State::Log { events } = state else {
        unreachable!("a state is kept under its own machine")
    };
    events
}

impl Machine for Parameters {
    fn capacity(&self) -> &Q {
        &self.n
    }

    fn unused(&self, _now: &Q) -> State {
        State::Log { events: Vec::new() }
    }

    fn at(&self, state: &State, now: &Q) -> State {
        let retained = match &self.keep {
            Some(keep) => self.p.clone().max(keep.span.clone()),
            None => self.p.clone(),
        };
        let horizon = now - retained;
        let clamped = events(state).iter().map(|event| Event {
            t: event.t.clone().min(now.clone()),
            weight: event.weight.clone(),
        });
        State::Log { events: clamped.filter(|event| event.t > horizon).collect() }
    }

    fn recovered(&self, state: &State, now: &Q) -> bool {
        !events(state).iter().any(|event| self.live(event, now))
    }

    fn forgotten(&self, state: &State, _now: &Q) -> bool {
        events(state).is_empty()
    }

    fn passes(&self, state: &State, now: &Q, units: &Q) -> bool {
        self.live_sum(events(state), now) + units <= self.n
    }

    fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q {
        // The sum only falls when an event turns a period old, so it is enough to try those times.
        let mut waits: Vec<Q> =
            events(state).iter().map(|event| at_least_zero(&event.t + &self.p - now)).collect();
        waits.sort();
        let least = waits.into_iter().find(|d| self.passes(state, &(now + d), units));
        least.expect("an empty log admits every cost within its limit")
    }

    fn remaining(&self, state: &State, now: &Q) -> Q {
        at_least_zero(&self.n - self.live_sum(events(state), now))
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        let newest = events(state).iter().rfind(|event| self.live(event, now));
        newest.map_or_else(Q::zero, |event| &event.t + &self.p - now)
    }

    fn charge(&self, state: &State, now: &Q, cost: &Q) -> State {
        let mut events = events(state).to_vec();
        if !cost.is_zero() {
            events.push(Event { t: now.clone(), weight: cost.clone() });
        }
        State::Log { events }
    }

    fn refund(&self, state: &State, now: &Q, cost: &Q) -> State {
        let mut left = cost.clone();
        let mut events = events(state).to_vec();
        for event in events.iter_mut().rev() {
            if self.live(event, now) {
                let taken = left.clone().min(event.weight.clone());
                event.weight = &event.weight - &taken;
                left = left - taken;
            }
        }
        events.retain(|event| !event.weight.is_zero());
        State::Log { events }
    }

    fn records_denials(&self) -> bool {
        self.count_all
    }

    fn trim(&self, state: State, now: &Q) -> State {
        let mut events = events(&self.tidy(state, now)).to_vec();
        while let Some((oldest, rest)) = events.split_first() {
            let not_needed = self.live(oldest, now) && self.live_sum(rest, now) >= self.n;
            if !(not_needed && self.over_allowance(&events)) {
                break;
            }
            events.remove(0);
        }
        State::Log { events }
    }

    fn tidy(&self, state: State, now: &Q) -> State {
        let mut events = events(&state).to_vec();
        while let Some(oldest) = events.first() {
            if self.live(oldest, now) || !self.over_allowance(&events) {
                break;
            }
            events.remove(0);
        }
        State::Log { events }
    }

    fn used(&self, state: &State, now: &Q) -> Q {
        self.live_sum(events(state), now)
    }
}
