//! Every rate limiting algorithm of Sluicegate, exact and pure.
//!
//! [`apply`] is the whole of the semantics: a [`Policy`], the state of a key (an [`Entry`]), the
//! time and an [`Operation`] go in; a [`Decision`] comes out and the entry is brought up to date.
//! Nothing here reads a clock, does I/O, waits, or counts in floats.
//!
//! ```
//! use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
//!
//! let policy: Policy = "gcra:30/60s:burst=16".parse()?;
//! let mut entry: Option<Entry> = None; // an unused key
//! let now = Timestamp::from_micros(1_700_000_000_000_000)?;
//!
//! let decision = apply(&policy, &mut entry, now, Operation::Take(1))?;
//! assert!(decision.allowed());
//! assert_eq!(decision.remaining, 15);
//! assert_eq!(decision.reset_after.as_secs(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(clippy::float_arithmetic)]

mod algorithm;
mod answer;
mod applied;
mod apply;
mod bytes;
mod calendar;
#[cfg(debug_assertions)]
mod check;
mod decision;
mod drain;
mod entry;
pub mod human;
mod lease;
mod ledger;
mod look_ahead;
#[doc(hidden)]
pub mod marks;
mod migrate;
mod multi_key;
mod parameters;
mod period;
mod policy;
mod prepared_policy;
mod request;
mod share;
mod spelling;
mod store;
mod store_error;
mod text;
mod time;
pub mod wait;

pub use algorithm::*;
pub use answer::{Answer, Source};
pub use applied::{Applied, AppliedFuture, BoxFuture};
pub use apply::{HoldError, OperationError, apply, apply_in_place};
pub use bytes::{MAX_DRAIN, MAX_TIME, StateError};
pub use calendar::CalendarUnit;
pub use decision::{Decision, MAX_KEYS_PER_TAKE, Operation, Outcome, RequestError, Retry};
pub use entry::{Entry, Usage};

pub use lease::{
    Chunk, Lease, LeaseStep, LeaseTerms, MIN_LEASED_WINDOW, RefillToken, Unspent, lease_window_end,
};
pub use ledger::{Hold, MAX_HOLD_ID, MAX_HOLDS};
pub use multi_key::{EntryOperation, apply_all};
pub use parameters::LimitError;
pub use period::parse as parse_period;
pub use policy::{Policy, builder};
pub use prepared_policy::{OnError, PolicySettings, PreparedPolicy, StoreId};
pub use request::{KeyLengthError, KeyedOperation, MAX_KEY, Request};
pub use share::Share;
pub use spelling::{any_of, closest, one_of};
pub use store::{
    AsStore, Counters, NodeHealth, ReadEntry, RemoteStatus, RoundTrips, Store, StoreStatus,
    TableUsage,
};
pub use store_error::{StateFault, StoreError};
pub use text::{MAX_LIMITS, PolicyError};
pub use time::{Clock, ManualClock, Timestamp, TimestampError, as_micros, whole_seconds};
