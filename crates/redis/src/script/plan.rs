//! Scripts and arguments for a policy.

use sluicegate_core::{
    Decision, Entry, Gcra, GcraName, Limit, Operation, OperationError, Policy, Timestamp, apply,
};

use super::{
    arguments::Arguments,
    calendar::{self, Calendar},
    reply::ReplyError,
    text::Script,
};

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
    /// [`Reply::Calendars`](super::Reply::Calendars).
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
        let calendars = calendar::boundaries(self.calendars.iter().chain(calendars), around);
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
