//! The arguments of scripts, those of `lua/main.lua` and of the script for several keys.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use sluicegate_conformance::Invocation;
use sluicegate_core::{Decision, Entry, GcraName, Limit, Operation, Policy, Timestamp, Window};
use sluicegate_redis::script::Plan;

/// Lengths of the argument of a take on the fast path, of gcra and of a log, and where the policy begins in it.
const FAST_LENGTHS: [usize; 2] = [36, 27];
/// Only the other path of the script has greater debts.
const MAX_FAST_DEBT: u64 = 1 << 52;
const COST_BYTES: usize = 4;
/// Arguments of the script for several keys: before those of the keys, and of each key.
const HEAD: usize = 4;
const OF_KEY: usize = 3;

/// The policies that scripts may get, by the bytes that stand for them.
#[derive(Debug, Default)]
pub(crate) struct Policies(BTreeMap<Vec<u8>, Policy>);

/// A call of a script that decides.
#[derive(Clone, Debug)]
pub(super) struct ReceivedCall<'a> {
    /// The keys with their policies and operations.
    pub(super) keys: Vec<(&'a [u8], &'a Policy, Operation<'a>)>,
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
    /// The decision on each key.
    Decisions(Vec<Decision>),
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

    /// The call that the number of keys, the keys and the arguments stand for.
    pub(super) fn call<'a>(&'a self, arguments: &[&'a [u8]]) -> Result<ReceivedCall<'a>> {
        let (count, rest) = arguments.split_first().context("the number of keys")?;
        let count = usize::try_from(number(count)?)?;
        let (keys, arguments) = rest.split_at_checked(count).context("the keys")?;
        match keys {
            [key] => self.call_on_key(key, arguments),
            _ => self.call_on_keys(keys, arguments),
        }
    }

    fn call_on_key<'a>(
        &'a self,
        key: &'a [u8],
        arguments: &[&'a [u8]],
    ) -> Result<ReceivedCall<'a>> {
        let argument = |index: usize| arguments.get(index).copied().unwrap_or_default();
        if FAST_LENGTHS.contains(&argument(0).len()) {
            let (cost, policy) = argument(0).split_at(COST_BYTES);
            let operation = Operation::Take(u32::from_le_bytes(cost.try_into()?));
            return Ok(ReceivedCall {
                keys: vec![(key, self.find(policy)?, operation)],
                replies_with_debt: argument(0).len() == FAST_LENGTHS[0],
                at: time(argument(1))?,
                calendars: b"",
            });
        }
        let cost = || number(argument(1)).and_then(|it| Ok(u32::try_from(it)?));
        let span = || number(argument(3)).map(Duration::from_micros);
        let id = argument(6);
        let operation = match argument(0) {
            b"take" => Operation::Take(cost()?),
            b"peek" => Operation::Peek(cost()?),
            b"charge" => Operation::Charge(cost()?),
            b"refund" => Operation::Refund(cost()?),
            b"reserve" => Operation::Reserve { cost: cost()?, max_wait: span()? },
            b"reset" => Operation::Reset,
            b"hold" => Operation::Hold { id, cost: cost()?, ttl: Some(span()?) },
            b"settle" => {
                let used = if argument(1).is_empty() { None } else { Some(cost()?) };
                Operation::Settle { id, used }
            }
            b"renew" => Operation::Renew { id, ttl: Some(span()?) },
            other => bail!("no operation of a script: {}", other.escape_ascii()),
        };
        let keys = vec![(key, self.find(argument(2))?, operation)];
        let (at, calendars) = (time(argument(5))?, argument(4));
        Ok(ReceivedCall { keys, replies_with_debt: false, at, calendars })
    }

    fn call_on_keys<'a>(
        &'a self,
        keys: &[&'a [u8]],
        arguments: &[&'a [u8]],
    ) -> Result<ReceivedCall<'a>> {
        let (head, rest) = arguments.split_at_checked(HEAD).context("too few arguments")?;
        ensure!(rest.len() == keys.len() * OF_KEY, "as many arguments as keys");
        let mut received = Vec::with_capacity(keys.len());
        for (&key, of_key) in keys.iter().zip(rest.chunks(OF_KEY)) {
            let (cost, ttl) = (u32::try_from(number(of_key[0])?)?, number(of_key[2])?);
            let operation = match head[0] {
                b"take" => Operation::Take(cost),
                b"peek" => Operation::Peek(cost),
                b"hold" => {
                    Operation::Hold { id: head[3], cost, ttl: Some(Duration::from_micros(ttl)) }
                }
                other => bail!("no operation on several keys: {}", other.escape_ascii()),
            };
            received.push((key, self.find(of_key[1])?, operation));
        }
        let (at, calendars) = (time(head[2])?, head[1]);
        Ok(ReceivedCall { keys: received, replies_with_debt: false, at, calendars })
    }

    fn find(&self, bytes: &[u8]) -> Result<&Policy> {
        let unknown = || format!("a policy that is not part of the plan: {}", bytes.escape_ascii());
        self.0.get(bytes).with_context(unknown)
    }
}

impl ReceivedCall<'_> {
    /// The operations, at this time.
    pub(super) fn invocations(&self, now: Timestamp) -> Vec<Invocation<'_>> {
        let keys = self.keys.iter();
        keys.map(|&(key, policy, operation)| Invocation { key, policy, now, operation }).collect()
    }

    /// The debt with which the script replies in place of a decision, for the `entry` before it.
    pub(super) fn debt(&self, entry: Option<&Entry>, now: Timestamp) -> Option<u64> {
        let [(_, policy, Operation::Take(cost))] = self.keys[..] else { return None };
        let gcra = policy.as_gcra().filter(|_| self.replies_with_debt)?;
        let is_known = entry.is_none_or(|entry| entry.policy() == policy);
        let in_time = cost <= gcra.burst() && gcra.name() != GcraName::LeakyQueue;
        let debt = entry.map_or(Some(0), |entry| entry.debt(now))?;
        u64::try_from(debt).ok().filter(|&debt| is_known && in_time && debt < MAX_FAST_DEBT)
    }
}

/// The time that an argument sets, if it is not empty.
fn time(digits: &[u8]) -> Result<Option<Timestamp>> {
    match digits {
        b"" => Ok(None),
        _ => number(digits).map(|micros| Some(Timestamp::saturating_from_micros(micros))),
    }
}

fn number(digits: &[u8]) -> Result<u64> {
    let text = str::from_utf8(digits).context("a number in a script's arguments")?;
    text.parse().with_context(|| format!("invalid number `{text}` in a script's arguments"))
}

// Calendars that a script asks for: it has none, and gets the windows around now as an argument.

/// Bytes of the five times behind the name of a calendar.
const TIMES: usize = 35;

/// The calendars of a policy: unit, length and name of the zone.
pub(super) fn calendar_names(policy: &Policy) -> Vec<Vec<u8>> {
    let name = |limit: &Limit| match limit {
        Limit::FixedWindow(window) => match window.window() {
            Window::Calendar { unit, zone } => {
                let length = u8::try_from(zone.len()).ok()?;
                Some([&[unit as u8, length], zone.as_bytes()].concat())
            }
            Window::Span { .. } => None,
        },
        _ => None,
    };
    policy.limits().iter().filter_map(name).collect()
}

/// Whether a calendar is among those given.
pub(super) fn is_given(name: &[u8], mut given: &[u8]) -> bool {
    while let Some(&length) = given.get(1) {
        let size = 2 + usize::from(length);
        if given.get(..size) == Some(name) {
            return true;
        }
        given = given.get(size + TIMES..).unwrap_or_default();
    }
    false
}
