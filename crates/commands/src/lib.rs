//! The words of the commands: arguments in, a request out, and the words of every error.
//!
//! Every face that speaks RESP uses this one description, so that a command means the same and
//! fails in the same words everywhere.
//!
//! - [`COMMANDS`]: name, arity, flags, keys, summary and arguments of each command.
//! - [`parse`]: the arguments of a command as a [`Request`], or a [`CommandError`]; [`parse_at`] for
//!   a face that knows policies by their [texts](PolicyText) and need not parse them again.
//! - [`throttle_integers`] and [`Description`]: replies that are not simply
//!   [`Decision::to_integers`](sluicegate_core::Decision::to_integers).
//! - [`Texts`]: what a face knows of policies by their texts; [`mod@line`]: who waits for a key.
//!
//! Nothing here keeps a decision, tells the time, or knows of a connection.
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
pub mod line;
mod parse;
mod plain;
mod table;
mod texts;
mod throttle;

pub use argument::{MAX_KEY, PolicyText, key, shown};
pub use describe::{Description, LimitDescription};
pub use error::CommandError;
pub use parse::{DEFAULT_TIMEOUT, MAX_MANY, MAX_SPAN, Options, Request, Take, parse, parse_at};
pub use plain::plain_error;
pub use table::{Argument, ArgumentKind, COMMANDS, Command, Keys, find, position};
pub use texts::{TextKey, Texts, Unknown};
pub use throttle::throttle_integers;
