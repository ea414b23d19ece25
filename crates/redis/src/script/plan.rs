//! The script of a policy, its arguments and its replies, and the commands that run it. Windows of the calendar around a time
//! are arguments, because scripts have no calendar.

use std::borrow::Cow;

use redis::{Cmd, Value};
use sluicegate_core::{
    CalendarUnit, Decision, Entry, FixedWindow, Gcra, GcraName, Limit, Operation, OperationError,
    Policy, Timestamp, Window, apply, as_micros,
};
use smallvec::SmallVec;

use super::text::Script;

/// Prefix of keys for which a command may set the time, for tests and simulations. Such keys live for at least an
/// hour, whatever that time.
pub const TEST_PREFIX: &[u8] = b"sg:test:";

/// Script and precomputed arguments of a policy. Created once per policy, and cheap to use.
#[derive(Debug)]
pub struct Plan {
    script: &'static Script,
    pub(crate) policy: Policy,
    /// The policy string, for commands of the module.
    pub(crate) text: String,
    /// The decision of a reset.
    pub(crate) unused_decision: Decision,
    /// The encoded entry of an unused key.
    pub(crate) initial_state: Vec<u8>,
    /// The argument of a take without its cost, if the script has a fast path.
    fast: Option<Vec<u8>>,
    /// The limit, if there is one only, of the gcra family.
    gcra: Option<Gcra>,
    /// The calendars that the policy itself needs.
    pub(crate) calendars: Vec<Calendar>,
}

impl Plan {
    /// The plan for `policy`.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let initial_state = Entry::unused(policy).encode();
        let calendars = policy.limits().iter().filter_map(Limit::calendar);
        Self {
            script: Script::of(policy),
            fast: fast(policy, &initial_state),
            gcra: policy.as_gcra().copied(),
            calendars: calendars.filter_map(|(unit, zone)| Calendar::new(unit, zone)).collect(),
            policy: policy.clone(),
            text: policy.to_string(),
            unused_decision: apply(policy, &mut None, Timestamp::EPOCH, Operation::Reset)
                .expect("a reset is possible under every policy"),
            initial_state,
        }
    }

    /// The script that decides.
    #[must_use]
    pub const fn script(&self) -> &'static Script {
        self.script
    }

    /// The arguments after the key for `operation`. `around` is an estimate of the time of the server, which must be
    /// right within a day, and is only used for windows of the calendar. `at` is the time of the operation, if it is
    /// given; the key must then begin with [`TEST_PREFIX`]. `calendars` are those that the script has requested by
    /// [`Reply::Calendars`](Reply::Calendars).
    ///
    /// # Errors
    /// [`OperationError`]: the policy does not support the operation, or it is invalid.
    pub fn arguments<'a>(
        &'a self,
        operation: Operation<'a>,
        around: Timestamp,
        at: Option<Timestamp>,
        calendars: &[Calendar],
    ) -> Result<Arguments<'a>, OperationError> {
        if let (Operation::Take(cost @ 1..), Some(fast)) = (operation, &self.fast)
            && calendars.is_empty()
        {
            return Ok(Arguments::fast(fast, cost, at));
        }
        let ttl = self.policy.check_operation(operation)?;
        let calendars = boundaries(self.calendars.iter().chain(calendars), around);
        Ok(Arguments::general(operation, &self.initial_state, ttl, calendars, at))
    }

    /// The decision on a take under one limit of the gcra family, for which the script replies with one integer: the
    /// debt of the key before, in ticks.
    ///
    /// # Errors
    /// [`ReplyError`] if no script replies like that.
    pub fn decision_from_debt(
        &self,
        operation: Operation,
        debt: i64,
    ) -> Result<Decision, ReplyError> {
        let decision = match (operation, &self.gcra) {
            (Operation::Take(cost), Some(gcra)) => {
                let take = u64::try_from(debt).ok().and_then(|debt| gcra.try_take(debt, cost));
                take.map(|take| gcra.decision(&take))
            }
            _ => None,
        };
        decision.ok_or_else(|| ReplyError(debt.to_string()))
    }
}

