//! The effects of scripts, by the core: the arguments of `lua/main.lua` in, a decision and the new state out.

use std::{collections::BTreeMap, fmt, time::Duration};

use anyhow::{Context, Result, bail};
use sluicegate_core::{
    Decision, Entry, GcraName, HoldOperation, Operation, Policy, Timestamp, apply, apply_hold,
};
use sluicegate_redis::script::Plan;

/// Lengths of the argument of a take on the fast path, of gcra and of a log, and where the policy begins in it.
const FAST_LENGTHS: [usize; 2] = [36, 27];
/// Only the other path of the script has greater debts.
const MAX_FAST_DEBT: u64 = 1 << 52;
const COST_BYTES: usize = 4;

/// The policies that scripts may get, by the bytes that stand for them.
#[derive(Debug, Default)]
pub(crate) struct Policies(BTreeMap<Vec<u8>, Policy>);

/// The operation of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptOperation<'a> {
    OnKey(Operation),
    OnHold(HoldOperation<'a>),
}

impl fmt::Display for ScriptOperation<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnKey(operation) => write!(formatter, "{operation:?}"),
            Self::OnHold(operation) => {
                let (name, id, units) = match *operation {
                    HoldOperation::Hold { id, cost, .. } => ("hold", id, Some(cost)),
                    HoldOperation::Settle { id, used } => ("settle", id, used),
                    HoldOperation::Renew { id, .. } => ("renew", id, None),
                };
                write!(formatter, "{name} {} {units:?}", id.escape_ascii())
            }
        }
    }
}

impl From<Operation> for ScriptOperation<'_> {
    fn from(operation: Operation) -> Self {
        Self::OnKey(operation)
    }
}

/// One call of a script that decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) operation: ScriptOperation<'a>,
}

/// A call with what else its arguments say.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedCall<'a> {
    pub(super) call: ScriptCall<'a>,
    /// Whether the script may reply with the debt of the key before.
    replies_with_debt: bool,
    /// The time, which only tests set.
    pub(super) at: Option<Timestamp>,
    /// The calendars that are given.
    pub(super) calendars: &'a [u8],
}

/// The reply of a script.
#[derive(Clone, Debug)]
pub(super) enum ScriptReply {
    Decision(Decision),
    /// The debt of the key before, from which the client makes the decision.
    Debt(u64),
    /// Nothing was applied: these calendars are to be given.
    Calendars(Timestamp, Vec<Vec<u8>>),
}

impl Policies {
    /// Adds a policy.
    pub(crate) fn add(&mut self, policy: &Policy) -> Result<()> {
        self.0.insert(Entry::unused(policy).encode(), policy.clone());
        let take = Operation::Take(1);
        let plan = Plan::new(policy);
        if let Ok(arguments) = plan.arguments(take, Timestamp::EPOCH, None, &[])
            && let Some(first) = arguments.iter().next()
            && FAST_LENGTHS.contains(&first.len())
        {
            let bytes = first.get(COST_BYTES..).context("a fast argument begins with the cost")?;
            self.0.insert(bytes.to_vec(), policy.clone());
        }
        Ok(())
    }

    /// The call that `arguments`, those after the key, stand for.
    pub(super) fn call<'a>(&'a self, arguments: &[&'a [u8]]) -> Result<ReceivedCall<'a>> {
        let argument = |index: usize| arguments.get(index).copied().unwrap_or_default();
        let time = |digits: &[u8]| match digits {
            b"" => Ok(None),
            _ => number(digits).map(|micros| Some(Timestamp::saturating_from_micros(micros))),
        };
        if FAST_LENGTHS.contains(&argument(0).len()) {
            let (cost, policy) = argument(0).split_at(COST_BYTES);
            let cost = u32::from_le_bytes(cost.try_into()?);
            let operation = ScriptOperation::OnKey(Operation::Take(cost));
            let call = ScriptCall { policy: self.find(policy)?, operation };
            let replies_with_debt = argument(0).len() == FAST_LENGTHS[0];
            let at = time(argument(1))?;
            return Ok(ReceivedCall { call, replies_with_debt, at, calendars: b"" });
        }
        let cost = || number(argument(1)).and_then(|it| Ok(u32::try_from(it)?));
        let span = || number(argument(3)).map(Duration::from_micros);
        let id = argument(6);
        let on_key = ScriptOperation::OnKey;
        let on_hold = ScriptOperation::OnHold;
        let operation = match argument(0) {
            b"take" => on_key(Operation::Take(cost()?)),
            b"peek" => on_key(Operation::Peek(cost()?)),
            b"charge" => on_key(Operation::Charge(cost()?)),
            b"refund" => on_key(Operation::Refund(cost()?)),
            b"reserve" => on_key(Operation::Reserve { cost: cost()?, max_wait: span()? }),
            b"reset" => on_key(Operation::Reset),
            b"hold" => on_hold(HoldOperation::Hold { id, cost: cost()?, ttl: Some(span()?) }),
            b"settle" => {
                let used = if argument(1).is_empty() { None } else { Some(cost()?) };
                on_hold(HoldOperation::Settle { id, used })
            }
            b"renew" => on_hold(HoldOperation::Renew { id, ttl: Some(span()?) }),
            other => bail!("no operation of a script: {}", other.escape_ascii()),
        };
        let call = ScriptCall { policy: self.find(argument(2))?, operation };
        let (at, calendars) = (time(argument(5))?, argument(4));
        Ok(ReceivedCall { call, replies_with_debt: false, at, calendars })
    }

    pub(super) fn find(&self, bytes: &[u8]) -> Result<&Policy> {
        let unknown = || format!("a policy that is not part of the plan: {}", bytes.escape_ascii());
        self.0.get(bytes).with_context(unknown)
    }
}

impl ReceivedCall<'_> {
    /// The debt with which the script replies in place of a decision, for the `entry` before it.
    pub(super) fn debt(&self, entry: Option<&Entry>, now: Timestamp) -> Option<u64> {
        let ScriptCall { policy, operation: ScriptOperation::OnKey(Operation::Take(cost)) } =
            self.call
        else {
            return None;
        };
        let gcra = policy.as_gcra().filter(|_| self.replies_with_debt)?;
        let is_known = entry.is_none_or(|entry| entry.policy() == policy);
        let in_time = cost <= gcra.burst() && gcra.name() != GcraName::LeakyQueue;
        let debt = entry.map_or(Some(0), |entry| entry.debt(now))?;
        u64::try_from(debt).ok().filter(|&debt| is_known && in_time && debt < MAX_FAST_DEBT)
    }
}

impl ScriptCall<'_> {
    /// The decision on `entry`, which it updates; or the error of the reply.
    pub(crate) fn apply(
        &self,
        entry: &mut Option<Entry>,
        now: Timestamp,
    ) -> Result<Decision, String> {
        match self.operation {
            ScriptOperation::OnKey(operation) => {
                apply(self.policy, entry, now, operation).map_err(|error| error.to_string())
            }
            ScriptOperation::OnHold(operation) => {
                apply_hold(self.policy, entry, now, operation).map_err(|error| error.to_string())
            }
        }
    }
}

pub(super) fn number(digits: &[u8]) -> Result<u64> {
    let text = str::from_utf8(digits).context("a number in a script's arguments")?;
    text.parse().with_context(|| format!("invalid number `{text}` in a script's arguments"))
}
