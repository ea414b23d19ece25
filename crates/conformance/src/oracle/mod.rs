//! A second, deliberately naive implementation of the semantics.
//!
//! It is not meant to be fast: times and rates are exact rationals, every formula is written as in SEMANTICS.md, and
//! answers are checked against their definitions. It shares no code and no type with the implementations that it
//! tests.

mod answer;
mod bucket;
mod calendar;
mod counter;
mod decide;
mod exact;
mod limit;
mod log;
mod machine;
mod migrate;
mod policy;
mod rate;
#[cfg(test)]
mod tests;
mod window;

use std::collections::HashMap;

pub use self::answer::{Answer, Op};
use self::decide::{After, decide};
use self::exact::q;
use self::limit::Limit;
use self::machine::State;

/// Keys and their states.
#[derive(Debug, Default)]
pub struct Oracle {
    entries: HashMap<Vec<u8>, Entry>,
}

/// All state of a key, with the limits it was written under.
#[derive(Debug)]
struct Entry {
    limits: Vec<Limit>,
    states: Vec<Option<State>>,
}

impl Oracle {
    /// An oracle without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one operation to one key.
    ///
    /// # Errors
    ///
    /// An invalid policy; `Reserve` on a policy that does not support it; a time beyond the calendar.
    pub fn apply(
        &mut self,
        key: &[u8],
        policy: &str,
        now_us: u64,
        op: Op,
        cost: u32,
    ) -> Result<Answer, String> {
        let limits = policy::parse(policy)?;
        let now = &q(now_us);
        let cost = &q(cost);

        if matches!(op, Op::Reserve { .. }) && !limits.iter().all(|l| matches!(l, Limit::Rate(_))) {
            return Err("reserve needs limits of the gcra family or queues".to_owned());
        }
        let entry = self.entries.get(key);
        let old_limits = entry.iter().flat_map(|entry| &entry.limits);
        if now_us > calendar::MAX_TIME_US && limits.iter().chain(old_limits).any(on_calendar) {
            return Err(format!("{now_us}us is later than the calendar reaches"));
        }

        let migrates = entry.is_some_and(|entry| !same_policy(&entry.limits, &limits));
        let current: Vec<State> = match entry {
            Some(entry) if migrates => migrate::migrate(&entry.limits, &entry.states, &limits, now),
            Some(entry) => {
                let pairs = limits.iter().zip(&entry.states);
                pairs.map(|(limit, state)| limit.at(state.as_ref(), now)).collect()
            }
            None => limits.iter().map(|limit| limit.at(None, now)).collect(),
        };
        let (answer, after) = decide(&limits, &current, now, op, cost);

        let states: Vec<Option<State>> = match after {
            After::Unchanged => return Ok(answer),
            After::Reset => vec![None; limits.len()],
            After::All(states) => {
                limits.iter().zip(states).map(|(limit, s)| limit.stored(s, now)).collect()
            }
            After::Recorded(recorded) => {
                // A migrated state is stored in any case. Otherwise a limit that recorded nothing keeps its state,
                // even with a time later than `now`.
                let one = |(i, recorded): (usize, Option<State>)| match recorded {
                    Some(state) => limits[i].stored(state, now),
                    None if migrates => limits[i].stored(current[i].clone(), now),
                    None => entry.and_then(|entry| entry.states[i].clone()),
                };
                recorded.into_iter().enumerate().map(one).collect()
            }
        };
        if states.iter().all(Option::is_none) {
            self.entries.remove(key);
        } else {
            self.entries.insert(key.to_vec(), Entry { limits, states });
        }
        Ok(answer)
    }
}

fn on_calendar(limit: &Limit) -> bool {
    matches!(limit, Limit::Window(window::Parameters { span: window::Span::Calendar(_), .. }))
}

/// Whether both have the same limits in the same order, apart from names and explicit defaults.
fn same_policy(a: &[Limit], b: &[Limit]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.identical(b))
}
