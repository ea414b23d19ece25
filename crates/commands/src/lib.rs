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
mod decision_format;
mod description;
mod error;
mod policy_text;
mod repeated_keys;
mod spec;
mod table;

pub use arguments::{HostOptions, KeyArgument, key};
pub use command::{Action, Command, EntryReply, FromCommand, Host, KeyOperation, Parsed};
pub use decision_format::{DecisionFormat, IntegersWriter, ReplyWriter, write_all};
pub use description::{KeyDescription, LimitDescription};
pub use error::{CommandError, plain_error, quote};

pub use policy_text::{CacheMiss, PolicyText, PolicyTextCache, PolicyTextKey, SpanUnit};

pub use repeated_keys::RepeatedKeys;
pub use spec::{
    Argument, ArgumentKind, CommandSpec, DEFAULT_TIMEOUT, Keys, MAX_INDEPENDENT_TAKES, MAX_SPAN,
};
pub use table::{increx, parse, table, unknown_command};