/// The argument of `lua/fast_gcra.lua` or `lua/fast_log.lua` without its cost, if one of them supports the policy.
fn fast(policy: &Policy, initial_state: &[u8]) -> Option<Vec<u8>> {
    match policy.limits() {
        [Limit::Gcra(limit)] if !limit.borrow() => fast_gcra(limit, initial_state),
        [Limit::SlidingLog(limit)] if !limit.count_all() && limit.keep().is_none() => {
            // The byte form contains N and P too, after version, number and machine.
            Some([&[0; 4], initial_state.get(3..13)?, initial_state.get(..13)?].concat())
        }
        _ => None,
    }
}

fn fast_gcra(limit: &Gcra, initial_state: &[u8]) -> Option<Vec<u8>> {
    let period = u64::try_from(limit.period().as_micros()).ok()?;
    let interval = period / u64::from(limit.limit() / limit.scale());
    if u128::from(limit.burst()) * u128::from(interval) >= 1 << 52 {
        return None;
    }
    let queue = u8::from(limit.name() == GcraName::LeakyQueue);
    let mut arguments = vec![0; 4];
    arguments.extend_from_slice(&limit.scale().to_le_bytes());
    arguments.extend_from_slice(&interval.to_le_bytes()[..6]);
    arguments.extend_from_slice(&limit.burst().to_le_bytes());
    arguments.push(queue);
    arguments.extend_from_slice(initial_state.get(..17)?);
    Some(arguments)
}

// The arguments of scripts after the key.

/// The greatest integer that Lua represents exactly.
const MAX_LUA_INTEGER: u64 = 1 << 53;

/// The arguments of one script call, in the order of `lua/main.lua`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> Arguments<'a> {
    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// A take on the fast path of a script: `request` begins with four bytes for the cost.
    fn fast(request: &[u8], cost: u32, at: Option<Timestamp>) -> Self {
        let mut request = request.to_vec();
        request[..4].copy_from_slice(&cost.to_le_bytes());
        let mut list = vec![request.into()];
        list.extend(at.map(|at| digits(at.as_micros())));
        Self(list)
    }

    /// Any operation under any policy; `ttl` is the lifetime of a hold in microseconds.
    fn general(
        operation: Operation<'a>,
        policy: &'a [u8],
        ttl: u64,
        calendars: Vec<u8>,
        at: Option<Timestamp>,
    ) -> Self {
        let word: &[u8] = match operation {
            Operation::Take(_) => b"take",
            Operation::Peek(_) => b"peek",
            Operation::Charge(_) => b"charge",
            Operation::Refund(_) => b"refund",
            Operation::Reserve { .. } => b"reserve",
            Operation::Reset => b"reset",
            Operation::Hold { .. } => b"hold",
            Operation::Settle { .. } => b"settle",
            Operation::Renew { .. } => b"renew",
        };
        let cost = match operation {
            Operation::Settle { used, .. } => used.map(u64::from).map_or_else(Cow::default, digits),
            Operation::Renew { .. } => Cow::default(),
            _ => digits(operation.cost().into()),
        };
        let span = match operation {
            Operation::Reserve { max_wait, .. } => digits(as_micros(max_wait).min(MAX_LUA_INTEGER)),
            _ if operation.id().is_some() => digits(ttl),
            _ => Cow::default(),
        };
        let mut list = vec![word.into(), cost, policy.into(), span, calendars.into()];
        list.push(at.map_or_else(Cow::default, |at| digits(at.as_micros())));
        list.push(operation.id().unwrap_or_default().into());
        // Empty arguments at the end are not sent.
        while list.last().is_some_and(|last| last.is_empty()) {
            list.pop();
        }
        Self(list)
    }
}

