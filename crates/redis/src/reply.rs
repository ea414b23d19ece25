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
                None if is_about_arguments(code, details) => {
                    match details.strip_prefix(TOO_MANY_HOLDS).map(str::parse) {
                        Some(Ok(most)) => HoldError::Full(most).into(),
                        _ => StoreError::Arguments(rejected(code, details)),
                    }
                }
                None => StoreError::Unavailable(text),
            })
        }
        other => ReplyKind::Failed(unexpected_reply(&format_args!("{other:?}"))),
    }
}

/// The error of a hold of a key that has as many as the store opens, up to that number.
const TOO_MANY_HOLDS: &str = "too many open holds of the key: expected at most ";

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

#[cfg(test)]
mod tests {
    use sluicegate_commands::CommandError;
    use sluicegate_core::{KeyLengthError, OperationError};

    use super::*;

    fn failure(reply: &str) -> StoreError {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
        match parse_general(&reply, one_decision) {
            ReplyKind::Failed(error) => error,
            _ => panic!("{reply:?}"),
        }
    }

    #[test]
    fn error_reply_about_arguments_is_never_unavailability() {
        for reply in [
            "ERR invalid key: expected 1 to 65536 bytes, found 70000",
            "ERR invalid cost `x`: expected a whole number from 0 to 4294967295",
            "ERR unknown option `CSOT` for SG.TAKE: did you mean `COST`?",
            "ERR wrong number of arguments for 'sg.take' command; expected SG.TAKE key policy",
            "ERR wrong number of arguments for 'evalsha' command",
            "ERR duplicate option COST: expected it once",
            "ERR option COST has no value: expected COST and a whole number, such as `COST 5`",
            "ERR missing ttl: expected 1000 to 86400000000 microseconds; only a policy with `concurrency` has a default",
            "ERR syntax error",
            "ERR value is not an integer or out of range",
            "ERR Number of keys can't be greater than number of args",
            "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
            "ERR Protocol error: invalid bulk length",
        ] {
            let text = reply.strip_prefix("ERR ").unwrap().to_owned();
            assert_eq!(failure(reply), StoreError::Arguments(text));
        }
        let commands: [CommandError; 4] = [
            CommandError::Key(KeyLengthError(0)),
            CommandError::Operation(OperationError::Concurrency),
            CommandError::Operation(OperationError::Reserve),
            CommandError::NoTestClock,
        ];
        for error in commands.map(|error| error.to_string()) {
            assert!(matches!(failure(&error), StoreError::Arguments(_)), "{error}");
        }
        for reply in [
            "SGPOLICY invalid policy `gcra`: expected a period",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ] {
            assert!(matches!(failure(reply), StoreError::Arguments(_)), "{reply}");
        }
    }

    #[test]
    fn error_reply_of_a_server_that_cannot_serve_is_unavailability() {
        for reply in [
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN The cluster is down",
            "READONLY You can't write against a read only replica.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MASTERDOWN Link with MASTER is down",
            "NOREPLICAS Not enough good replicas to write.",
            "MISCONF Redis is configured to save RDB snapshots",
            "BUSY Redis is busy running a script.",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "UNBLOCKED force unblock from blocking operation",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "SGSTORE the store is unavailable: connection refused",
            "ERR max number of clients reached",
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            "ERR Connection timed out",
            "ERR user_script:1: out of memory",
            "ERR This instance has cluster support disabled",
            "upstream failure",
        ] {
            let error = failure(reply);
            assert!(error.is_unavailable(), "{reply}: {error:?}");
        }
    }
}
