//! Stores under test, and the comparison of their answers.

use std::{cell::RefCell, collections::HashMap, rc::Rc, time::Duration};

use sluicegate_core::{
    Decision, Entry, Operation, Outcome, Policy, Retry, Timestamp, apply, as_micros,
};

use crate::oracle::{self, HoldOp, Op, Oracle, ParsedPolicy};

/// One operation on one key, under a policy, at a given time.
#[derive(Clone, Copy, Debug)]
pub struct Invocation<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The policy.
    pub policy: &'a Policy,
    /// The time.
    pub now: Timestamp,
    /// The operation.
    pub operation: Operation<'a>,
}

/// A decision, or the text of an error, such as a `reserve` that the policy does not support.
pub type Answer = Result<Decision, String>;

/// A store under test.
pub trait Subject {
    /// Applies an operation.
    fn apply(&mut self, invocation: Invocation<'_>) -> Answer;
}

/// The core over a plain map: the reference for every store.
#[derive(Debug, Default)]
pub struct CoreSubject {
    entries: HashMap<Vec<u8>, Entry>,
}

impl CoreSubject {
    /// The entry of a key.
    #[must_use]
    pub fn entry(&self, key: &[u8]) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(crate) fn take_entry(&mut self, key: &[u8]) -> Option<Entry> {
        self.entries.remove(key)
    }

    pub(crate) fn put_entry(&mut self, key: &[u8], entry: Option<Entry>) {
        if let Some(entry) = entry {
            self.entries.insert(key.to_vec(), entry);
        }
    }
}

impl Subject for CoreSubject {
    fn apply(&mut self, invocation: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = invocation;
        let mut entry = self.entries.remove(key);
        let decision = apply(policy, &mut entry, now, operation);
        self.put_entry(key, entry);
        decision.map_err(|error| error.to_string())
    }
}

/// The oracle as a store.
#[derive(Clone, Debug, Default)]
pub struct OracleSubject(Oracle);

impl Subject for OracleSubject {
    fn apply(&mut self, invocation: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = invocation;
        let (op, cost) = match operation {
            Operation::Take(cost) => (Op::Take, cost),
            Operation::Peek(cost) => (Op::Peek, cost),
            Operation::Charge(cost) => (Op::Charge, cost),
            Operation::Refund(cost) => (Op::Refund, cost),
            Operation::Reserve { cost, max_wait } => {
                (Op::Reserve { max_wait_us: as_micros(max_wait) }, cost)
            }
            Operation::Reset => (Op::Reset, 0),
            Operation::Hold { id, cost, ttl } => {
                let ttl_us = ttl.map(as_micros);
                return self.apply_to_hold(invocation, id, HoldOp::Hold { cost, ttl_us });
            }
            Operation::Settle { id, used } => {
                return self.apply_to_hold(invocation, id, HoldOp::Settle { used });
            }
            Operation::Renew { id, ttl } => {
                let ttl_us = ttl.map(as_micros);
                return self.apply_to_hold(invocation, id, HoldOp::Renew { ttl_us });
            }
        };
        decision(&self.0.apply_parsed(key, &*parsed(policy)?, now.as_micros(), op, cost)?)
    }
}

impl OracleSubject {
    /// The decision on a key of a request for several that is denied: nothing is charged, and limits with `count=all` record
    /// `cost`.
    ///
    /// # Errors
    /// As [`Subject::apply`].
    pub fn record_denial(
        &mut self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        cost: u32,
    ) -> Answer {
        let policy = parsed(policy)?;
        decision(&self.0.apply_parsed(key, &policy, now.as_micros(), Op::RecordDenial, cost)?)
    }

