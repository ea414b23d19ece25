//! What a command is, and what it needs of the program that runs it.

use std::time::Duration;

use sluicegate_core::{Entry, Operation, Timestamp};

use crate::{
    CommandError, DecisionFormat, PolicyText,
    arguments::{KeyArgument, Options},
    spec::CommandSpec,
};

/// A command: its description, and its action on a [`Host`].
pub trait Command {
    /// The description that clients get.
    const SPEC: &'static CommandSpec;

    /// Parses `arguments`, which start with the name of the command, and acts on `host`.
    ///
    /// # Errors
    /// [`CommandError`], whose text is the whole error reply. Nothing was applied then, unless the error is that
    /// of an operation.
    fn run<'a, H: Host<'a>>(
        host: &mut H,
        arguments: &[&'a [u8]],
    ) -> Result<H::Outcome, CommandError>;
}

/// A value made of each command of the [table](crate::table).
pub trait FromCommand {
    /// The value for the command `C`.
    fn from_command<C: Command>() -> Self;
}

impl FromCommand for &'static CommandSpec {
    fn from_command<C: Command>() -> Self {
        C::SPEC
    }
}

/// The program that runs a command: it holds the state, reads the clock and replies. Arguments live for `'a`.
///
/// Each method that returns an [`Outcome`](Self::Outcome) replies to the client, now or later. `at` is the time of
/// the operation if the command sets it; otherwise the host's clock is read.
pub trait Host<'a> {
    /// A policy that was looked up.
    type Policy;
    /// What became of the reply.
    type Outcome;

    /// What arguments may contain.
    fn options(&self) -> Options;

    /// Looks up a policy by its text.
    ///
    /// # Errors
    /// The policy is invalid, or its name is unknown.
    fn policy(&mut self, text: PolicyText<'a>) -> Result<Self::Policy, CommandError>;

    /// Applies `operation` to `key`. The reply is the decision in `format`.
    ///
    /// # Errors
    /// The state of the key is invalid, or the policy does not support the operation.
    fn apply(
        &mut self,
        key: KeyArgument<'a>,
        policy: Self::Policy,
        operation: Operation,
        at: Option<Timestamp>,
        format: DecisionFormat,
    ) -> Result<Self::Outcome, CommandError>;

    /// Takes from several keys, independently. The reply is an array of decisions or errors, in order.
    ///
    /// # Errors
    /// None of `takes` was applied.
    fn take_batch(
        &mut self,
        takes: Vec<TakeRequest<'a, Self::Policy>>,
        at: Option<Timestamp>,
    ) -> Result<Self::Outcome, CommandError>;

    /// Takes once that is allowed. The reply is the decision, and is a denial as soon as the take is sure to miss
    /// `timeout` (up to [`MAX_SPAN`](crate::MAX_SPAN) microseconds).
    ///
    /// # Errors
    /// As for [`apply`](Self::apply).
    fn wait(
        &mut self,
        take: TakeRequest<'a, Self::Policy>,
        timeout: Duration,
    ) -> Result<Self::Outcome, CommandError>;

    /// Resets `key`. The reply is 1 if it had state, otherwise 0.
    ///
    /// # Errors
    /// The key holds another type.
    fn reset(
        &mut self,
        key: KeyArgument<'a>,
        at: Option<Timestamp>,
    ) -> Result<Self::Outcome, CommandError>;

    /// Reads the state of `key`. `reply` writes the reply.
    ///
    /// # Errors
    /// The state of the key is invalid.
    fn read(
        &mut self,
        key: KeyArgument<'a>,
        at: Option<Timestamp>,
        reply: EntryReply,
    ) -> Result<Self::Outcome, CommandError>;
}

/// One take of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeRequest<'a, P> {
    /// The key.
    pub key: KeyArgument<'a>,
    /// The policy to decide under.
    pub policy: P,
    /// Units to take.
    pub cost: u32,
}

/// Writes a reply from the state of a key at a time. `None` is a key without state.
pub type EntryReply = fn(Option<&Entry>, Timestamp, &mut dyn ReplyWriter);

/// Writes one reply, part by part.
pub trait ReplyWriter {
    /// A whole number.
    fn integer(&mut self, value: i64);
    /// A string.
    fn string(&mut self, bytes: &[u8]);
    /// No value.
    fn null(&mut self);
    /// The start of an array of `length` parts.
    fn array(&mut self, length: usize);
    /// The start of a map of `length` pairs.
    fn map(&mut self, length: usize);
}
