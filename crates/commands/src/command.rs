//! A command: a description, and arguments that become an [`Action`].

use std::time::Duration;

use sluicegate_core::{Entry, Operation, Policy, PolicyError, Timestamp};

use crate::{
    CommandError, DecisionFormat, PolicyText, RepeatedKeys, ReplyWriter,
    arguments::{GivenOptions, HostOptions, KeyArgument, OptionName, parse_options},
    error::quote,
    spec::CommandSpec,
};

/// A command.
pub trait Command {
    /// The description that clients get.
    const SPEC: &'static CommandSpec;

    /// Parses `arguments`, which start with the name of the command.
    ///
    /// # Errors
    /// [`CommandError`], whose text is the whole error reply.
    fn parse<'a, H: Host<'a>>(host: &mut H, arguments: &[&'a [u8]]) -> Parsed<'a, H>;
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

/// The program for which a command is parsed, and which then carries the [`Action`] out.
pub trait Host<'a> {
    /// A policy that was looked up.
    type Policy;

    /// Options of the program that change what arguments may contain.
    fn options(&self) -> HostOptions;

    /// Looks up a policy by its text.
    ///
    /// # Errors
    /// The policy is invalid, or its name is unknown.
    fn policy(&mut self, text: PolicyText<'a>) -> Result<Self::Policy, CommandError>;
}

/// Parses policies without a cache.
impl<'a> Host<'a> for HostOptions {
    type Policy = Policy;

    fn options(&self) -> HostOptions {
        *self
    }

    fn policy(&mut self, text: PolicyText<'a>) -> Result<Policy, CommandError> {
        text.parse()
    }
}

/// An action, or why the arguments are invalid.
pub type Parsed<'a, H> = Result<Action<'a, <H as Host<'a>>::Policy>, CommandError>;

/// The effect of a command, and the form of its reply. `at` is the time of the operation, if the command sets it.
#[derive(Clone, Debug)]
pub enum Action<'a, P> {
    /// Applies `operation` to `key`. The reply is the decision in `format`.
    Apply {
        /// The key.
        key: KeyArgument<'a>,
        /// The policy to decide under.
        policy: P,
        /// The operation.
        operation: Operation<'a>,
        /// The time.
        at: Option<Timestamp>,
        /// How the reply shows the decision.
        format: DecisionFormat,
    },
    /// Applies operations to several keys, independently. The reply is an array of decisions or errors, in order.
    ApplyMany {
        /// The operations: 1 to [`MAX_INDEPENDENT_TAKES`](crate::MAX_INDEPENDENT_TAKES).
        operations: Vec<KeyOperation<'a, P>>,
        /// The time.
        at: Option<Timestamp>,
    },
    /// Takes from several keys, from all of them or from none, or holds. The reply is an array: the decision followed
    /// by the index of the binding key, and the decision on each operation as given.
    ApplyAll {
        /// The operations on distinct keys: 1 to [`MAX_KEYS_PER_TAKE`](sluicegate_core::MAX_KEYS_PER_TAKE).
        operations: Vec<KeyOperation<'a, P>>,
        /// The keys that are given more than once.
        repeated: RepeatedKeys,
        /// The time.
        at: Option<Timestamp>,
    },
    /// Takes or holds once that is allowed. The reply is a denial as soon as the request is sure to miss `timeout`.
    Wait {
        /// The operations on distinct keys, all or none: 1 to [`MAX_KEYS_PER_TAKE`](sluicegate_core::MAX_KEYS_PER_TAKE).
        operations: Vec<KeyOperation<'a, P>>,
        /// The keys that are given more than once: the reply is that of [`ApplyAll`](Self::ApplyAll). `None`: it is the
        /// decision on the only key.
        repeated: Option<RepeatedKeys>,
        /// Upper bound on the wait: up to [`MAX_SPAN`](crate::MAX_SPAN) microseconds.
        timeout: Duration,
    },
    /// Resets `key`. The reply is 1 if it had state, otherwise 0.
    Reset {
        /// The key.
        key: KeyArgument<'a>,
        /// The time.
        at: Option<Timestamp>,
    },
    /// Reads the state of `key`. `reply` writes the reply.
    Read {
        /// The key.
        key: KeyArgument<'a>,
        /// The time.
        at: Option<Timestamp>,
        /// Writes the reply.
        reply: EntryReply,
    },
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyOperation<'a, P> {
    /// The key.
    pub key: KeyArgument<'a>,
    /// The policy to decide under.
    pub policy: P,
    /// The operation.
    pub operation: Operation<'a>,
}

/// Writes a reply from the state of a key at a time. `None` is a key without state.
pub type EntryReply = fn(Option<&Entry>, Timestamp, &mut dyn ReplyWriter);

/// The policy of a request for `key`, whose arguments may be in the wrong order.
#[inline]
pub(crate) fn policy_of<'a, H: Host<'a>>(
    host: &mut H,
    key: &[u8],
    policy: &'a [u8],
) -> Result<H::Policy, CommandError> {
    host.policy(PolicyText::Text(policy)).map_err(|error| {
        let is_policy = |text| PolicyText::Text(text).parse().is_ok();
        if policy.starts_with(b"@") || is_policy(policy) || !is_policy(key) {
            return error;
        }
        PolicyError::swapped(&quote(key), &quote(policy)).into()
    })
}

/// Parses the arguments `key policy` and `options`, for one operation on one key.
#[inline]
pub(crate) fn parse_apply<'a, H: Host<'a>>(
    host: &mut H,
    arguments: &[&'a [u8]],
    spec: &'static CommandSpec,
    options: &'static [OptionName],
    operation: impl FnOnce(&GivenOptions<'_>) -> Operation<'a>,
) -> Parsed<'a, H> {
    let [_, key, policy, rest @ ..] = arguments else { return Err(CommandError::Arity(spec)) };
    parse_operation(host, (key, policy), rest, spec, options, operation)
}

/// Parses the arguments `key policy id` and `options`, for one operation on one hold.
pub(crate) fn parse_hold<'a, H: Host<'a>>(
    host: &mut H,
    arguments: &[&'a [u8]],
    spec: &'static CommandSpec,
    options: &'static [OptionName],
    operation: impl FnOnce(&'a [u8], &GivenOptions<'_>) -> Operation<'a>,
) -> Parsed<'a, H> {
    let [_, key, policy, id, rest @ ..] = arguments else { return Err(CommandError::Arity(spec)) };
    parse_operation(host, (key, policy), rest, spec, options, |given| operation(id, given))
}

#[inline]
fn parse_operation<'a, H: Host<'a>>(
    host: &mut H,
    (key, policy): (&'a [u8], &'a [u8]),
    rest: &[&'a [u8]],
    spec: &'static CommandSpec,
    options: &'static [OptionName],
    operation: impl FnOnce(&GivenOptions<'_>) -> Operation<'a>,
) -> Parsed<'a, H> {
    let given = parse_options(spec, options, host.options(), rest)?;
    let timeout = given.timeout()?;
    let operation = KeyOperation {
        key: KeyArgument::new(key, 1)?,
        policy: policy_of(host, key, policy)?,
        operation: operation(&given),
    };
    Ok(match timeout {
        Some(timeout) => Action::Wait { operations: vec![operation], repeated: None, timeout },
        None => {
            let KeyOperation { key, policy, operation } = operation;
            let format = DecisionFormat::Sluicegate;
            Action::Apply { key, policy, operation, at: given.at, format }
        }
    })
}
