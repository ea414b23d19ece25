//! The answer of each operation, and the states after it.

use num_traits::Zero;

use super::ahead::{Ahead, Wait, ahead, all_pass, delay};
use super::algorithms::{Limit, State};
use super::answer::{Answer, Op};
use super::exact::{Q, q, whole};
use super::holds::Ledger;

/// The states after an operation.
#[derive(Debug)]
pub(super) enum After {
    /// Nothing is stored.
    Unchanged,
    /// The key is unused.
    Reset,
    /// A new state for every limit.
    All(Vec<State>),
    /// A denial, or a change of holds: a new state for the limits that record it. Carried states are stored.
    Recorded(Vec<Option<State>>),
}

/// Decides one operation, given all states and the open holds at `now`.
pub(super) fn decide(
    limits: &[Limit],
    current: &[State],
    ledger: &Ledger,
    now: &Q,
    op: Op,
    cost: &Q,
) -> (Answer, After) {
    let each = |change: &dyn Fn(&Limit, &State) -> State| -> Vec<State> {
        limits.iter().zip(current).map(|(limit, state)| change(limit, state)).collect()
    };
    let view = |states: &[State]| ahead(limits, states, ledger, now);
    let zero = Q::zero();

    match op {
        Op::Reset => {
            let unused = each(&|limit, _| limit.unused(now));
            let view = ahead(limits, &unused, &Ledger::default(), now);
            (allowed(&view, &zero), After::Reset)
        }
        _ if cost.is_zero() => (allowed(&view(current), &zero), After::Unchanged),
        Op::Charge => {
            let after = each(&|limit, state| limit.charged(state, now, cost));
            (allowed(&view(&after), &zero), After::All(after))
        }
        Op::Refund => {
            let after = each(&|limit, state| limit.refund(state, now, cost));
            (allowed(&view(&after), &zero), After::All(after))
        }
        Op::Peek => {
            let current = view(current);
            let answer = if all_pass(&current, cost) {
                allowed(&current, &delay(&current))
            } else {
                denied(&current, &waits(&current, cost))
            };
            (answer, After::Unchanged)
        }
        Op::Take if all_pass(&view(current), cost) => {
            let delay = delay(&view(current));
            let after = each(&|limit, state| limit.charge(state, now, cost));
            (allowed(&view(&after), &delay), After::All(after))
        }
        Op::Take => deny(limits, current, ledger, now, cost),
        Op::RecordDenial => {
            let (recorded, after) = record(limits, current, now, cost);
            let after = view(&after);
            let answer = if all_pass(&after, cost) {
                allowed(&after, &zero)
            } else {
                denied(&after, &waits(&after, cost))
            };
            (answer, After::Recorded(recorded))
        }
        Op::Reserve { max_wait_us } => {
            let max_wait = q(max_wait_us);
            let current = view(current);
            let waits: Option<Vec<Q>> =
                current.iter().map(|limit| limit.reserve(cost, &max_wait)).collect();
            if let Some(longest) = waits.and_then(|waits| waits.into_iter().max()) {
                let after = each(&|limit, state| limit.charge(state, now, cost));
                return (allowed(&view(&after), &longest), After::All(after));
            }
            let waits: Vec<Wait> =
                current.iter().map(|limit| limit.reserve_retry_after(cost, &max_wait)).collect();
            (denied(&current, &waits), After::Recorded(vec![None; limits.len()]))
        }
    }
}

/// Denies a request of `cost`: limits with `count=all` record it.
pub(super) fn deny(
    limits: &[Limit],
    current: &[State],
    ledger: &Ledger,
    now: &Q,
    cost: &Q,
) -> (Answer, After) {
    let (recorded, after) = record(limits, current, now, cost);
    let after = ahead(limits, &after, ledger, now);
    (denied(&after, &waits(&after, cost)), After::Recorded(recorded))
}

/// Records a denial of `cost`: the states of the limits that do so, and all states afterwards.
fn record(
    limits: &[Limit],
    current: &[State],
    now: &Q,
    cost: &Q,
) -> (Vec<Option<State>>, Vec<State>) {
    let record = |(limit, state): (&Limit, &State)| {
        limit.properties().records_denials.then(|| limit.charged(state, now, cost))
    };
    let recorded: Vec<Option<State>> = limits.iter().zip(current).map(record).collect();
    let after_denial =
        |(state, recorded): (&State, &Option<State>)| recorded.as_ref().unwrap_or(state).clone();
    let after = current.iter().zip(&recorded).map(after_denial).collect();
    (recorded, after)
}

/// For each limit, the time after which it admits this cost.
fn waits(limits: &[Ahead<'_>], cost: &Q) -> Vec<Wait> {
    limits.iter().map(|limit| limit.retry_after(cost)).collect()
}

/// The answer to an allowed request: the limit with the least remaining is binding.
pub(super) fn allowed(limits: &[Ahead<'_>], delay: &Q) -> Answer {
    let remaining: Vec<Q> = limits.iter().map(Ahead::remaining).collect();
    let least = remaining.iter().min().expect("a policy has a limit");
    let binding = remaining.iter().position(|r| r == least).expect("the least is one of them");
    Answer { delay_us: whole(delay), ..answer(limits, binding, true, Some(0)) }
}

/// The answer to a denied request: the limit with the greatest wait is binding.
fn denied(limits: &[Ahead<'_>], waits: &[Wait]) -> Answer {
    let greatest = waits.iter().max().expect("a policy has a limit");
    let binding = waits.iter().position(|w| w == greatest).expect("the greatest is one of them");
    let retry = match greatest {
        Wait::After(d) => {
            assert!(d > &Q::zero(), "a denied request does not pass at once");
            Some(whole(d))
        }
        Wait::Never => None,
    };
    answer(limits, binding, false, retry)
}

fn answer(
    limits: &[Ahead<'_>],
    binding: usize,
    allowed: bool,
    retry_after_us: Option<u64>,
) -> Answer {
    let remaining = limits.iter().map(Ahead::remaining).min();
    let reset_after = limits.iter().map(Ahead::reset_after).max();
    Answer {
        allowed,
        limit: whole(limits[binding].limit.properties().capacity),
        remaining: whole(&remaining.expect("a policy has a limit")),
        retry_after_us,
        reset_after_us: whole(&reset_after.expect("a policy has a limit")),
        delay_us: 0,
        binding,
    }
}
