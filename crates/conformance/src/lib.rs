//! What every store must pass: it answers as `sluicegate_core::apply` does, to the microsecond.
//!
//! A store joins by implementing [`Subject`] for a small adapter and calling [`check_traces`] and
//! [`check_histories`]. The core itself is held against a second, naive reading of the semantics
//! (the [`oracle`]) by the same histories.

mod history;
pub mod oracle;
mod script;
mod subject;
mod together;
mod wire;

pub use history::{History, Shape, Step, check_histories};
pub use script::{cases, check_case, check_script, check_traces};
pub use subject::{Answer, CoreSubject, OracleSubject, Question, Subject, check_keys, compare};
pub use together::{JointSubject, JointTake, check_together};
pub use wire::ask_over_the_wire;
