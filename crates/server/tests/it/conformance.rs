//! The server against the conformance kit, over the wire.

use std::time::Duration;

use sluicegate_conformance::{Shape, Subject, check_histories, check_keys, check_traces};
use sluicegate_core::{Decision, Operation, Outcome, Policy, Retry, Timestamp};
use sluicegate_resp::Value;

use crate::harness::{Peer, Running, integers};

pub(crate) struct OverTheWire(pub(crate) Peer);

impl Subject for OverTheWire {
    fn apply(
        &mut self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, String> {
        let at = now.as_micros().to_string();
        let mut max_wait = String::new();
        let (name, cost) = match operation {
            Operation::Take(cost) => ("SG.TAKE", cost),
            Operation::Peek(cost) => ("SG.PEEK", cost),
            Operation::Charge(cost) => ("SG.CHARGE", cost),
            Operation::Refund(cost) => ("SG.REFUND", cost),
            Operation::Reserve { cost, max_wait: span } => {
                // No debt is longer: the longest wait that can be said is as good as any longer.
                max_wait = span.as_micros().min(1 << 50).to_string();
                ("SG.RESERVE", cost)
            }
            Operation::Reset => {
                self.0.say_bytes(&[b"SG.RESET", key, b"AT", at.as_bytes()]);
                ("SG.PEEK", 0)
            }
        };
        let (policy, cost) = (policy.to_string(), cost.to_string());
        let mut arguments: Vec<&[u8]> = vec![
            name.as_bytes(),
            key,
            policy.as_bytes(),
            b"AT",
            at.as_bytes(),
            b"COST",
            cost.as_bytes(),
        ];
        if !max_wait.is_empty() {
            arguments.extend([b"MAXWAIT".as_slice(), max_wait.as_bytes()]);
        }
        match self.0.say_bytes(&arguments) {
            Value::Error(text) => Err(String::from_utf8(text).unwrap()),
            reply => Ok(decision(&integers(&reply))),
        }
    }
}

/// The decision that seven integers tell.
pub(crate) fn decision(told: &[i64]) -> Decision {
    let &[allowed, limit, remaining, retry, reset, delay, binding] = told else {
        panic!("not seven: {told:?}");
    };
    let span = |micros: i64| Duration::from_micros(micros.try_into().unwrap());
    let outcome = match (allowed, retry) {
        (1, 0) => Outcome::Allow { delay: span(delay) },
        (0, -1) => Outcome::Deny { retry: Retry::Never },
        (0, retry) => Outcome::Deny { retry: Retry::After(span(retry)) },
        _ => panic!("neither allowed nor denied: {told:?}"),
    };
    Decision {
        outcome,
        limit: limit.try_into().unwrap(),
        remaining: remaining.try_into().unwrap(),
        reset_after: span(reset),
        binding: binding.try_into().unwrap(),
    }
}

#[test]
fn it_passes_the_kit() {
    let server = Running::with_test_clock();
    check_traces(&mut OverTheWire(server.connect()));
    let server = Running::with_test_clock();
    check_keys(&mut OverTheWire(server.connect()));
}

#[test]
fn it_answers_random_histories_as_the_core_does() {
    let server = Running::with_test_clock();
    check_histories(&mut OverTheWire(server.connect()), 3_000, 100, Shape::default());
}
