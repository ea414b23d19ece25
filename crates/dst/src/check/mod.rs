//! Invariants, checked during a run and at its end.
//!
//! - **Exactness**: an answer of the store is one that the server gave to this operation, and the server's equals that of
//!   the oracle. A denial from the cache is one that the oracle gives as well, unless units were given back since.
//! - **Safety**: the units admitted in any interval are at most those that the policy admits, plus the allowances for
//!   leases and for the writes that the server lost.
//! - **Liveness**: every operation is answered by its deadline. Without a fault no answer is a fallback, and a while after
//!   the last fault none is.
//! - **Honesty**: counters add up.

mod answers;
mod checks;
mod key_state;

pub(crate) use self::{
    answers::{AnsweredMultiKey, AnsweredOperation},
    checks::{Checks, FinishedWait},
    key_state::Kind,
};
