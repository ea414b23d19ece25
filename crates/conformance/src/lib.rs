//! The conformance kit: every store must answer as `sluicegate_core::apply`, to the microsecond.
//!
//! A store with a test clock calls [`check_traces`], [`check_histories`] and [`check_multi_key`] with a
//! [`StoreSubject`], and [`check_hold_traces`], [`check_hold_histories`] and [`check_multi_key_holds`] for holds;
//! everything else implements [`Subject`] and [`MultiKeySubject`] for a small adapter. [`check_repeated_holds`],
//! [`check_hold_streams`] and [`check_hold_bounds`] check holds under faults. The same histories compare the core
//! with a second, naive implementation (the [`oracle`]).

mod history;
mod hold_bounds;
mod hold_history;
mod hold_repeats;
mod hold_streams;
mod multi_key;
pub mod oracle;
mod rules;
mod store_subject;
mod subject;
mod trace;
mod wire;

pub use history::{History, Shape, Step, check_histories};
pub use hold_bounds::{
    MAX_HOLDS_OF_SCRIPTS, check_full_ledger, check_hold_bounds, full_ledger, spread_ledger,
};
pub use hold_history::check_hold_histories;
pub use hold_repeats::check_repeated_holds;
pub use hold_streams::{StreamCounts, check_hold_streams};
pub use multi_key::{MultiKeySubject, check_multi_key, check_multi_key_holds};
pub use rules::{ObservedMatch, ObservedOutcome, RuleRequest, RuleSubject, check_rules};
pub use store_subject::StoreSubject;
pub use subject::{Answer, CoreSubject, Invocation, OracleSubject, Subject, check_keys, compare};
pub use trace::{cases, check_case, check_hold_traces, check_traces};
pub use wire::{answer_from_integers, apply_all_over_the_wire, apply_over_the_wire};
