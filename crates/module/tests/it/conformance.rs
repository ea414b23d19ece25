//! The kit that every store passes, over the wire, in virtual time.

use std::time::Duration;

use sluicegate_conformance::{Shape, Subject, check_histories, check_keys, check_traces};
use sluicegate_core::{Decision, Operation, Outcome, Policy, Retry, Timestamp};

use crate::{
    on_both,
    server::{Engine, Peer, Server, integers},
};

/// So many histories of each shape.
const HISTORIES: u64 = 400;

/// The module as a store.
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
                max_wait = span.as_micros().min(1 << 50).to_string();
                ("SG.RESERVE", cost)
            }
            Operation::Reset => {
                self.0.ask(&[b"SG.RESET", key, b"AT", at.as_bytes()])?;
                ("SG.PEEK", 0)
            }
        };
        let (policy, cost) = (policy.to_string(), cost.to_string());
        let mut arguments: Vec<&[u8]> = vec![name.as_bytes(), key, policy.as_bytes()];
        arguments.extend([b"AT".as_slice(), at.as_bytes(), b"COST", cost.as_bytes()]);
        if !max_wait.is_empty() {
            arguments.extend([b"MAXWAIT".as_slice(), max_wait.as_bytes()]);
        }
        self.0.ask(&arguments).map(|reply| decision(&integers(&reply)))
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

fn passes_the_kit(engine: Engine) {
    let server = Server::with_test_clock(engine);
    check_traces(&mut OverTheWire(server.connect()));
    check_keys(&mut OverTheWire(server.connect()));
}

fn answers_random_histories_as_the_core_does(engine: Engine) {
    let server = Server::with_test_clock(engine);
    let steady = Shape { changes: false, reserve: false, ..Shape::default() };
    for (number, shape) in (0..).zip([Shape::default(), steady]) {
        let mut subject = OverTheWire(server.connect());
        check_histories(&mut subject, 100_000 * (number + 1), HISTORIES, shape);
    }
    let mut peer = server.connect();
    assert_eq!(peer.told("sluicegate", "sluicegate_panics"), 0);
    // All that is left ends by itself.
    let volatile = peer.text("INFO keyspace");
    let number = |name: &str| -> u64 {
        let (_, rest) = volatile.split_once(name).unwrap();
        rest.split([',', '\r']).next().unwrap().parse().unwrap()
    };
    assert_eq!(number("keys="), number("expires="), "{volatile}");
}

on_both! { passes_the_kit answers_random_histories_as_the_core_does }
