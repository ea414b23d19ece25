//! Histories of holds that the random histories of the conformance kit found first.

use std::time::Duration;

use sluicegate_core::{
    Entry, HoldError, MAX_HOLDS, Operation, OperationError, Policy, Retry, Timestamp, apply,
};

fn policy(text: &str) -> Policy {
    text.parse().expect("a policy")
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).expect("a time")
}

fn hold(id: &[u8], cost: u32, ttl: u64) -> Operation<'_> {
    Operation::Hold { id, cost, ttl: Some(Duration::from_micros(ttl)) }
}

fn after(micros: u64) -> Option<Retry> {
    Some(Retry::After(Duration::from_micros(micros)))
}

#[test]
fn peek_of_a_migrated_log_looks_ahead_under_the_new_policy() {
    let (long, short) = (policy("sliding-log:3/1s"), policy("sliding-log:2/1ms,gcra:9/1s"));
    let mut entry = None;
    let now = at(103_000_001);
    assert!(apply(&long, &mut entry, now, Operation::Take(1)).unwrap().allowed());
    assert!(apply(&short, &mut entry, now, hold(b"a", 1, 95_402)).unwrap().allowed());
    // Under the short log the event expires after a millisecond; under the long one, after a second.
    let peek = apply(&long, &mut entry, now, Operation::Peek(2)).unwrap();
    assert_eq!(peek.retry(), after(1_000_000));
}

#[test]
fn reset_after_of_a_window_that_begins_later_looks_ahead() {
    let window = policy("fixed-window:7/1s");
    let mut entry = None;
    let start = at(10_000_000);
    assert!(apply(&window, &mut entry, start, Operation::Take(1)).unwrap().allowed());
    assert!(apply(&window, &mut entry, start, hold(b"a", 2, 25_000)).unwrap().allowed());
    // The clock steps back by half a second: the hold expires in the same window.
    let peek = apply(&window, &mut entry, at(9_500_000), Operation::Peek(1)).unwrap();
    assert_eq!(peek.reset_after, Duration::from_millis(1500));
    // By more than a window: it counts as opened now, and the hold opens one when it expires.
    let peek = apply(&window, &mut entry, at(8_500_000), Operation::Peek(1)).unwrap();
    assert_eq!(peek.reset_after, Duration::from_millis(2525));
}

#[test]
fn hold_of_a_full_ledger_is_an_error_and_changes_nothing() {
    let (many, now) = (policy("token-bucket:1000000/1s"), at(0));
    let mut entry = None;
    assert!(apply(&many, &mut entry, now, hold(b"first!!!", 1, 1_000_000)).unwrap().allowed());
    // As many records as there can be, with other ids.
    let mut bytes = entry.expect("a hold is open").encode();
    let count_at = bytes.len() - 10 - 26;
    let record = bytes[count_at + 10..].to_vec();
    bytes[count_at..count_at + 4].copy_from_slice(&65_536_u32.to_le_bytes());
    bytes[count_at + 4..count_at + 8].copy_from_slice(&65_536_u32.to_le_bytes());
    for id in 1..MAX_HOLDS {
        bytes.extend_from_slice(&record[..12]);
        bytes.extend_from_slice(&id.to_le_bytes()[..6]);
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    let mut entry = Some(Entry::decode(&bytes).expect("a full ledger"));
    let before = entry.as_ref().map(Entry::encode);
    let more = apply(&many, &mut entry, now, hold(b"more", 1, 1_000_000));
    assert_eq!(more, Err(OperationError::Hold(HoldError::Full(65_536))));
    assert_eq!(entry.as_ref().map(Entry::encode), before);
    // An open hold is not one more, and a denied one is a denial.
    let open = apply(&many, &mut entry, now, hold(b"first!!!", 1, 1_000_000));
    assert!(open.unwrap().allowed());
    let denied = apply(&many, &mut entry, now, hold(b"more", 1_000_000, 1_000_000));
    assert!(!denied.unwrap().allowed());
    assert_eq!(Entry::decode(&before.unwrap()).unwrap(), entry.unwrap());
}

#[test]
fn decode_damaged_ledger_is_an_error() {
    let mut entry = None;
    let concurrency = policy("concurrency:9/1m");
    let two = [b"a".as_slice(), b"bc"].map(|id| hold(id, 1, 1_000_000));
    for hold in two {
        assert!(apply(&concurrency, &mut entry, at(5), hold).unwrap().allowed());
    }
    let bytes = entry.expect("holds are open").encode();
    assert_eq!(bytes.len(), 13 + 10 + 19 + 20);
    for cut in 14..bytes.len() {
        assert!(Entry::decode(&bytes[..cut]).is_err(), "{cut}");
    }
    for (offset, value) in [
        (13, 0),    // no holds
        (13, 3),    // more than there are
        (23, 0x80), // an empty id
        (23, 65),   // a long one
        (24, 0),    // no units
        (34, 0xff), // a time beyond the last one
        (17, 1),    // the number of the next one is that of an open one
        (35, 1),    // the first and the second have one number
        (35, 2),    // the number of one that is opened later
    ] {
        let mut damaged = bytes.clone();
        damaged[offset] = value;
        assert!(Entry::decode(&damaged).is_err(), "{offset}: {value}");
    }
    assert!(Entry::decode(&[&bytes[..], b"\0"].concat()).is_err());
}
