//! Leases by example.

use sluicegate_core::{Decision, Outcome, PreparedPolicy};

use super::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_millis(millis)
}

fn planned(text: &str, units: u32) -> PlannedPolicy {
    let policy: PreparedPolicy = text.parse().unwrap();
    PlannedPolicy::new(&policy.lease(units).unwrap())
}

fn leased(units: u32) -> PlannedPolicy {
    planned("gcra:1000/1s", units)
}

fn answer(remaining: u32, reset_after: u64) -> Decision {
    Decision {
        outcome: Outcome::Allow { delay: Duration::ZERO },
        limit: 1000,
        remaining,
        reset_after: Duration::from_millis(reset_after),
        binding: 0,
    }
}

/// An answer, or the size of the next chunk.
fn take(leases: &Leases, policy: &PlannedPolicy, cost: u32, now: Timestamp) -> Result<Answer, u32> {
    match leases.take(b"k", policy, cost, now, &mut None) {
        LeaseOutcome::Taken(answer) => Ok(answer),
        LeaseOutcome::Refill(_, chunk, _) => Err(chunk),
        LeaseOutcome::Full => Err(0),
    }
}

fn chunk_of(units: u32, cost: u32, decision: Decision) -> Chunk {
    Chunk { units, cost, decision, window_end: Timestamp::MAX }
}

/// Begins to request a chunk, for a request of `cost` units.
fn send(leases: &Leases, policy: &PlannedPolicy, cost: u32, now: Timestamp) -> RefillToken {
    match leases.take(b"k", policy, cost, now, &mut None) {
        LeaseOutcome::Refill(.., token) => token,
        outcome => panic!("{outcome:?}"),
    }
}

/// Takes a chunk, of which `cost` units are used.
fn refill(
    (leases, policy): (&Leases, &PlannedPolicy),
    (chunk, cost): (u32, u32),
    now: Timestamp,
    reset_after: u64,
) {
    let token = send(leases, policy, cost, now);
    let _ =
        leases.granted(b"k", policy, chunk_of(chunk, cost, answer(400, reset_after)), (token, now));
}

/// The unspent units, and those still owed.
fn unspent(leases: &Leases, now: Timestamp) -> Vec<(u32, u32)> {
    let all = leases.expired(None);
    all.iter().map(|it| (it.unspent.units, it.unspent.owed(now, Duration::ZERO))).collect()
}

#[test]
fn take_busy_key_doubles_its_chunks() {
    let leases = Leases::new(10, Duration::from_secs(1), RandomState::new());
    let policy = leased(8);
    let mut chunks = Vec::new();
    let mut taken = 0;
    for _ in 0..40 {
        match leases.take(b"k", &policy, 1, at(10), &mut None) {
            LeaseOutcome::Refill(_, chunk, token) => {
                chunks.push(chunk);
                let decision = answer(900, 100);
                let _ =
                    leases.granted(b"k", &policy, chunk_of(chunk, 1, decision), (token, at(10)));
            }
            LeaseOutcome::Taken(answer) => {
                assert!(answer.allowed() && answer.source == Source::Lease);
                taken += 1;
            }
            LeaseOutcome::Full => panic!("one key"),
        }
    }
    assert_eq!(chunks, [1, 2, 4, 8, 8, 8, 8, 8]);
    assert_eq!(taken, 32);
}

#[test]
fn take_expired_lease_returns_the_units_still_owed() {
    let leases = Leases::new(10, Duration::from_millis(60), RandomState::new());
    let policy = leased(100);
    let token = send(&leases, &policy, 1, at(0));
    let _ = leases.granted(b"k", &policy, chunk_of(100, 1, answer(0, 1000)), (token, at(5)));
    assert_eq!(take(&leases, &policy, 9, at(5)).unwrap().remaining, 90);
    assert!(leases.expired(Some(at(59))).is_empty());
    let mut expired = None;
    leases.take(b"k", &policy, 1, at(60), &mut expired);
    let expired = expired.unwrap();
    // 40 ms of debt remain, of which 15 may pass until the refund arrives.
    assert_eq!(
        (expired.unspent.units, expired.unspent.owed(at(60), Duration::from_millis(15))),
        (90, 25)
    );
    assert!(leases.expired(None).is_empty());
}

/// `reset_after` reaches to the end of the hold and of the debt that it leaves; or others have refunded.
#[test]
fn owed_beside_holds_and_refunds_of_others_is_at_most_the_own_debt() {
    let policy = leased(100);
    for (reset_after, end, owed) in [
        (600, 40, 49),
        (600, 80, 20),
        (600, 100, 0),
        (60_000, 80, 20),
        (60_000, 100, 0),
        (70, 40, 30),
    ] {
        let leases = Leases::new(10, Duration::from_millis(end), RandomState::new());
        refill((&leases, &policy), (50, 50), at(0), reset_after);
        refill((&leases, &policy), (50, 1), at(0), reset_after);
        let expired = leases.expired(Some(at(end)));
        let found: Vec<_> = expired
            .iter()
            .map(|it| (it.unspent.units, it.unspent.owed(at(end), Duration::ZERO)))
            .collect();
        assert_eq!(found, [(49, owed)], "{reset_after} ms, after {end} ms");
    }
}