fn digits(number: u64) -> Cow<'static, [u8]> {
    number.to_string().into_bytes().into()
}

// Windows of the calendar around a time, for scripts, which have no calendar.

/// A period of the calendar in a time zone, whose windows a script needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    /// Unit, length and name of the zone, as in the byte form.
    name: Vec<u8>,
    /// A limit with that window, by which the core computes boundaries.
    limit: FixedWindow,
}

impl Calendar {
    /// `None` for a zone that is unknown to the core.
    fn new(unit: CalendarUnit, zone: &str) -> Option<Self> {
        let window = Window::Calendar { unit, zone: zone.to_owned() };
        let limit = FixedWindow::new(1, &window, false).ok()?;
        let mut name = vec![unit as u8, u8::try_from(zone.len()).ok()?];
        name.extend_from_slice(zone.as_bytes());
        Some(Self { name, limit })
    }

    /// The calendar of a name in the reply of a script.
    fn named(name: &[u8]) -> Option<Self> {
        const UNITS: [CalendarUnit; 4] =
            [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month, CalendarUnit::Year];
        let (unit, zone) = (name.first()?, std::str::from_utf8(name.get(2..)?).ok()?);
        Self::new(*UNITS.get(usize::from(*unit))?, zone)
    }

    /// Appends the name, the starts of the window of `around`, of the one before and of the two after it, and the end of the
    /// last.
    fn boundaries(&self, around: Timestamp, out: &mut Vec<u8>) {
        let (start, end) = self.limit.bounds(around.as_micros());
        let before = start.checked_sub(1).map_or(start, |micros| self.limit.bounds(micros).0);
        let (_, after) = self.limit.bounds(end);
        out.extend_from_slice(&self.name);
        for boundary in [before, start, end, after, self.limit.bounds(after).1] {
            out.extend_from_slice(&boundary.to_le_bytes()[..7]);
        }
    }
}

/// The windows of these calendars around a time, as an argument of scripts.
pub(crate) fn boundaries<'a>(
    calendars: impl Iterator<Item = &'a Calendar>,
    around: Timestamp,
) -> Vec<u8> {
    let mut out = Vec::new();
    for calendar in calendars {
        calendar.boundaries(around, &mut out);
    }
    out
}

// Replies, and the commands that run a script.

/// The reply of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A decision.
    Decision(Decision),
    /// Not applied, because the script needs the windows of calendars around the time of the
    /// server as arguments of the next call.
    Calendars {
        /// The server's time.
        now: Timestamp,
        /// All calendars that may be needed.
        calendars: Vec<Calendar>,
    },
}

/// A reply that no script returns.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the script's reply cannot be read: {0}")]
pub struct ReplyError(String);

impl Reply {
    /// Parses the elements of an array.
    ///
    /// # Errors
    /// [`ReplyError`] for anything else, and for a calendar of an unknown zone.
    pub fn read(elements: &[Value]) -> Result<Self, ReplyError> {
        let wrong = || ReplyError(format!("{elements:?}"));
        let integers = elements.iter().map(|element| match element {
            Value::Int(integer) => Some(*integer),
            _ => None,
        });
        if let Some(integers) = integers.collect::<Option<SmallVec<[_; 8]>>>() {
            return Decision::from_integers(&integers).map(Self::Decision).ok_or_else(wrong);
        }
        let [Value::Int(now), names @ ..] = elements else { return Err(wrong()) };
        let now = u64::try_from(*now).ok().and_then(|now| Timestamp::from_micros(now).ok());
        let calendars = names.iter().map(|name| match name {
            Value::BulkString(name) => Calendar::named(name),
            _ => None,
        });
        match (now, calendars.collect()) {
            (Some(now), Some(calendars)) => Ok(Self::Calendars { now, calendars }),
            _ => Err(wrong()),
        }
    }
}

