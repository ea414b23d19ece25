//! The replies of servers, to scripts and to the commands of the module.

use redis::Value;
use sluicegate_core::{Decision, Operation, StateFault, StoreError, Timestamp};

use crate::script::{Calendar, Item, Plan, Reply};

/// The meaning of a reply.
pub(crate) enum ReplyKind<T = Decision> {
    Decided(T),
    /// Not applied: the script needs these calendars.
    Calendars {
        now: Timestamp,
        calendars: Vec<Calendar>,
    },
    /// Not applied: the server does not know the script.
    NoScript,
    /// Not applied: the server does not have the module, or (unless `at_all`) the module does not know the policy.
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
    let Value::Int(debt) = reply else { return parse_general(reply) };
    plan.decision_from_debt(operation, *debt)
        .map_or_else(|error| ReplyKind::Failed(unexpected_reply(&error)), ReplyKind::Decided)
}

/// Parses a reply that is not one integer.
pub(crate) fn parse_general(reply: &Value) -> ReplyKind {
    let unexpected_reply = |what: &dyn std::fmt::Display| ReplyKind::Failed(unexpected_reply(what));
    match reply {
        Value::Array(elements) => {
            let mut items = smallvec::SmallVec::<[Item<'_>; 8]>::new();
            for element in elements {
                items.push(match element {
                    Value::Int(integer) => Item::Integer(*integer),
                    Value::BulkString(bytes) => Item::Bytes(bytes),
                    _ => return unexpected_reply(&format_args!("{reply:?}")),
                });
            }
            match Reply::read(&items) {
                Ok(Reply::Decision(decision)) => ReplyKind::Decided(decision),
                Ok(Reply::Calendars { now, calendars }) => ReplyKind::Calendars { now, calendars },
                Err(error) => unexpected_reply(&error),
            }
        }
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
                None => StoreError::Unavailable(text),
            })
        }
        other => unexpected_reply(&format_args!("{other:?}")),
    }
}

pub(crate) fn unexpected_reply(what: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("unexpected reply of a script: {what}"))
}

impl ReplyKind {
    /// Converts the decision, if there is one.
    pub(crate) fn map<T>(
        self,
        map: impl FnOnce(Decision) -> Result<T, StoreError>,
    ) -> ReplyKind<T> {
        match self {
            Self::Decided(decision) => {
                map(decision).map_or_else(ReplyKind::Failed, ReplyKind::Decided)
            }
            Self::Calendars { now, calendars } => ReplyKind::Calendars { now, calendars },
            Self::NoScript => ReplyKind::NoScript,
            Self::NoModule { at_all } => ReplyKind::NoModule { at_all },
            Self::Redirect { to, moved } => ReplyKind::Redirect { to, moved },
            Self::Failed(error) => ReplyKind::Failed(error),
        }
    }
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
