//! The conformance kit: every store must answer as `sluicegate_core::apply`, to the microsecond.
//!
//! A store joins by implementing [`Subject`] for a small adapter and calling [`check_traces`] and
//! [`check_histories`]. The same histories compare the core with a second, naive implementation (the [`oracle`]).

mod history;
pub mod oracle;
mod rules;
mod subject;
mod together;
mod trace;
mod wire;

pub use history::{History, Shape, Step, check_histories};
pub use rules::{RuleRequest, ObservedMatch, RuleSubject, ObservedOutcome, check_rules};
pub use subject::{Answer, CoreSubject, Invocation, OracleSubject, Subject, check_keys, compare};
pub use together::{JointSubject, JointTake, check_together};
pub use trace::{cases, check_case, check_script, check_traces};
pub use wire::ask_over_the_wire;