/// The call of a script for one key.
pub(crate) fn call_one(plan: &Plan, key: &[u8], arguments: &Arguments<'_>, whole: bool) -> Cmd {
    let mut command = begin_call(plan.script(), whole);
    command.arg(1).arg(key);
    for argument in arguments.iter() {
        command.arg(argument);
    }
    command
}

/// A call by the SHA-1 of the script, or with its `whole` text, which works even if scripts are flushed
/// repeatedly.
pub(crate) fn begin_call(script: &Script, whole: bool) -> Cmd {
    let mut command = redis::cmd(if whole { "EVAL" } else { "EVALSHA" });
    command.arg(if whole { script.text() } else { script.sha1() });
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decision on a key with this debt in ticks, as integers.
    fn integers(policy: &str, cost: u32, debt: i64) -> Option<[i64; 7]> {
        let plan = Plan::new(&policy.parse().unwrap());
        plan.decision_from_debt(Operation::Take(cost), debt)
            .ok()
            .map(|decision| decision.to_integers())
    }

    #[test]
    fn decision_from_debt_follows_the_core() {
        let policy = "gcra:10/1s:burst=5";
        assert_eq!(integers(policy, 1, 0), Some([1, 5, 4, 0, 100_000, 0, 0]));
        assert_eq!(integers(policy, 2, 250_001), Some([1, 5, 0, 0, 450_001, 0, 0]));
        assert_eq!(integers(policy, 3, 250_001), Some([0, 5, 2, 50_001, 250_001, 0, 0]));
        assert_eq!(integers(policy, 1, 900_000), Some([0, 5, 0, 500_000, 900_000, 0, 0]));
        // Three ticks a microsecond: the reply is rounded up.
        let thirds = "token-bucket:3000000/1s:burst=1";
        assert_eq!(integers(thirds, 1, 1), Some([0, 1, 0, 1, 1, 0, 0]));
    }

    #[test]
    fn decision_from_debt_impossible_reply_is_an_error() {
        for (policy, cost, debt) in [
            ("gcra:10/1s", 1, -1),
            ("gcra:10/1s", 11, 0),
            ("gcra:10/1s", 0, 0),
            ("leaky-queue:10/1s", 1, 0),
            ("token-bucket:10/1s:borrow", 1, 0),
            ("fixed-window:10/1s", 1, 0),
            ("gcra:10/1s,gcra:10/1m", 1, 0),
        ] {
            assert_eq!(integers(policy, cost, debt), None, "{policy} {cost} {debt}");
        }
        let plan = Plan::new(&"gcra:10/1s".parse().unwrap());
        assert!(plan.decision_from_debt(Operation::Peek(1), 0).is_err());
    }
}

#[cfg(test)]
mod arguments_tests {
    use std::time::Duration;

    use super::*;

    fn shown(arguments: &Arguments<'_>) -> Vec<String> {
        arguments.iter().map(|argument| argument.escape_ascii().to_string()).collect()
    }

    #[test]
    fn general_empty_arguments_at_the_end_are_not_sent() {
        let at = Some(Timestamp::EPOCH);
        for (operation, calendars, at, expected) in [
            (Operation::Take(3), "", None, &["take", "3", "policy"][..]),
            (Operation::Reset, "", None, &["reset", "0", "policy"]),
            (Operation::Peek(0), "days", None, &["peek", "0", "policy", "", "days"]),
            (Operation::Charge(u32::MAX), "", at, &["charge", "4294967295", "policy", "", "", "0"]),
            (
                Operation::Reserve { cost: 1, max_wait: Duration::MAX },
                "",
                None,
                &["reserve", "1", "policy", "9007199254740992"],
            ),
        ] {
            let calendars = calendars.as_bytes().to_vec();
            assert_eq!(
                shown(&Arguments::general(operation, b"policy", 0, calendars, at)),
                expected
            );
        }
    }

    #[test]
    fn fast_argument_begins_with_the_cost() {
        let arguments = Arguments::fast(&[7; 36], 258, None);
        assert_eq!(arguments.iter().next().unwrap()[..5], [2, 1, 0, 0, 7]);
        assert_eq!(arguments.iter().len(), 1);
    }
}

