//! The byte form of the state of a key.

use proptest::prelude::*;
use sluicegate_conformance::CoreSubject;
use sluicegate_core::{Entry, Operation, Policy, StateError, Timestamp, apply};

use super::{CHANGING, KEY, apply_step, histories};

/// The entry after one take of `cost`.
fn entry(policy: &str, cost: u32) -> Entry {
    let policy: Policy = policy.parse().unwrap();
    let mut entry = None;
    let now = Timestamp::from_micros(1_700_000_040_000_000).unwrap();
    let _ = apply(&policy, &mut entry, now, Operation::Charge(cost)).unwrap();
    entry.unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn encode_matches_the_specification() {
    for (policy, cost, bytes) in [
        // version, limits, machine | N, P (6 bytes), B | whole µs (7 bytes), ticks (as few as n - 1 needs)
        ("gcra:30/60s:burst=16", 1, "0201011e00000000879303000010000000801e9f1a240a06"),
        ("gcra:7/60s:borrow", 1, "02011107000000008793030000070000002464031b240a0604"),
        (
            "token-bucket:10/1s:burst=20:refill=interval",
            3,
            "0201050a00000040420f00000014000000009a801a240a0603000000000000000000",
        ),
        (
            "fixed-window:100/1m:align=clock:count=all",
            5,
            "02013664000000008793030000009a801a240a0605000000000000",
        ),
        (
            "fixed-window:10000/month:tz=Asia/Shanghai",
            2,
            "02010710270000020d417369612f5368616e676861690020323f05090600606fbe600b0602000000000000",
        ),
        (
            "sliding-log:30/1m:keep=1h",
            1,
            "0201281e00000000879303000000a493d600000807000001000000009a801a240a06010000",
        ),
        (
            "sliding-log:30/1m:count=all",
            300,
            "0201181e00000000879303000001000000009a801a240a060102002c01",
        ),
        (
            "sliding-counter:10/1s",
            9,
            "0201090a00000040420f000000009a801a240a060000000000000009000000000000",
        ),
        (
            "gcra:1/1s,fixed-window:5/1h",
            1,
            "0202010100000040420f0000000100000040dc8f1a240a06060500000000a493d60000009a801a240a0601000000000000",
        ),
    ] {
        assert_eq!(hex(&entry(policy, cost).encode()), bytes, "{policy}");
    }
}

/// The examples of the specification: each line of a block begins with its bytes.
#[test]
fn specification_examples_decode_as_described() {
    let document = include_str!("../../../../docs/state-format.md");
    let examples = document.split("```text\n").skip(1).filter_map(|rest| {
        let block = rest.split("```").next().unwrap();
        let bytes = block.lines().flat_map(|line| {
            let words = line.split("   ").next().unwrap().split_whitespace();
            words.map(|word| u8::from_str_radix(word, 16).ok()).collect::<Vec<_>>()
        });
        bytes.collect::<Option<Vec<u8>>>()
    });
    let decoded: Vec<_> = examples.map(|bytes| Entry::decode(&bytes).unwrap()).collect();
    let policies: Vec<_> = decoded.iter().map(|entry| entry.policy().to_string()).collect();
    assert_eq!(
        policies,
        ["gcra:30/1m:burst=16", "sliding-log:30/1m,fixed-window:1000/day:tz=Europe/Berlin"]
    );
    let now = Timestamp::from_micros(1_700_000_000_250_000).unwrap();
    let used: Vec<_> = decoded[1].usage(now).map(|(_, usage)| usage.used).collect();
    assert_eq!(used, [4, 4]);
}

#[test]
fn encode_one_gcra_limit_takes_24_bytes_and_its_ticks() {
    for (policy, bytes) in [
        ("gcra:30/60s:burst=16", 24),
        ("token-bucket:7/1d", 25),
        ("gcra:257/1m", 26),
        ("gcra:65521/1m", 26),
        ("gcra:65537/1m", 27),
        ("leaky-queue:4294967295/366d", 28),
    ] {
        assert_eq!(entry(policy, 1).encode().len(), bytes, "{policy}");
    }
}

#[test]
fn decode_later_version_is_an_error_that_names_it() {
    let mut bytes = entry("gcra:30/60s", 1).encode();
    bytes[0] = 5;
    assert_eq!(Entry::decode(&bytes), Err(StateError::Version(5)));
    assert_eq!(
        StateError::Version(5).to_string(),
        "state of version 5, and this version of Sluicegate reads up to 4; upgrade Sluicegate"
    );
    bytes[0] = 3;
    let error = "its version 3 was never released";
    assert_eq!(Entry::decode(&bytes), Err(StateError::Damaged(error)));
}

#[test]
fn decode_value_of_another_program_is_foreign() {
    for value in [
        &b""[..],
        b"bar",
        b"{\"a\":1}",
        b"\x00",
        b"\x01\x01",
        b"\x08\x96\x01",
        b"\x1f\x8b\x08",
        b"\xff",
    ] {
        assert_eq!(Entry::decode(value), Err(StateError::Foreign), "{value:02x?}");
    }
}

#[test]
fn decode_string_of_another_limiter_is_an_error() {
    for text in ["", "0", "1700000040000000000", "[]", "\u{1}", "\u{1}\u{9}"] {
        assert!(Entry::decode(text.as_bytes()).is_err(), "{text:?}");
    }
}

proptest! {
    #![proptest_config(super::cases(256))]

    #[test]
    fn encode_then_decode_returns_the_same_value(history in histories(CHANGING)) {
        let mut core = CoreSubject::default();
        for step in &history.0 {
            let _ = apply_step(&mut core, step);
            if let Some(entry) = core.entry(KEY) {
                let bytes = entry.encode();
                assert_eq!(entry.encoded_len(), bytes.len(), "{entry:?}");
            assert_eq!(entry.encoded_len(), bytes.len(), "{entry:?}");
                prop_assert_eq!(&Entry::decode(&bytes).unwrap(), entry);
            }
        }
        if let Some(entry) = core.entry(KEY) {
            let bytes = entry.encode();
            assert_eq!(entry.encoded_len(), bytes.len(), "{entry:?}");
            for cut in 0..bytes.len() {
                prop_assert!(Entry::decode(&bytes[..cut]).is_err());
            }
        }
    }
}