#[test]
fn owed_after_a_return_or_a_reset_is_that_of_later_chunks() {
    let policy = leased(100);
    for is_reset in [false, true] {
        let leases = Leases::new(10, Duration::from_millis(60), RandomState::new());
        refill((&leases, &policy), (100, 1), at(0), 1000);
        if is_reset {
            assert_eq!(leases.forget(b"k"), 99);
        }
        // Without a reset, this returns 99 units.
        refill((&leases, &policy), (10, 1), at(60), 1000);
        let [expired] = &*leases.expired(None) else { panic!("one lease") };
        assert_eq!(
            (expired.unspent.units, expired.unspent.owed(at(65), Duration::ZERO)),
            (9, 5),
            "{is_reset}"
        );
    }
}

/// The request uses the old units first: they are less than its cost.
#[test]
fn granted_beside_unspent_units_lasts_for_a_lifetime() {
    let leases = Leases::new(10, Duration::from_millis(60), RandomState::new());
    let policy = leased(100);
    refill((&leases, &policy), (20, 1), at(0), 1000);
    refill((&leases, &policy), (50, 20), at(50), 1000);
    assert_eq!(take(&leases, &policy, 1, at(109)).unwrap().source, Source::Lease);
    assert!(leases.expired(Some(at(109))).is_empty());
    let expired = leases.expired(Some(at(110)));
    // 19 + 50 units less 21. The chunk is owed until 100 ms.
    assert_eq!(
        (expired[0].unspent.units, expired[0].unspent.owed(at(60), Duration::ZERO)),
        (48, 40)
    );
}

#[test]
fn refunded_units_are_not_returned_again() {
    let policy = leased(100);
    let leases = Leases::new(10, Duration::from_millis(60), RandomState::new());
    refill((&leases, &policy), (100, 1), at(0), 1000);
    leases.refunded(b"k", 10);
    leases.refunded(b"other", 10);
    // The refund leaves 90 units of debt, of which 50 have drained. The time is rounded up to the next microsecond.
    assert_eq!(unspent(&leases, at(50)), [(99, 39)]);
}

#[test]
fn refunded_while_a_chunk_is_requested_lowers_the_debt_of_the_chunk() {
    let policy = leased(100);
    let leases = Leases::new(10, Duration::from_millis(60), RandomState::new());
    let token = send(&leases, &policy, 1, at(0));
    leases.refunded(b"k", 30);
    let _ = leases.granted(b"k", &policy, chunk_of(100, 1, answer(400, 1000)), (token, at(0)));
    assert_eq!(unspent(&leases, at(10)), [(99, 59)]);
}

#[test]
fn forget_while_a_chunk_is_requested_loses_the_chunk() {
    let policy = leased(100);
    let other = planned("gcra:2000/1s", 100);
    for changes in [false, true] {
        let leases = Leases::new(10, Duration::from_millis(60), RandomState::new());
        let (now, decision) = (at(0), answer(400, 1000));
        let token = send(&leases, &policy, 1, now);
        assert_eq!(leases.forget(b"k"), 0);
        if changes {
            // The policy changes, and back.
            let _ = send(&leases, &other, 1, now);
            let _ = send(&leases, &policy, 1, now);
        }
        assert_eq!(leases.granted(b"k", &policy, chunk_of(100, 1, decision), (token, now)), 99);
        let token = send(&leases, &policy, 1, now);
        assert_eq!(leases.granted(b"k", &policy, chunk_of(10, 1, decision), (token, now)), 0);
        assert_eq!(unspent(&leases, at(5)), [(9, 5)]);
    }
}

/// The store migrates the debt to the new rate, at which it drains from then on.
#[test]
fn take_under_another_policy_returns_units_only_if_the_rate_is_the_same() {
    for (text, owed) in [
        ("gcra:1000/1s", 50),
        ("token-bucket:2000/2s:burst=500", 50),
        ("gcra:10000/1s", 0),
        ("gcra:100/1s", 0),
    ] {
        let leases = Leases::new(10, Duration::from_secs(1), RandomState::new());
        refill((&leases, &leased(100)), (100, 1), at(0), 1000);
        let (other, mut expired) = (planned(text, 100), None);
        leases.take(b"k", &other, 1, at(50), &mut expired);
        let expired = expired.unwrap();
        let found = (expired.unspent.units, expired.unspent.owed(at(50), Duration::ZERO));
        assert_eq!(found, (99, owed), "{text}");
        assert!(leases.expired(None).is_empty());
    }
}

#[test]
fn take_beyond_the_maximum_number_is_full() {
    let leases = Leases::new(2, Duration::from_secs(1), RandomState::new());
    let policy = leased(100);
    for key in [b"a", b"b"] {
        assert!(matches!(leases.take(key, &policy, 1, at(0), &mut None), LeaseOutcome::Refill(..)));
    }
    assert!(matches!(leases.take(b"c", &policy, 1, at(0), &mut None), LeaseOutcome::Full));
    assert!(leases.expired(Some(at(2000))).is_empty());
    assert!(matches!(leases.take(b"c", &policy, 1, at(0), &mut None), LeaseOutcome::Refill(..)));
}

#[test]
fn take_nearly_exhausted_key_gets_small_chunks() {
    let leases = Leases::new(2, Duration::from_secs(1), RandomState::new());
    let policy = leased(100);
    let token = send(&leases, &policy, 64, at(0));
    let _ = leases.granted(b"k", &policy, chunk_of(64, 64, answer(10, 990)), (token, at(0)));
    assert_eq!(take(&leases, &policy, 1, at(0)).unwrap_err(), 5);
    leases.denied(b"k");
    assert_eq!(take(&leases, &policy, 1, at(0)).unwrap_err(), 1);
}
