//! Holds at the bounds of their domains: ids, lifetimes, other keys, steps back of the clock, full ledgers.

use std::time::Duration;

use sluicegate_core::{Decision, Entry, Operation, Policy, Retry, Timestamp};

use crate::{Answer, Invocation, Subject, history::SeededRng};

/// The time at which each check begins, in microseconds since the Unix epoch.
const BEGIN: u64 = 1_700_000_040_000_000;
pub(crate) const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// Checks values at the bounds of their domains, settles of another key's id, and steps back of the clock.
///
/// # Panics
/// If an answer of the subject differs from `SEMANTICS.md`, or an error changes a key.
pub fn check_hold_bounds(subject: &mut impl Subject) {
    check_ids(subject);
    check_ttls(subject);
    check_ids_of_other_keys(subject);
    check_steps_back(subject);
    check_lost_units_return(subject);
    check_equal_expiries(subject);
}

/// Of holds that expire at one time, the one that was opened first is charged first, also after it was renewed.
fn check_equal_expiries(subject: &mut impl Subject) {
    let policy = &"sliding-log:8/1h".parse().expect("a policy");
    let ttl = |seconds| Some(Duration::from_secs(seconds));
    let hold = |id, cost| Operation::Hold { id, cost, ttl: ttl(2) };
    let renew = |id, seconds| Operation::Renew { id, ttl: ttl(seconds) };
    let changes: [&[Operation]; 4] = [
        &[],
        &[renew(b"first", 2)],
        &[renew(b"second", 5), renew(b"first", 5)],
        &[renew(b"first", 5), renew(b"second", 1), renew(b"second", 5)],
    ];
    for (number, changes) in (0..).zip(changes) {
        let key = &format!("bounds:equal:{number}").into_bytes();
        for &operation in [&[hold(b"first", 5), hold(b"second", 3)], changes].concat().iter() {
            let done = apply(subject, key, policy, 0, operation);
            assert!(done.is_ok_and(|it| it.allowed()), "{operation:?}");
        }
        // The charge makes the log forget the first hold, which it no longer needs. The refund takes the charge back.
        for operation in [Operation::Charge(6), Operation::Refund(6)] {
            let _ = apply(subject, key, policy, 6 * SECOND, operation).expect("a decision");
        }
        assert_eq!(in_use(subject, key, policy, 6 * SECOND), 3, "{changes:?}");
    }
}

/// Units of holds that are never settled are back when their lifetime is over, to the microsecond.
fn check_lost_units_return(subject: &mut impl Subject) {
    let policy = &"concurrency:5/3s".parse().expect("a policy");
    let (key, mut draw) = (b"bounds:lost", SeededRng::new(5));
    let (mut now, mut expiries) = (0, Vec::new());
    for number in 0_u32..200 {
        // The first five fit; each later one waits for the next expiry.
        if expiries.len() == 5 {
            let (first, _) = expiries.iter().enumerate().min_by_key(|it| it.1).expect("five");
            let expires: u64 = expiries.swap_remove(first);
            let next = Operation::Hold { id: b"next", cost: 1, ttl: None };
            let early = apply(subject, key, policy, expires - 1, next).expect("a decision");
            assert_eq!(early.retry(), Some(Retry::After(Duration::from_micros(1))), "{number}");
            now = expires;
        }
        let ttl = 10_000 + draw.below(2 * SECOND);
        let (id, span) = (number.to_be_bytes(), Some(Duration::from_micros(ttl)));
        let hold = Operation::Hold { id: &id, cost: 1, ttl: span };
        assert!(apply(subject, key, policy, now, hold).is_ok_and(|it| it.allowed()), "{number}");
        expiries.push(now + ttl);
    }
}

fn check_ids(subject: &mut impl Subject) {
    let (key, policy) = (b"bounds:ids", &"fixed-window:100/1h".parse().expect("a policy"));
    for length in [0, 1, 64, 65] {
        let id = vec![b'i'; length];
        let (ttl, used) = (Some(Duration::from_secs(60)), Some(0));
        for operation in [
            Operation::Hold { id: &id, cost: 7, ttl },
            Operation::Renew { id: &id, ttl },
            Operation::Settle { id: &id, used },
        ] {
            let found = apply(subject, key, policy, 0, operation);
            if let 1..=64 = length {
                assert!(found.is_ok_and(|it| it.allowed()), "{operation:?}");
                continue;
            }
            let error = found.expect_err("an invalid id");
            let expected = format!("invalid id of {length} bytes: expected 1 to 64 bytes");
            assert!(error.contains(&expected), "{error}");
            assert_eq!(in_use(subject, key, policy, 0), 0, "{operation:?}");
        }
    }
}

