//! Access logs: one request per line, in nearly the order of time.
//!
//! Lines are text of a supported format, JSON objects or rows of a W3C log, also inside the lines of a container's log; the key is made of their fields. With its duration, a
//! request is two events, its start and its end. A broken line is counted and skipped. Servers write a line when a
//! request ends, and some write when it began. Therefore lines that are within a few seconds of each other are
//! sorted. A later one is moved to the time reached by then, and counted.
//!
//! Invariants: the events do not depend on how the source cuts the log; they come in order of time, and those of
//! equal time in the order of their lines; buffers are bounded.

mod duration;
mod error;
mod fields;
mod format;
mod json;
mod reader;
mod shape;
mod time;
mod w3c;

pub use error::{LogError, LogFault};
pub use fields::KeyTemplate;
pub use reader::{Broken, LateLines, LogReader};
pub use shape::{DurationField, LogFormat};
