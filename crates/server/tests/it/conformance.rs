//! The server against the conformance kit, over the wire.

use sluicegate_conformance::{
    Answer, Invocation, MultiKeySubject, Shape, Subject, apply_all_over_the_wire,
    apply_over_the_wire, check_histories, check_hold_bounds, check_hold_histories,
    check_hold_streams, check_hold_traces, check_keys, check_multi_key, check_multi_key_holds,
    check_repeated_holds, check_traces,
};
use sluicegate_resp::Value;

use crate::harness::{RawClient, Running, integers};

pub(crate) struct OverTheWire(pub(crate) RawClient);

impl Subject for OverTheWire {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let call = |command: &[&[u8]]| match self.0.call_bytes(command) {
            Value::Error(text) => Err(String::from_utf8(text).unwrap()),
            reply => Ok(reply),
        };
        apply_over_the_wire(question, call, integers)
    }
}

impl MultiKeySubject for OverTheWire {
    fn apply_all(
        &mut self,
        invocations: &[Invocation<'_>],
    ) -> Result<sluicegate_core::Answer, String> {
        let call = |command: &[&[u8]]| match self.0.call_bytes(command) {
            Value::Error(text) => Err(without_code(&String::from_utf8(text).unwrap())),
            reply => Ok(reply),
        };
        apply_all_over_the_wire(invocations, call, |reply| {
            let Value::Array(parts) = reply else { panic!("{reply:?}") };
            parts.iter().map(integers).collect()
        })
    }
}

/// The text of an error, as the core words it.
fn without_code(error: &str) -> String {
    error.split_once(' ').map_or(error, |(_, text)| text).to_owned()
}

#[test]
fn resp_several_keys_agree_with_the_core() {
    let server = Running::with_test_clock();
    let subject = &mut OverTheWire(server.connect());
    check_multi_key(subject, 8_000, 100, Shape::default());
    check_multi_key_holds(subject, 9_000, 150, Shape::default());
}

#[test]
fn resp_random_histories_of_holds_agree_with_the_core() {
    let server = Running::with_test_clock();
    let subject = &mut OverTheWire(server.connect());
    check_hold_traces(subject);
    check_hold_histories(subject, 5_000, 150, Shape::default());
}

#[test]
fn resp_holds_that_arrive_several_times_charge_once() {
    let server = Running::with_test_clock();
    let subject = &mut OverTheWire(server.connect());
    let (operations, copies) = check_repeated_holds(subject, 0..100);
    println!(
        "figure: server: {operations} operations on holds that arrive {copies} times: equal sums"
    );
    check_hold_bounds(subject);
}

#[test]
fn resp_streams_with_kills_and_duplicates_charge_what_was_used_and_lost() {
    let streams = crate::harness::size("SLUICEGATE_STREAMS", 3_000);
    let server = Running::with_test_clock();
    let counts = check_hold_streams(&mut OverTheWire(server.connect()), streams);
    println!(
        "figure: server: {streams} streams charge what was used and lost, to the unit: {counts:?}"
    );
}

#[test]
fn resp_all_traces_agree_with_the_core() {
    let server = Running::with_test_clock();
    check_traces(&mut OverTheWire(server.connect()));
    let server = Running::with_test_clock();
    check_keys(&mut OverTheWire(server.connect()));
}

#[test]
fn resp_random_histories_agree_with_the_core() {
    let server = Running::with_test_clock();
    check_histories(&mut OverTheWire(server.connect()), 3_000, 100, Shape::default());
}