fn check_ttls(subject: &mut impl Subject) {
    for (number, (policy, max)) in
        [("fixed-window:100/1h", DAY), ("concurrency:100/5s,concurrency:100/2d", 5 * SECOND)]
            .into_iter()
            .enumerate()
    {
        let policy = policy.parse().expect("a policy");
        let key = format!("bounds:ttls:{number}").into_bytes();
        for (id, ttl) in (0_u8..).zip([0, 999, 1_000, max, max + 1, DAY + 1, 1 << 50]) {
            let id = &[id];
            let cancel = Operation::Settle { id, used: Some(0) };
            let ttl_us = ttl;
            let ttl = Some(Duration::from_micros(ttl));
            let hold = Operation::Hold { id, cost: 7, ttl };
            if (1_000..=max).contains(&ttl_us) {
                for operation in [hold, Operation::Renew { id, ttl }, cancel] {
                    let found = apply(subject, &key, &policy, 0, operation);
                    assert!(found.is_ok_and(|it| it.allowed()), "{operation:?}");
                }
                continue;
            }
            // Of a hold that is open, too.
            let open = Operation::Hold { id, cost: 7, ttl: Some(Duration::from_millis(2)) };
            for before in [None, Some(open)] {
                let held = before.map_or(0, |open| {
                    assert!(apply(subject, &key, &policy, 0, open).is_ok_and(|it| it.allowed()));
                    7
                });
                for operation in [hold, Operation::Renew { id, ttl }] {
                    let error = apply(subject, &key, &policy, 0, operation).expect_err("a ttl");
                    let expected = format!("expected 1000 to {max} microseconds");
                    assert!(error.contains(&expected), "{operation:?}: {error}");
                    assert_eq!(in_use(subject, &key, &policy, 0), held, "{operation:?}");
                }
            }
            assert!(apply(subject, &key, &policy, 0, cancel).is_ok_and(|it| it.allowed()));
        }
    }
}

fn check_ids_of_other_keys(subject: &mut impl Subject) {
    let policy = &"concurrency:5/1m,fixed-window:5/1h".parse().expect("a policy");
    let [one, other] = [b"bounds:one".as_slice(), b"bounds:other"];
    let hold = |id| Operation::Hold { id, cost: 2, ttl: None };
    assert!(apply(subject, one, policy, 0, hold(b"mine")).is_ok_and(|it| it.allowed()));
    assert!(apply(subject, other, policy, 0, hold(b"theirs")).is_ok_and(|it| it.allowed()));
    for operation in [
        Operation::Settle { id: b"mine", used: Some(3) },
        Operation::Renew { id: b"mine", ttl: None },
    ] {
        let found = apply(subject, other, policy, 0, operation).expect("a decision");
        assert_eq!((found.retry(), found.remaining), (Some(Retry::Never), 3), "{operation:?}");
    }
    for key in [one, other] {
        assert_eq!(in_use(subject, key, policy, 0), 2);
    }
    // Both expire when they would have.
    for (at, held) in [(60 * SECOND - 1, true), (60 * SECOND, false)] {
        for (key, id) in [(one, b"mine".as_slice()), (other, b"theirs")] {
            let renew = Operation::Renew { id, ttl: Some(Duration::from_millis(1)) };
            let found = apply(subject, key, policy, at, renew).expect("a decision");
            assert_eq!(found.allowed(), held, "{at}");
            if held {
                // As before.
                let renew = Operation::Renew { id, ttl: Some(Duration::from_millis(1)) };
                let found = apply(subject, key, policy, 60 * SECOND - 1_000, renew);
                assert!(found.is_ok_and(|it| it.allowed()));
            }
        }
    }
}

/// A step back by `J` admits nothing more, and keeps a hold open for `J` longer at most.
fn check_steps_back(subject: &mut impl Subject) {
    for (number, text) in
        ["concurrency:5/10s", "fixed-window:5/1h", "concurrency:5/10s,sliding-log:5/1h"]
            .into_iter()
            .enumerate()
    {
        let policy = &text.parse().expect("a policy");
        let key = &format!("bounds:back:{number}").into_bytes();
        let ttl = Some(Duration::from_secs(10));
        let hold = |id, cost| Operation::Hold { id, cost, ttl };
        let settle = |id| Operation::Settle { id, used: None };
        for id in [b"a", b"b"] {
            let held = apply(subject, key, policy, 100 * SECOND, hold(id, 2));
            assert!(held.is_ok_and(|it| it.allowed()), "{text}");
        }
        // By 50 s: they are open, no more fits, and they expire when they would have.
        let denied = apply(subject, key, policy, 50 * SECOND, hold(b"c", 2)).expect("a decision");
        assert!(!denied.allowed() && denied.remaining == 1, "{text}: {denied:?}");
        assert!(denied.retry() >= Some(Retry::After(Duration::from_secs(60))), "{text}");
        let opened = apply(subject, key, policy, 50 * SECOND, hold(b"a", 5)).expect("a decision");
        assert!(opened.allowed() && opened.remaining == 1, "{text}: it is open");
        // Under a rate, usage remains.
        let rate = text.contains('h');
        let settled = apply(subject, key, policy, 40 * SECOND, settle(b"a")).expect("a decision");
        assert!(settled.allowed(), "{text}");
        assert_eq!(settled.remaining, if rate { 1 } else { 3 }, "{text}");
        let again = apply(subject, key, policy, 100 * SECOND, settle(b"a")).expect("a decision");
        assert_eq!(again.retry(), Some(Retry::Never), "{text}");
        assert_eq!(in_use(subject, key, policy, 110 * SECOND - 1), if rate { 4 } else { 2 });
        assert_eq!(in_use(subject, key, policy, 110 * SECOND), if rate { 4 } else { 0 }, "{text}");
    }
}

