//! The replies of servers, to scripts and to the commands of the module.

use redis::Value;
use sluicegate_core::{Decision, HoldError, Operation, StateFault, StoreError, Timestamp};

use crate::script::{Calendar, Plan, Reply};

/// The meaning of a reply.
pub(crate) enum ReplyKind<T = Decision> {
    Decided(T),
    /// Not applied: the script needs these calendars.
    Calendars {
        now: Timestamp,
        calendars: Vec<Calendar>,
    },
    /// Not applied: the server does not have the script.
    NoScript,
    /// Not applied: the server does not have the module, or (unless `at_all`) the module does not support the policy.
    NoModule {
        at_all: bool,
    },
    /// Not applied: another node holds the slot, permanently (`moved`) or for this command (`ASK`).
    Redirect {
        to: String,
        moved: bool,
    },
    Failed(StoreError),
}

/// Parses the reply of a plan's script to `operation`.
pub(crate) fn parse_script_reply(plan: &Plan, operation: Operation, reply: &Value) -> ReplyKind {
    let Value::Int(debt) = reply else { return parse_general(reply, one_decision) };
    plan.decision_from_debt(operation, *debt)
        .map_or_else(|error| ReplyKind::Failed(unexpected_reply(&error)), ReplyKind::Decided)
}

/// The decision in the elements of a reply, if they are one.
pub(crate) fn one_decision(elements: &[Value]) -> Option<Decision> {
    match Reply::read(elements) {
        Ok(Reply::Decision(decision)) => Some(decision),
        _ => None,
    }
}

/// Parses a reply that is not one integer. `decided` parses the elements of an answer.
pub(crate) fn parse_general<T>(
    reply: &Value,
    decided: impl FnOnce(&[Value]) -> Option<T>,
) -> ReplyKind<T> {
    match reply {
        Value::Array(elements) => match decided(elements) {
            Some(answer) => ReplyKind::Decided(answer),
            None => match Reply::read(elements) {
                Ok(Reply::Calendars { now, calendars }) => ReplyKind::Calendars { now, calendars },
                Ok(Reply::Decision(decision)) => {
                    ReplyKind::Failed(unexpected_reply(&format_args!("{decision:?}")))
                }
                Err(error) => ReplyKind::Failed(unexpected_reply(&error)),
            },
        },
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            if code == "NOSCRIPT" {
                return ReplyKind::NoScript;
            }
            if let Some((to, moved)) = redirect_target(reply) {
                return ReplyKind::Redirect { to, moved };
            }
            let text = format!("{code} {details}");
            ReplyKind::Failed(match StateFault::of(&text) {
                Some(fault) => StoreError::Corrupt(fault, text),
                None if details == HoldError::Full.to_string() => HoldError::Full.into(),
                None if is_about_arguments(code, details) => {
                    StoreError::Arguments(rejected(code, details))
                }
                None => StoreError::Unavailable(text),
            })
        }
        other => ReplyKind::Failed(unexpected_reply(&format_args!("{other:?}"))),
    }
}

/// Whether an error reply says that the arguments of the command are invalid. Every other error, also of a proxy before
/// the server, says that the store is unavailable.
pub(crate) fn is_about_arguments(code: &str, details: &str) -> bool {
    /// How the errors of the commands, functions and scripts begin, and those of servers about arguments.
    const ABOUT_ARGUMENTS: [&str; 15] = [
        "invalid ",
        "missing ",
        "duplicate ",
        "option ",
        "unknown option ",
        "too many open holds ",
        "too many takes",
        "reserve needs ",
        "wrong number of arguments",
        "Number of keys ",
        "syntax error",
        "value is ",
        "string exceeds ",
        "Protocol error",
        "min or max ",
    ];
    match code {
        "ERR" => ABOUT_ARGUMENTS.iter().any(|begin| details.starts_with(begin)),
        "SGPOLICY" | "CROSSSLOT" => true,
        _ => false,
    }
}

/// The text of an error about arguments.
fn rejected(code: &str, details: &str) -> String {
    if code == "CROSSSLOT" {
        return "invalid keys: expected keys in one slot of the cluster, such as `{acme}:requests` and `{acme}:tokens`; \
                or use a URL with redis+cluster://"
            .to_owned();
    }
    details.to_owned()
}

/// The error of a server whose commands do not support a policy, if `reply` is one.
pub(crate) fn policy_error(reply: &Value) -> Option<StoreError> {
    let Value::ServerError(error) = reply else { return None };
    let details = error.details().unwrap_or_default();
    (error.code() == "SGPOLICY").then(|| StoreError::Arguments(details.to_owned()))
}

/// A missing permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingPermission {
    /// To run a command, on any key.
    Command,
    /// To use this key.
    Key,
}

impl MissingPermission {
    /// The missing permission in a reply. Each version has its own texts, and others for scripts.
    pub(crate) fn of(reply: &Value) -> Option<Self> {
        const ANY: [&str; 3] = ["NOPERM", "ACL failure", "user executing the script"];
        const KEY: [&str; 2] = ["one of the keys", "access a key"];
        let Value::ServerError(error) = reply else { return None };
        let has = |words: &[&str]| {
            let details = error.details().unwrap_or_default();
            words.iter().any(|word| error.code() == *word || details.contains(word))
        };
        has(&ANY).then(|| if has(&KEY) { Self::Key } else { Self::Command })
    }
}

fn unexpected_reply(what: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("unexpected reply of a script: {what}"))
}

/// Too many redirects of one command.
pub(crate) fn too_many_redirects(slot: u16) -> StoreError {
    StoreError::Unavailable(format!("slot {slot} is redirected from node to node"))
}

/// The node that holds the slot, and whether it does so permanently (`MOVED`) or for this command (`ASK`).
pub(crate) fn redirect_target(reply: &Value) -> Option<(String, bool)> {
    let Value::ServerError(error) = reply else { return None };
    let moved = match error.code() {
        "MOVED" => true,
        "ASK" => false,
        _ => return None,
    };
    let to = error.details().unwrap_or_default().split(' ').next_back().unwrap_or_default();
    Some((to.to_owned(), moved))
}