    fn apply_to_hold(&mut self, invocation: Invocation<'_>, id: &[u8], op: HoldOp) -> Answer {
        let Invocation { key, policy, now, .. } = invocation;
        decision(&self.0.apply_hold_parsed(key, id, &*parsed(policy)?, now.as_micros(), op)?)
    }
}

/// How many policies each thread keeps for the oracle. A test uses few at a time.
const KEPT_POLICIES: usize = 8;

thread_local! {
    /// The policies that the oracle parsed last, of which the first one is replaced next.
    static PARSED: RefCell<Vec<(Policy, Rc<ParsedPolicy>)>> = const { RefCell::new(Vec::new()) };
}

/// The policy as the oracle parses its text.
fn parsed(policy: &Policy) -> Result<Rc<ParsedPolicy>, String> {
    PARSED.with_borrow_mut(|kept| {
        if let Some((_, parsed)) = kept.iter().find(|it| it.0 == *policy) {
            return Ok(Rc::clone(parsed));
        }
        let parsed = Rc::new(ParsedPolicy::parse(&policy.to_string())?);
        if kept.len() == KEPT_POLICIES {
            kept.remove(0);
        }
        kept.push((policy.clone(), Rc::clone(&parsed)));
        Ok(parsed)
    })
}

/// An answer of the oracle as a decision.
fn decision(answer: &oracle::Answer) -> Answer {
    let units = |count: u64| u32::try_from(count).map_err(|_| format!("{count} units"));
    let retry = answer
        .retry_after_us
        .map_or(Retry::Never, |micros| Retry::After(Duration::from_micros(micros)));
    let outcome = if answer.allowed {
        Outcome::Allow { delay: Duration::from_micros(answer.delay_us) }
    } else {
        Outcome::Deny { retry }
    };
    Ok(Decision {
        outcome,
        limit: units(answer.limit)?,
        remaining: units(answer.remaining)?,
        reset_after: Duration::from_micros(answer.reset_after_us),
        binding: answer.binding,
    })
}

/// Compares two answers to the same invocation.
///
/// # Errors
/// The fields that differ, or the error of the side that failed alone.
pub fn compare(expected: &Answer, found: &Answer) -> Result<(), String> {
    match (expected, found) {
        (Err(_), Err(_)) => Ok(()),
        (Ok(expected), Ok(found)) if expected == found => Ok(()),
        (Ok(expected), Ok(found)) => {
            let names = ["allowed", "limit", "remaining", "retry", "reset", "delay", "binding"];
            let pairs = expected.to_integers().into_iter().zip(found.to_integers());
            let wrong = names.iter().zip(pairs).filter(|(_, (expected, found))| expected != found);
            let wrong = wrong.map(|(name, (expected, found))| {
                format!("{name} should be {expected} and is {found}")
            });
            Err(wrong.collect::<Vec<_>>().join(", "))
        }
        (Ok(_), Err(error)) => Err(format!("fails with `{error}`")),
        (Err(error), Ok(_)) => Err(format!("should fail with `{error}` and does not")),
    }
}

/// Checks that keys are arbitrary bytes, and that no key affects another.
///
/// # Panics
/// If the subject rejects a key, or two keys share a limit.
pub fn check_keys(subject: &mut impl Subject) {
    let policy: &Policy = &"gcra:2/1m".parse().expect("a policy");
    let operation = Operation::Take(1);
    let now = Timestamp::saturating_from_micros(1_700_000_040_000_000);
    let long = vec![b'k'; 65_536];
    let keys: [&[u8]; 8] = [
        b"user:17:comment",
        b"user:17:like",
        b"user:1:7:like",
        b"203.0.113.7|GET /v1/items",
        b"2001:db8::1|eth0",
        b"\x00\xff\r\n\x80",
        b"\x00\xff\r\n",
        &long,
    ];
    for remaining in [1, 0] {
        for key in keys {
            let decision = subject.apply(Invocation { key, policy, now, operation });
            let decision = decision.unwrap_or_else(|error| panic!("{}: {error}", key.len()));
            assert_eq!(decision.remaining, remaining, "{}", key.escape_ascii());
        }
    }
}
