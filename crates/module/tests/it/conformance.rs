//! The conformance tests of all stores, over the wire, in virtual time.

use sluicegate_conformance::{
    Answer, Invocation, MultiKeySubject, Shape, Subject, apply_all_over_the_wire,
    apply_over_the_wire, check_full_ledger, check_histories, check_hold_bounds,
    check_hold_histories, check_hold_streams, check_hold_traces, check_keys, check_multi_key,
    check_multi_key_holds, check_repeated_holds, check_traces, full_ledger,
};
use sluicegate_core::Timestamp;
use sluicegate_testing::{Engine, RawClient, integers, size};

use crate::{on_both, server::with_test_clock};

/// Histories of each shape.
const HISTORIES: u64 = 400;

/// The module as a store.
pub(crate) struct OverTheWire(pub(crate) RawClient);

impl Subject for OverTheWire {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        apply_over_the_wire(question, |command| self.0.call_bytes(command), integers)
    }
}

impl MultiKeySubject for OverTheWire {
    fn apply_all(
        &mut self,
        invocations: &[Invocation<'_>],
    ) -> Result<sluicegate_core::Answer, String> {
        let call = |command: &[&[u8]]| {
            let without_code = |error: String| match error.split_once(' ') {
                Some((_, text)) => text.to_owned(),
                None => error,
            };
            self.0.call_bytes(command).map_err(without_code)
        };
        apply_all_over_the_wire(invocations, call, |reply| {
            let redis::Value::Array(parts) = reply else { panic!("{reply:?}") };
            parts.iter().map(integers).collect()
        })
    }
}

fn multi_key_take_returns_what_core_returns(engine: Engine) {
    let server = with_test_clock(engine);
    let mut subject = OverTheWire(server.raw_client());
    check_multi_key(&mut subject, 400_000, 150, Shape::default());
    check_multi_key_holds(&mut subject, 500_000, 250, Shape::default());
}

fn random_histories_of_holds_return_what_core_returns(engine: Engine) {
    let server = with_test_clock(engine);
    let mut subject = OverTheWire(server.raw_client());
    check_hold_traces(&mut subject);
    check_hold_histories(&mut subject, 300_000, HISTORIES, Shape::default());
    assert_eq!(server.raw_client().info_value("sluicegate", "sluicegate_panics"), 0);
}

fn holds_that_arrive_several_times_charge_once(engine: Engine) {
    let server = with_test_clock(engine);
    let mut subject = OverTheWire(server.raw_client());
    let (operations, copies) = check_repeated_holds(&mut subject, 0..100);
    println!(
        "figure: module, {engine:?}: {operations} operations on holds that arrive {copies} times: equal sums"
    );
    check_hold_bounds(&mut subject);
}

fn streams_with_kills_and_duplicates_charge_what_was_used_and_lost(engine: Engine) {
    let streams = size("SLUICEGATE_STREAMS", 3_000);
    let server = with_test_clock(engine);
    let mut subject = OverTheWire(server.raw_client());
    let counts = check_hold_streams(&mut subject, usize::try_from(streams).unwrap());
    println!(
        "figure: module, {engine:?}: {streams} streams charge what was used and lost, to the unit: {counts:?}"
    );
}

fn full_ledger_opens_no_hold_more(engine: Engine) {
    let server = with_test_clock(engine);
    let mut subject = OverTheWire(server.raw_client());
    let policy = &"token-bucket:1000000/1h".parse().unwrap();
    let now = Timestamp::from_micros(1_700_000_040_000_000).unwrap();
    subject.0.call_bytes(&[b"SET", b"full", &full_ledger(policy, 65_536, 1, now)]).unwrap();
    check_full_ledger(&mut subject, b"full", policy, (now, 65_536));
}

fn module_passes_conformance(engine: Engine) {
    let server = with_test_clock(engine);
    check_traces(&mut OverTheWire(server.raw_client()));
    check_keys(&mut OverTheWire(server.raw_client()));
}

fn random_histories_return_what_core_returns(engine: Engine) {
    let server = with_test_clock(engine);
    let steady = Shape { changes: false, reserve: false, ..Shape::default() };
    for (number, shape) in (0..).zip([Shape::default(), steady]) {
        let mut subject = OverTheWire(server.raw_client());
        check_histories(&mut subject, 100_000 * (number + 1), HISTORIES, shape);
    }
    let mut peer = server.raw_client();
    assert_eq!(peer.info_value("sluicegate", "sluicegate_panics"), 0);
    // All keys expire.
    let volatile = peer.text("INFO keyspace");
    let number = |name: &str| -> u64 {
        let (_, rest) = volatile.split_once(name).unwrap();
        rest.split([',', '\r']).next().unwrap().parse().unwrap()
    };
    assert_eq!(number("keys="), number("expires="), "{volatile}");
}

on_both! {
    multi_key_take_returns_what_core_returns
    module_passes_conformance
    random_histories_return_what_core_returns
    random_histories_of_holds_return_what_core_returns
    holds_that_arrive_several_times_charge_once
    full_ledger_opens_no_hold_more
    streams_with_kills_and_duplicates_charge_what_was_used_and_lost
}
