//! Policy changes of a key in use: which old limit a new one continues, and how. `concurrency` limits take no part.

use super::algorithms::{Limit, State};
use super::exact::{Q, ceiling};

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
            let state = old[index].state_at(states[index].as_ref(), now);
            let at = &old[index].decides_at(&state, now);
            let continued = limit.continued(&old[index], &state, at).unwrap_or_else(|| {
                let used = old[index].used(&state, at).min(ceiling());
                limit.charge(&limit.unused(at), at, &used)
            });
            limit.at(&continued, now)
        }
        None => limit.unused(now),
    };
    new.iter().zip(from).map(migrate_limit).collect()
}

/// For each new limit, the old one that it continues.
fn matches(old: &[Limit], new: &[Limit], now: &Q) -> Vec<Option<usize>> {
    let mut from: Vec<Option<usize>> = vec![None; new.len()];
    let mut taken = vec![false; old.len()];
    for pass in 1..=3 {
        let alike = |old: &Limit, new: &Limit| match pass {
            1 => old == new,
            2 => old.same_period(new, now),
            _ => old.same_algorithm(new),
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
        if from.is_none() && limit.properties().keeps_log {
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

/// The old log with the longest period, the first written of equals (`max_by_key` returns the last).
fn longest_log(old: &[Limit]) -> Option<usize> {
    let logs = (0..old.len()).filter(|&i| old[i].properties().keeps_log);
    logs.rev().max_by_key(|&i| old[i].properties().period)
}
