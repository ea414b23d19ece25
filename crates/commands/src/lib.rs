//! The commands: arguments in, a request out; all error texts.
//!
//! Server and module use this one description, so that a command has the same meaning and the same
//! errors in both.
//!
//! - [`COMMANDS`]: name, arity, flags, keys, summary and arguments of each command.
//! - [`parse`]: the arguments of a command as a [`Request`], or a [`CommandError`]; [`parse_at`]
//!   lets the caller find policies by their [texts](PolicyText) instead of parsing them again.
//! - [`throttle_integers`] and [`Description`]: replies that are not simply
//!   [`Decision::to_integers`](sluicegate_core::Decision::to_integers).
//! - [`PolicyTextCache`]: from policy text to a value.
//!
//! This crate stores no decision, reads no clock, and has no connections.
//!
//! ```
//! use sluicegate_commands::{Options, Request, parse};
//!
//! let request = parse(&[b"sg.take", b"user7", b"gcra:30/1m", b"COST", b"2"], Options::default())?;
//! assert!(matches!(request, Request::Decide { key: b"user7", .. }));
//!
//! let error = parse(&[b"SG.TAKE", b"user7", b"gcra:30/1m", b"COST", b"-2"], Options::default());
//! assert_eq!(
//!     error.unwrap_err().to_string(),
//!     "ERR invalid COST `-2`: expected a whole number from 0 to 4294967295",
//! );
//! # Ok::<(), sluicegate_commands::CommandError>(())
//! ```

mod argument;
mod describe;
mod error;
mod limits;
mod parse;
mod plain;
mod policy_text;
mod policy_text_cache;
mod request;
mod table;
mod text;
mod throttle;

pub use argument::key;
pub use describe::{Description, LimitDescription};
pub use error::CommandError;
pub use limits::{DEFAULT_TIMEOUT, MAX_KEY, MAX_MANY, MAX_SPAN};
pub use parse::{parse, parse_at};
pub use plain::plain_error;
pub use policy_text::PolicyText;
pub use policy_text_cache::{CacheMiss, PolicyTextCache, PolicyTextKey};
pub use request::{Options, Request, Take};
pub use table::{Argument, ArgumentKind, COMMANDS, Command, Keys, find, position};
pub use text::quote;
pub use throttle::throttle_integers;
