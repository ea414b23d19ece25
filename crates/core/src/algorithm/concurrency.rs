//! Concurrency: the units that are held at one time.
//!
//! The limit has no state of its own: it counts the open holds of the key ([`Ledger`](crate::ledger::Ledger)). A hold
//! that is not settled ends when its lifetime does, so that a process that dies blocks its units for a bounded time. With a
//! lifetime of `P`, and nothing ever settled, the limit decides as `sliding-log:N/P` does. (The counting semaphore of
//! Dijkstra, 1965, with leases as of Gray and Cheriton, 1989.)

use std::{fmt, time::Duration};

use super::api::{Algorithm, LimitSummary, Parameters};
use crate::{
    bytes::{Head, Reader, StateError, Writer},
    decision::{Decision, Retry},
    human,
    parameters::{LimitError, check_period},
    share::Share,
    text::{LimitText, TextError, write_rate},
    time::Timestamp,
};

const NAME: &str = "concurrency";
const CODE: u8 = 10;
/// Maximum number of units that can be held at one time.
const MAX_LIMIT: u32 = 65_536;

/// `N` units held at one time, each hold for at most `P` unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u32,
    period: u64,
}

impl Concurrency {
    /// `limit` units (1 ..= 65 536) held at one time, each hold for at most `period` (1 ms ..= 366 days) unless it is
    /// renewed.
    ///
    /// # Errors
    /// [`LimitError`] for a value outside its domain.
    pub fn new(limit: u32, period: Duration) -> Result<Self, LimitError> {
        if !(1..=MAX_LIMIT).contains(&limit) {
            let value = limit.to_string();
            return Err(LimitError::Domain { name: "limit", value, domain: "1 to 65536" });
        }
        Ok(Self { limit, period: check_period("period", period)? })
    }
}

impl Algorithm for Concurrency {
    /// None is ever made: the ledger of the key counts.
    type State = ();

    const NAMES: &'static [(&'static str, &'static [&'static str])] = &[(NAME, &[])];
    const OTHER_WORDS: &'static [&'static str] =
        &["concurrent", "concurrencylimit", "inflight", "semaphore", "maxinflight", "parallel"];
    const CODES: &'static [u8] = &[CODE];

    fn parameters(&self) -> Parameters {
        let parameters = Parameters::new(self.limit, Duration::from_micros(self.period));
        Parameters { counts_holds: true, ..parameters }
    }

    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError> {
        Ok(Some(Self::new(text.limit()?, text.period()?)?))
    }

    fn flags(_code: u8) -> u8 {
        0
    }

    fn encode(&self, _state: Option<&Self::State>, out: &mut Writer) {
        out.head(CODE, 0, self.limit);
        out.uint(self.period, 6);
    }

    fn decode(
        head: Head,
        input: &mut Reader<'_>,
    ) -> Result<(Self, Option<Self::State>), StateError> {
        Ok((Self::new(head.limit, input.period()?)?, None))
    }

    #[cfg(debug_assertions)]
    fn check(&self, (): &Self::State) {
        panic!("a limit of holds has no state of its own");
    }

    fn wait(&self, _state: Option<&Self::State>, _now: Timestamp, cost: u32) -> Retry {
        if cost <= self.limit { Retry::NOW } else { Retry::Never }
    }

    fn remaining(&self, _state: Option<&Self::State>, _now: Timestamp) -> u32 {
        self.limit
    }

    fn reset_after(&self, _state: Option<&Self::State>, _now: Timestamp) -> u64 {
        0
    }

    fn used(&self, _state: Option<&Self::State>, _now: Timestamp) -> u64 {
        0
    }

    fn charge(&self, _state: &mut Option<Self::State>, _now: Timestamp, _cost: u32) {}

    fn refund(&self, _state: &mut Option<Self::State>, _now: Timestamp, _cost: u32) {}

    fn with_used(&self, _now: Timestamp, _used: u64) -> Option<Self::State> {
        None
    }

    fn migrate(&self, _old: &Self, _state: Self::State, _now: Timestamp) -> Option<Self::State> {
        None
    }

    /// Nothing bounds the units that are held one after the other.
    fn max_admitted(&self, _micros: u64) -> u128 {
        u128::MAX
    }

    fn quota(&self) -> (u32, Option<Duration>) {
        (self.limit, None)
    }

    /// A hold may be settled at any time.
    fn more_after(&self, _decision: &Decision) -> Option<Duration> {
        None
    }

    fn describe(&self) -> LimitSummary {
        let period = human::span(self.period);
        LimitSummary {
            at_once: format!("{} held at one time", human::units(self.limit.into())),
            sustained: "as many as are settled".to_owned(),
            denied: format!("waits until a hold is settled, {period} at most for each hold"),
        }
    }

    fn share(&self, share: Share) -> Result<Self, LimitError> {
        Self::new(share.units(self.limit), Duration::from_micros(self.period))
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(formatter, NAME, self.limit, self.period)
    }
}
