//! The answer of each operation, and the states after it.

use num_traits::Zero;

use super::answer::{Answer, Op};
use super::exact::{Q, at_least_zero, q, whole};
use super::limit::Limit;
use super::machine::{State, Wait};

/// The states after an operation.
#[derive(Debug)]
pub(super) enum After {
    /// Nothing is stored.
    Unchanged,
    /// The key is unused.
    Reset,
    /// A new state for every limit.
    All(Vec<State>),
    /// A denial: a new state for the limits that record it.
    Recorded(Vec<Option<State>>),
}

/// Decides one operation, given all states at `now`.
pub(super) fn decide(
    limits: &[Limit],
    current: &[State],
    now: &Q,
    op: Op,
    cost: &Q,
) -> (Answer, After) {
    let each = |change: &dyn Fn(&Limit, &State) -> State| -> Vec<State> {
        limits.iter().zip(current).map(|(limit, state)| change(limit, state)).collect()
    };
    let charged = |limit: &Limit, state: &State| limit.machine().charge(state, now, cost);
    let trimmed = |limit: &Limit, state: &State| limit.machine().trim(charged(limit, state), now);
    let zero = Q::zero();

    match op {
        Op::Reset => {
            let unused = each(&|limit, _| limit.machine().unused(now));
            (allowed(limits, &unused, now, &zero), After::Reset)
        }
        _ if cost.is_zero() => (allowed(limits, current, now, &zero), After::Unchanged),
        Op::Charge => {
            let after = each(&trimmed);
            (allowed(limits, &after, now, &zero), After::All(after))
        }
        Op::Refund => {
            let after = each(&|limit, state| limit.machine().refund(state, now, cost));
            (allowed(limits, &after, now, &zero), After::All(after))
        }
        Op::Peek => {
            let answer = if all_pass(limits, current, now, cost) {
                allowed(limits, current, now, &delay(limits, current, now))
            } else {
                denied(limits, current, now, &waits(limits, current, now, cost))
            };
            (answer, After::Unchanged)
        }
        Op::Take if all_pass(limits, current, now, cost) => {
            let delay = delay(limits, current, now);
            let after = each(&charged);
            (allowed(limits, &after, now, &delay), After::All(after))
        }
        Op::Take => {
            let record = |(limit, state): (&Limit, &State)| {
                limit.machine().records_denials().then(|| trimmed(limit, state))
            };
            let recorded: Vec<Option<State>> = limits.iter().zip(current).map(record).collect();
            let after_denial = |(state, recorded): (&State, &Option<State>)| {
                recorded.as_ref().unwrap_or(state).clone()
            };
            let after: Vec<State> = current.iter().zip(&recorded).map(after_denial).collect();
            let waits = waits(limits, &after, now, cost);
            (denied(limits, &after, now, &waits), After::Recorded(recorded))
        }
        Op::Reserve { max_wait_us } => {
            let waits_at = |then: &Q| reserve_waits(limits, current, then, cost);
            let max_wait = Wait::After(q(max_wait_us));
            let waits = waits_at(now);
            if let Some(Wait::After(longest)) = waits.iter().max()
                && waits.iter().max() <= Some(&max_wait)
            {
                let after = each(&charged);
                return (allowed(limits, &after, now, longest), After::All(after));
            }
            // A wait shrinks with time; therefore a limit needs the part that exceeds `max_wait`.
            let rest = |wait| match wait {
                Wait::After(d) => Wait::After(at_least_zero(d - q(max_wait_us))),
                Wait::Never => Wait::Never,
            };
            let rests: Vec<Wait> = waits.into_iter().map(rest).collect();
            if let Some(Wait::After(d)) = rests.iter().max() {
                let then = now + d;
                assert!(waits_at(&then).iter().all(|wait| wait <= &max_wait), "too soon");
                assert!(waits_at(&(then - q(1))).iter().any(|wait| wait > &max_wait), "too late");
            }
            (denied(limits, current, now, &rests), After::Unchanged)
        }
    }
}

fn all_pass(limits: &[Limit], states: &[State], now: &Q, cost: &Q) -> bool {
    limits.iter().zip(states).all(|(limit, state)| limit.machine().passes(state, now, cost))
}

/// The delay of a request that these states admit.
fn delay(limits: &[Limit], states: &[State], now: &Q) -> Q {
    let delays = limits.iter().zip(states).map(|(limit, state)| limit.machine().delay(state, now));
    delays.max().expect("a policy has a limit")
}

/// For each limit, the time after which it admits this cost.
fn waits(limits: &[Limit], states: &[State], now: &Q, cost: &Q) -> Vec<Wait> {
    let pairs = limits.iter().zip(states);
    pairs.map(|(limit, state)| limit.retry_after(state, now, cost)).collect()
}

/// For each limit, the wait of a reserved request.
fn reserve_waits(limits: &[Limit], states: &[State], now: &Q, cost: &Q) -> Vec<Wait> {
    let wait = |(limit, state): (&Limit, &State)| match limit {
        Limit::Rate(parameters) => parameters.reserve_wait(state, now, cost),
        _ => unreachable!("a reserve on another machine was rejected"),
    };
    limits.iter().zip(states).map(wait).collect()
}

/// The answer to an allowed request: the limit with the least remaining binds.
fn allowed(limits: &[Limit], states: &[State], now: &Q, delay: &Q) -> Answer {
    let remaining = remaining(limits, states, now);
    let least = remaining.iter().min().expect("a policy has a limit");
    let binding = remaining.iter().position(|r| r == least).expect("the least is one of them");
    Answer { delay_us: whole(delay), ..answer(limits, states, now, binding, true, Some(0)) }
}

/// The answer to a denied request: the limit with the greatest wait binds.
fn denied(limits: &[Limit], states: &[State], now: &Q, waits: &[Wait]) -> Answer {
    let greatest = waits.iter().max().expect("a policy has a limit");
    let binding = waits.iter().position(|w| w == greatest).expect("the greatest is one of them");
    let retry = match greatest {
        Wait::After(d) => {
            assert!(d > &Q::zero(), "a denied request does not pass at once");
            Some(whole(d))
        }
        Wait::Never => None,
    };
    answer(limits, states, now, binding, false, retry)
}

fn answer(
    limits: &[Limit],
    states: &[State],
    now: &Q,
    binding: usize,
    allowed: bool,
    retry_after_us: Option<u64>,
) -> Answer {
    let remaining = remaining(limits, states, now).into_iter().min();
    let resets = limits.iter().zip(states).map(|(limit, state)| limit.reset_after(state, now));
    Answer {
        allowed,
        limit: whole(limits[binding].machine().capacity()),
        remaining: whole(&remaining.expect("a policy has a limit")),
        retry_after_us,
        reset_after_us: whole(&resets.max().expect("a policy has a limit")),
        delay_us: 0,
        binding,
    }
}

fn remaining(limits: &[Limit], states: &[State], now: &Q) -> Vec<Q> {
    let pairs = limits.iter().zip(states);
    pairs.map(|(limit, state)| limit.remaining(state, now)).collect()
}
