//! Waiting: one request as a state machine, and the order of all.
//!
//! - [`Waiter`] is one waiting request, for one key or for several, as a state machine. It has no timer, reads no clock and
//!   does no I/O: an [`Event`] goes in, the next [`Step`] comes out, and the caller carries it out.
//! - [`WaitQueues`] holds the waiters of all keys, in one queue per key, first come, first served. Only
//!   the head of a queue queries the store; the others sleep until they become the head or their deadline
//!   comes. Without queues, a waiter competes with all others.
//!
//! Under a policy of the gcra family with a `leaky-queue`, a request gets its departure at once (a
//! reservation) and is held until then. Under any other policy, it queues.
//!
//! Invariants:
//! - a request that waits leaves nothing behind: its units are delivered with its answer, or
//!   [`WaitQueues::remove`] or [`Waiter::cancel`] gives them back;
//! - a denied request is denied by at most one take, so that `count=all` records it once. If another process comes
//!   between its peek and its take, that denial is recorded too, and the request goes on waiting;
//! - the waiters of a key pass in the order of their arrival. Requests that do not wait may overtake them.
//!
//! ```
//! use sluicegate_core::{Operation, Timestamp, apply, wait::{Event, Step, Waiter}};
//!
//! let (mut entry, mut now) = (None, Timestamp::EPOCH);
//! let policy: sluicegate_core::Policy = "fixed-window:1/10s".parse()?;
//! let _ = apply(&policy, &mut entry, now, Operation::Take(1))?;
//!
//! let take = (policy.clone(), Operation::Take(1));
//! let mut waiter = Waiter::alone([take], std::time::Duration::from_secs(60), false);
//! let mut event = Event::Start;
//! let answer = loop {
//!     event = match waiter.poll(now, event) {
//!         Step::Apply => {
//!             Event::Answered(apply(&policy, &mut entry, now, waiter.operation(0))?.into())
//!         }
//!         Step::SleepUntil(then) => {
//!             now = then; // a driver sleeps here
//!             Event::Woken
//!         }
//!         Step::Done(answer) => break answer,
//!         step => unreachable!("{step:?} is for waiters in queues"),
//!     }
//! };
//! assert!(answer.allowed());
//! assert_eq!(now.as_micros(), 10_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod key_waiter;
mod projection;
mod queues;
mod request;
mod waiter;

pub use self::{
    queues::{Left, Polled, WaitQueues, Wake},
    request::{
        MAX_OBSERVED_ENTRY, MAX_WAITERS, MAX_WAITERS_OF_KEY, ObservedEntry, QueueFull, Ticket,
        peeks_first,
    },
    waiter::{Event, Step, Waiter},
};

#[cfg(test)]
mod tests;