/// The most holds of a key that scripts open.
pub const MAX_HOLDS_OF_SCRIPTS: usize = 4096;

/// The bytes of a key with `count` open holds of `cost` units each, opened at the time `now` under `policy`, for a day.
///
/// # Panics
/// If the policy allows no hold of a day.
#[must_use]
pub fn full_ledger(policy: &Policy, count: usize, cost: u32, now: Timestamp) -> Vec<u8> {
    spread_ledger(policy, count, cost, now, Duration::ZERO)
}

/// As [`full_ledger`], but each hold expires `spacing` after the one before, and the last one after a day.
///
/// # Panics
/// If the policy allows no hold of a day, or a hold expires before `now`.
#[must_use]
pub fn spread_ledger(
    policy: &Policy,
    count: usize,
    cost: u32,
    now: Timestamp,
    spacing: Duration,
) -> Vec<u8> {
    let (mut entry, ttl) = (None, Some(Duration::from_micros(DAY)));
    let hold = Operation::Hold { id: &id_of(0), cost, ttl };
    let first = sluicegate_core::apply(policy, &mut entry, now, hold).expect("a policy with holds");
    assert!(first.allowed());
    let mut bytes = entry.as_ref().map(Entry::encode).expect("a hold is open");
    let record = bytes.split_off(bytes.len() - 22);
    let at = bytes.len() - 10;
    let count_of_holds = count as u64;
    bytes[at..at + 4].copy_from_slice(&units(count_of_holds).to_le_bytes());
    bytes[at + 4..].copy_from_slice(&count_of_holds.to_le_bytes()[..6]);
    for number in 0..count {
        let before_last = spacing * units((count - 1 - number) as u64);
        let expires = now + (Duration::from_micros(DAY) - before_last);
        bytes.extend_from_slice(&record[..5]);
        bytes.extend_from_slice(&expires.as_micros().to_le_bytes()[..7]);
        bytes.extend_from_slice(&(number as u64).to_le_bytes()[..6]);
        bytes.extend_from_slice(&id_of(number));
    }
    bytes
}

/// The id of a hold of [`full_ledger`].
fn id_of(number: usize) -> [u8; 4] {
    units(number as u64).to_be_bytes()
}

/// Checks that a key that stores [`full_ledger`] of `max` holds under `policy` opens no further hold, and changes nothing then. The
/// policy has more units free.
///
/// # Panics
/// If a further hold is opened, or the key changes.
pub fn check_full_ledger(
    subject: &mut impl Subject,
    key: &[u8],
    policy: &Policy,
    now: Timestamp,
    max: usize,
) {
    let now = now.as_micros() - BEGIN;
    let ttl = Some(Duration::from_micros(DAY));
    let hold = |id, cost| Operation::Hold { id, cost, ttl };
    let all = units(max as u64);
    let refused = |subject: &mut _| {
        let error = apply(subject, key, policy, now, hold(b"more", 1)).expect_err("it is full");
        let expected = format!("too many open holds of the key: expected at most {max}");
        assert!(error.contains(&expected), "{error}");
        assert_eq!(in_use(subject, key, policy, now), all);
    };
    refused(subject);
    // An open hold is not one more, and one that does not fit is denied.
    let (newest, middle) = (id_of(max - 1), id_of(max / 2));
    let open = apply(subject, key, policy, now, hold(&newest, 1));
    assert!(open.is_ok_and(|it| it.allowed()));
    let denied = apply(subject, key, policy, now, hold(b"more", u32::MAX));
    assert!(denied.is_ok_and(|it| !it.allowed()));
    let cancel = Operation::Settle { id: &middle, used: Some(0) };
    assert!(apply(subject, key, policy, now, cancel).is_ok_and(|it| it.allowed()));
    assert!(apply(subject, key, policy, now, hold(b"last", 1)).is_ok_and(|it| it.allowed()));
    refused(subject);
}

pub(crate) fn units(count: u64) -> u32 {
    u32::try_from(count).expect("few units")
}

/// Applies an operation at `at` microseconds after the begin.
pub(crate) fn apply(
    subject: &mut impl Subject,
    key: &[u8],
    policy: &Policy,
    at: u64,
    operation: Operation<'_>,
) -> Answer {
    let now = Timestamp::saturating_from_micros(BEGIN + at);
    subject.apply(Invocation { key, policy, now, operation })
}

/// Units that are held or charged.
pub(crate) fn in_use(subject: &mut impl Subject, key: &[u8], policy: &Policy, at: u64) -> u32 {
    let peek = apply(subject, key, policy, at, Operation::Peek(0));
    let Decision { limit, remaining, .. } = peek.expect("a peek");
    limit - remaining
}
