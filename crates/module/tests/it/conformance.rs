//! The conformance tests of all stores, over the wire, in virtual time.

use sluicegate_conformance::{
    Answer, HoldInvocation, HoldSubject, Invocation, Shape, Subject, ask_hold_over_the_wire,
    ask_over_the_wire, check_histories, check_hold_histories, check_hold_traces, check_keys,
    check_traces,
};
use sluicegate_testing::{Engine, Peer, integers};

use crate::{on_both, server::with_test_clock};

/// Histories of each shape.
const HISTORIES: u64 = 400;

/// The module as a store.
pub(crate) struct OverTheWire(pub(crate) Peer);

impl Subject for OverTheWire {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        ask_over_the_wire(question, |command| self.0.ask(command), integers)
    }
}

impl HoldSubject for OverTheWire {
    fn apply_hold(&mut self, question: HoldInvocation<'_>) -> Answer {
        ask_hold_over_the_wire(question, |command| self.0.ask(command), integers)
    }
}

fn random_histories_of_holds_return_what_core_returns(engine: Engine) {
    let server = with_test_clock(engine);
    let mut subject = OverTheWire(server.peer());
    check_hold_traces(&mut subject);
    check_hold_histories(&mut subject, 300_000, HISTORIES, Shape::default());
    assert_eq!(server.peer().told("sluicegate", "sluicegate_panics"), 0);
}

fn module_passes_conformance(engine: Engine) {
    let server = with_test_clock(engine);
    check_traces(&mut OverTheWire(server.peer()));
    check_keys(&mut OverTheWire(server.peer()));
}

fn random_histories_return_what_core_returns(engine: Engine) {
    let server = with_test_clock(engine);
    let steady = Shape { changes: false, reserve: false, ..Shape::default() };
    for (number, shape) in (0..).zip([Shape::default(), steady]) {
        let mut subject = OverTheWire(server.peer());
        check_histories(&mut subject, 100_000 * (number + 1), HISTORIES, shape);
    }
    let mut peer = server.peer();
    assert_eq!(peer.told("sluicegate", "sluicegate_panics"), 0);
    // All keys expire.
    let volatile = peer.text("INFO keyspace");
    let number = |name: &str| -> u64 {
        let (_, rest) = volatile.split_once(name).unwrap();
        rest.split([',', '\r']).next().unwrap().parse().unwrap()
    };
    assert_eq!(number("keys="), number("expires="), "{volatile}");
}

on_both! {
    module_passes_conformance
    random_histories_return_what_core_returns
    random_histories_of_holds_return_what_core_returns
}
