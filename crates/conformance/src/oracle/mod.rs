//! A second, deliberately naive reading of what a decision means.
//!
//! Nothing here is fast or small: times and rates are exact rationals, every formula is written as
//! the page on semantics has it, and answers are checked against the definition of the word they
//! give. It shares no code and no type with the implementations that it judges.

mod bucket;
mod calendar;
mod carry;
mod counter;
mod decide;
mod exact;
mod log;
mod machine;
mod policy;
mod rate;
#[cfg(test)]
mod tests;
mod window;

use std::collections::HashMap;

use self::decide::{After, decide};
use self::exact::q;
use self::machine::{Limit, State};

/// Keys and what they keep.
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

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take the cost if it fits.
    Take,
    /// Answer what `Take` would; store nothing.
    Peek,
    /// Take the cost whether or not it fits.
    Charge,
    /// Give back up to the cost.
    Refund,
    /// Take the cost now if it fits after a wait of at most so many microseconds.
    Reserve {
        /// The longest wait, in microseconds.
        max_wait_us: u64,
    },
    /// Make the key as if never used.
    Reset,
}

/// A decision; spans are whole microseconds, rounded up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Capacity of the limit that binds.
    pub limit: u64,
    /// Requests of cost 1 that would still pass at the same instant.
    pub remaining: u64,
    /// Zero when allowed, `None` for never.
    pub retry_after_us: Option<u64>,
    /// Time until the key is as if never used.
    pub reset_after_us: u64,
    /// How long the caller must hold the request back.
    pub delay_us: u64,
    /// Which limit of the policy as written binds, from 0.
    pub binding: usize,
}

impl Oracle {
    /// Knows no key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one operation to one key.
    ///
    /// # Errors
    ///
    /// Text that does not parse; `Reserve` on a policy that does not support it; a time that the
    /// calendar does not reach.
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
        if now_us > calendar::LATEST_US && limits.iter().chain(old_limits).any(on_calendar) {
            return Err(format!("{now_us}us is later than the calendar reaches"));
        }

        let carries = entry.is_some_and(|entry| !same_policy(&entry.limits, &limits));
        let standing: Vec<State> = match entry {
            Some(entry) if carries => carry::carry(&entry.limits, &entry.states, &limits, now),
            Some(entry) => {
                let pairs = limits.iter().zip(&entry.states);
                pairs.map(|(limit, state)| limit.at(state.as_ref(), now)).collect()
            }
            None => limits.iter().map(|limit| limit.at(None, now)).collect(),
        };
        let (answer, after) = decide(&limits, &standing, now, op, cost);

        let states: Vec<Option<State>> = match after {
            After::Unchanged => return Ok(answer),
            After::Reset => vec![None; limits.len()],
            After::All(states) => {
                limits.iter().zip(states).map(|(limit, s)| limit.stored(s, now)).collect()
            }
            After::Recorded(recorded) => {
                // What was carried over is stored even so; else, what recorded nothing stays as it
                // is, down to a time later than `now`.
                let one = |(i, recorded): (usize, Option<State>)| match recorded {
                    Some(state) => limits[i].stored(state, now),
                    None if carries => limits[i].stored(standing[i].clone(), now),
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
    matches!(limit, Limit::Window(window::Rule { span: window::Span::Calendar(_), .. }))
}

/// The same limits in the same order, names and explicit defaults aside.
fn same_policy(a: &[Limit], b: &[Limit]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.identical(b))
}
