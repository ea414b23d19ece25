//! Commands after parsing.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp};

/// What a listener allows in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether a request may set its time (`AT us`). Only for tests and simulations.
    pub test_clock: bool,
}

/// A parsed command. Keys are slices of its arguments; `P` is what the caller makes of a
/// [`PolicyText`](crate::PolicyText).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Request<'a, P = Policy> {
    /// `CL.THROTTLE`: the reply is [`throttle_integers`](crate::throttle_integers).
    Throttle {
        /// The key.
        key: &'a [u8],
        /// A single gcra limit.
        policy: P,
        /// A take, or a peek of nothing for a quantity of 0.
        operation: Operation,
    },
    /// `SG.TAKE`, `SG.PEEK`, `SG.CHARGE`, `SG.REFUND`, `SG.RESERVE`: the reply is the seven
    /// integers of the decision.
    Decide {
        /// The key.
        key: &'a [u8],
        /// The policy to decide under.
        policy: P,
        /// The operation to apply.
        operation: Operation,
        /// The time, if the request sets it.
        at: Option<Timestamp>,
    },
    /// `SG.WAIT`: a take. The reply comes when it passes, or once it is certain to miss `timeout`.
    Wait {
        /// The key.
        key: &'a [u8],
        /// The policy to decide under.
        policy: P,
        /// Units to take.
        cost: u32,
        /// Upper bound on the wait: 0 µs to 2^50 µs.
        timeout: Duration,
    },
    /// `SG.RESET`: the reply is 1 if there was state, otherwise 0.
    Reset {
        /// The key.
        key: &'a [u8],
        /// The time, if the request sets it.
        at: Option<Timestamp>,
    },
    /// `SG.INFO`: the reply is a [`Description`](crate::Description), or null.
    Info {
        /// The key.
        key: &'a [u8],
        /// The time, if the request sets it.
        at: Option<Timestamp>,
    },
    /// `SG.MTAKE`: the reply is an array of decisions, in order.
    TakeMany {
        /// 1 to 256 independent takes.
        takes: Vec<Take<'a, P>>,
        /// The time, if the request sets it.
        at: Option<Timestamp>,
    },
}

/// One take of an `SG.MTAKE`.
#[derive(Clone, Debug, PartialEq)]
pub struct Take<'a, P = Policy> {
    /// The key.
    pub key: &'a [u8],
    /// The policy to decide under.
    pub policy: P,
    /// Units to take.
    pub cost: u32,
}
