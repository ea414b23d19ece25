//! Access logs: one request a line, in nearly the order of time.
//!
//! Lines are text of a known shape or objects of JSON; the key is made of their fields. A line that
//! is broken is counted and left out. Servers write a line when a request ends, and some write when
//! it began: so lines are put in order of time as far as they lie within a few seconds of each
//! other. One that comes later still is taken at the time reached by then, and counted.
//!
//! Invariants: what is read does not depend on how the source cuts it; events come in order of
//! time, and those of equal time in the order of their lines; what is held is bounded.

mod error;
mod fields;
mod format;
mod json;
mod reader;
mod shape;
mod time;

pub use error::{LogError, LogFault};
pub use fields::KeyTemplate;
pub use reader::{Broken, Late, LogReader};
pub use shape::LogFormat;