#[cfg(test)]
mod calendar_tests {
    use super::*;

    #[test]
    fn window_is_that_of_the_core() {
        // 2026-03-29, when clocks in Berlin went forward: a day of 23 hours.
        let calendar = Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap();
        let (start, end) = calendar.limit.bounds(1_774_785_600_000_000);
        assert_eq!(start, 1_774_738_800_000_000);
        assert_eq!(end - start, 23 * 3_600_000_000);
        let mut out = Vec::new();
        calendar.boundaries(Timestamp::saturating_from_micros(start), &mut out);
        assert_eq!(out[..15], *b"\0\x0dEurope/Berlin");
        assert_eq!(out[15..22], (start - 24 * 3_600_000_000).to_le_bytes()[..7]);
        assert_eq!(out[22..29], start.to_le_bytes()[..7]);
        assert_eq!(out[36..43], (end + 24 * 3_600_000_000).to_le_bytes()[..7]);
        assert_eq!(out[43..50], (end + 48 * 3_600_000_000).to_le_bytes()[..7]);
        assert_eq!(out.len(), 50);
    }

    #[test]
    fn named_finds_calendars_by_name() {
        let calendar = Calendar::new(CalendarUnit::Year, "Asia/Shanghai").unwrap();
        assert_eq!(Calendar::named(&calendar.name), Some(calendar));
        for wrong in [b"".as_slice(), b"\0", b"\x04\x03UTC", b"\0\x04Mars", b"\0\x01\xff"] {
            assert_eq!(Calendar::named(wrong), None);
        }
    }

    #[test]
    fn boundaries_exist_at_the_ends_of_time() {
        let calendar = Calendar::new(CalendarUnit::Month, "UTC").unwrap();
        for edge in [Timestamp::EPOCH, Timestamp::MAX] {
            let out = boundaries([calendar.clone()].iter(), edge);
            assert_eq!(out.len(), 5 + 35);
        }
    }
}

#[cfg(test)]
mod reply_tests {
    use super::*;

    fn integers(list: &[i64]) -> Vec<Value> {
        list.iter().map(|&integer| Value::Int(integer)).collect()
    }

    fn bytes(bytes: &[u8]) -> Value {
        Value::BulkString(bytes.to_vec())
    }

    #[test]
    fn reply_of_a_decision_reads_back_as_it_was() {
        for actual in [[1, 16, 15, 0, 2_000_000, 7, 0], [0, 9, 0, -1, 1 << 50, 0, 2], [0; 7]] {
            let Ok(Reply::Decision(decision)) = Reply::read(&integers(&actual)) else { panic!() };
            assert_eq!(decision.to_integers(), actual);
        }
    }

    #[test]
    fn reply_of_no_script_is_an_error() {
        for wrong in [
            &[1, 2, 3][..],
            &[2, 1, 1, 0, 0, 0, 0],
            &[1, 1, 1, 5, 0, 0, 0],
            &[0, 1, 1, -2, 0, 0, 0],
            &[1, -1, 1, 0, 0, 0, 0],
            &[1, 1, 1, 0, 0, 0, 0, 0],
            &[],
        ] {
            assert!(Reply::read(&integers(wrong)).is_err(), "{wrong:?}");
        }
        let zone = [Value::Int(5), bytes(b"\0\x04Mars")];
        assert!(Reply::read(&zone).unwrap_err().to_string().contains("Mars"));
        assert!(Reply::read(&[bytes(b"x")]).is_err());
    }

    #[test]
    fn reply_with_names_requests_calendars() {
        let reply = Reply::read(&[Value::Int(5), bytes(b"\0\x03UTC")]).unwrap();
        let Reply::Calendars { now, calendars } = reply else { panic!() };
        assert_eq!((now.as_micros(), calendars.len()), (5, 1));
    }
}
