//! Policy changes of a key in use: which old limit a new one continues, and how. `concurrency` limits take no part.

use super::exact::{Q, ceiling};
use super::limit::Limit;
use super::machine::State;

/// The states under new limits, at `now`, of a key that was last written under others.
pub(super) fn migrate(
    old: &[Limit],
    states: &[Option<State>],
    new: &[Limit],
    now: &Q,
) -> Vec<State> {
    let from = matches(old, new, now);
    let migrate_limit = |(limit, from): (&Limit, Option<usize>)| match from {
        Some(index) => {
            let state = old[index].at(states[index].as_ref(), now);
            limit.at(Some(&continued(&old[index], &state, limit, now)), now)
        }
        None => limit.at(None, now),
    };
    new.iter().zip(from).map(migrate_limit).collect()
}

/// For each new limit, the old one that it continues.
fn matches(old: &[Limit], new: &[Limit], now: &Q) -> Vec<Option<usize>> {
    let mut from: Vec<Option<usize>> = vec![None; new.len()];
    let mut taken = vec![false; old.len()];
    for pass in 1..=3 {
        let alike = |old: &Limit, new: &Limit| match pass {
            1 => old.identical(new),
            2 => same_machine(old, new) && same_period(old, new, now),
            _ => same_machine(old, new),
        };
        for (limit, from) in new.iter().zip(&mut from) {
            if from.is_none() {
                *from = (0..old.len()).find(|&i| !taken[i] && alike(&old[i], limit));
                if let Some(i) = *from {
                    taken[i] = true;
                }
            }
        }
    }

    let longest_log = longest_log(old);
    for (limit, from) in new.iter().zip(&mut from) {
        if from.is_none() && matches!(limit, Limit::Log(_)) {
            *from = longest_log;
        }
    }

    if old.len() == new.len() {
        let mut left_over = (0..old.len()).filter(|&i| !taken[i]);
        for from in from.iter_mut().filter(|from| from.is_none()) {
            *from = left_over.next();
        }
    }
    from
}

fn same_machine(a: &Limit, b: &Limit) -> bool {
    matches!(
        (a, b),
        (Limit::Rate(_), Limit::Rate(_))
            | (Limit::Bucket(_), Limit::Bucket(_))
            | (Limit::Window(_), Limit::Window(_))
            | (Limit::Log(_), Limit::Log(_))
            | (Limit::Counter(_), Limit::Counter(_))
    )
}

/// The same period as a duration, of two limits of one machine.
fn same_period(a: &Limit, b: &Limit, now: &Q) -> bool {
    match (a, b) {
        (Limit::Rate(a), Limit::Rate(b)) => a.p == b.p,
        (Limit::Bucket(a), Limit::Bucket(b)) => a.i == b.i,
        (Limit::Window(a), Limit::Window(b)) => a.span.same_period(&b.span, now),
        (Limit::Log(a), Limit::Log(b)) => a.p == b.p,
        (Limit::Counter(a), Limit::Counter(b)) => a.p == b.p,
        _ => false,
    }
}

/// The old log with the longest period, the first written of equals.
fn longest_log(old: &[Limit]) -> Option<usize> {
    let mut longest: Option<(usize, &Q)> = None;
    for (i, limit) in old.iter().enumerate() {
        if let Limit::Log(log) = limit
            && longest.is_none_or(|(_, p)| &log.p > p)
        {
            longest = Some((i, &log.p));
        }
    }
    longest.map(|(i, _)| i)
}

/// The state under `new` that continues `state`, which is current at `now`.
fn continued(old: &Limit, state: &State, new: &Limit, now: &Q) -> State {
    match (old, new) {
        (Limit::Rate(old), Limit::Rate(new)) => new.continued(old, state, now),
        (Limit::Bucket(old), Limit::Bucket(new)) => new.continued(old, state, now),
        (Limit::Window(old), Limit::Window(new)) => new.continued(old, state, now),
        (Limit::Log(_), Limit::Log(new)) => new.continued(state, now),
        (Limit::Counter(old), Limit::Counter(new)) => new.continued(old, state, now),
        _ => {
            let used = old.machine().used(state, now).min(ceiling());
            new.machine().charge(&new.machine().unused(now), now, &used)
        }
    }
}
