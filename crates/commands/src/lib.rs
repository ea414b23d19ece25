//! The commands on keys: arguments, actions, replies and error texts.
//!
//! Server and module run this one [`table`], so that a command has the same meaning and the same errors in both.
//! A command is one file in `commands/` and one line of the table. It makes of its arguments an [`Action`], which the
//! program that holds the state carries out.
//!
//! - [`table`]: all commands, as values that the caller makes of each; [`parse`] finds one by its name.
//! - [`CommandSpec`]: name, arity, flags, keys, summary and arguments of a command.
//! - [`CommandError`]: why a command fails.
//! - [`PolicyTextCache`]: from policy text to a value.
//!
//! This crate stores no decision, reads no clock, and has no connections.

mod arguments;
mod command;
mod commands;
mod decimal;
mod decision_format;
mod description;
mod error;
mod limits;
mod policy_text;
mod policy_text_cache;
mod quote;
mod repeated_keys;
mod spec;
mod table;

pub use arguments::{HostOptions, KeyArgument, key};
pub use command::{Action, Command, EntryReply, FromCommand, Host, KeyOperation, Parsed};
pub use decision_format::{DecisionFormat, IntegersWriter, ReplyWriter, write_all};
pub use description::{KeyDescription, LimitDescription};
pub use error::{CommandError, plain_error};
pub use limits::{DEFAULT_TIMEOUT, MAX_INDEPENDENT_TAKES, MAX_SPAN};
pub use policy_text::{PolicyText, SpanUnit};
pub use policy_text_cache::{CacheMiss, PolicyTextCache, PolicyTextKey};
pub use quote::quote;
pub use repeated_keys::RepeatedKeys;
pub use spec::{Argument, ArgumentKind, CommandSpec, Keys};
pub use table::{increx, parse, table, unknown_command};
