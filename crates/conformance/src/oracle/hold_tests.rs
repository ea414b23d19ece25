//! The sentences of SEMANTICS.md on `concurrency` and holds, one by one.

use super::{Answer, HoldOp, Op, Oracle};

const S: u64 = 1_000_000;
const NOW: u64 = 1_700_000_000 * S;
const DAY: u64 = 86_400 * S;

/// One key under one policy; times are microseconds after `NOW`.
struct Key {
    oracle: Oracle,
    policy: String,
}

impl Key {
    fn under(policy: &str) -> Self {
        Self { oracle: Oracle::new(), policy: policy.to_owned() }
    }

    /// The same key under another policy.
    fn change(&mut self, policy: &str) -> &mut Self {
        policy.clone_into(&mut self.policy);
        self
    }

    fn apply(&mut self, at: u64, op: Op, cost: u32) -> Result<Answer, String> {
        self.oracle.apply(b"k", &self.policy, NOW + at, op, cost)
    }

    fn apply_hold(&mut self, at: u64, id: &[u8], op: HoldOp) -> Result<Answer, String> {
        self.oracle.apply_hold(b"k", id, &self.policy, NOW + at, op)
    }

    fn take(&mut self, at: u64, cost: u32) -> Answer {
        self.apply(at, Op::Take, cost).unwrap()
    }

    fn peek(&mut self, at: u64, cost: u32) -> Answer {
        self.apply(at, Op::Peek, cost).unwrap()
    }

    fn hold(&mut self, at: u64, id: &str, cost: u32, ttl_us: u64) -> Answer {
        let ttl_us = Some(ttl_us);
        self.apply_hold(at, id.as_bytes(), HoldOp::Hold { cost, ttl_us }).unwrap()
    }

    fn settle(&mut self, at: u64, id: &str, used: Option<u32>) -> Answer {
        self.apply_hold(at, id.as_bytes(), HoldOp::Settle { used }).unwrap()
    }

    fn renew(&mut self, at: u64, id: &str, ttl_us: u64) -> Answer {
        self.apply_hold(at, id.as_bytes(), HoldOp::Renew { ttl_us: Some(ttl_us) }).unwrap()
    }
}

/// Allowed, remaining, retry after, reset after.
fn short(answer: &Answer) -> (bool, u64, Option<u64>, u64) {
    (answer.allowed, answer.remaining, answer.retry_after_us, answer.reset_after_us)
}

fn hold(ttl_us: Option<u64>) -> HoldOp {
    HoldOp::Hold { cost: 1, ttl_us }
}

#[test]
fn concurrency_counts_open_holds_until_they_expire() {
    let mut key = Key::under("concurrency:3/10s");
    assert_eq!(short(&key.hold(0, "a", 2, 10 * S)), (true, 1, Some(0), 10 * S));
    assert_eq!(short(&key.hold(S, "b", 2, S)), (false, 1, Some(9 * S), 9 * S));
    assert_eq!(key.hold(S, "b", 4, S).retry_after_us, None);
    assert!(!key.hold(10 * S - 1, "b", 2, S).allowed);
    assert_eq!(short(&key.hold(10 * S, "b", 2, S)), (true, 1, Some(0), S));
}

#[test]
fn concurrency_other_operations_are_errors_and_peek_answers_as_hold() {
    let mut key = Key::under("gcra:5/1s,concurrency:3/10s");
    for op in [Op::Take, Op::Charge, Op::Refund, Op::Reserve { max_wait_us: S }] {
        assert!(key.apply(0, op, 1).is_err(), "{op:?}");
    }
    key.hold(0, "a", 2, S);
    let peek = key.peek(0, 2);
    assert_eq!(peek, key.hold(0, "b", 2, S));
    assert!(!peek.allowed);
    assert!(key.apply(0, Op::Reset, 0).unwrap().allowed);
    assert_eq!(key.peek(0, 1).remaining, 3);
}

#[test]
fn concurrency_never_settled_decides_as_sliding_log() {
    for seed in 0..200_u64 {
        let mut state = seed;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        let n = 1 + below(9);
        let mut held = Key::under(&format!("concurrency:{n}/1s"));
        let mut log = Key::under(&format!("sliding-log:{n}/1s"));
        let mut at = 0;
        for step in 0..40 {
            at += below(3) * below(S / 2);
            let cost = u32::try_from(below(n + 2)).unwrap();
            let found = held.hold(at, &step.to_string(), cost, S);
            assert_eq!(found, log.take(at, cost), "{seed}, {step}");
        }
    }
}

#[test]
fn settle_at_once_for_what_was_held_leaves_the_key_as_a_take() {
    for policy in [
        "gcra:7/10s",
        "gcra:7/10s:borrow",
        "token-bucket:7/10s:refill=interval",
        "fixed-window:7/10s",
        "sliding-log:7/10s:count=all",
        "sliding-counter:7/10s",
    ] {
        let (mut held, mut taken) = (Key::under(policy), Key::under(policy));
        for at in [0, S, 2 * S, 9 * S, 12 * S] {
            for cost in [1, 3, 8] {
                let (answer, expected) = (held.hold(at, "a", cost, S), taken.take(at, cost));
                assert_eq!(answer.allowed, expected.allowed, "{policy}");
                held.settle(at, "a", None);
                for later in [0, 1, S, 5 * S] {
                    assert_eq!(held.peek(at + later, 2), taken.peek(at + later, 2), "{policy}");
                }
            }
        }
    }
}

#[test]
fn held_counts_metered_holds_only_except_for_concurrency() {
    let mut key = Key::under("concurrency:5/10s");
    key.hold(0, "a", 2, 10 * S);
    assert_eq!(key.change("fixed-window:5/10s").peek(0, 1).remaining, 5);
    key.hold(0, "b", 1, 10 * S);
    assert_eq!(key.peek(0, 1).remaining, 4);
    assert_eq!(key.change("concurrency:5/10s").peek(0, 1).remaining, 2);
    // Both share one space of ids: `a` is open, and a renew does not make it metered.
    assert!(key.change("fixed-window:5/10s").hold(0, "a", 5, 10 * S).allowed);
    key.renew(0, "a", 10 * S);
    assert_eq!(key.peek(0, 1).remaining, 4);
}

#[test]
fn hold_needs_free_units_for_its_cost_beside_the_held() {
    let mut key = Key::under("fixed-window:5/10s");
    assert_eq!(short(&key.hold(0, "a", 3, 2 * S)), (true, 2, Some(0), 12 * S));
    assert!(!key.take(0, 3).allowed);
    assert!(key.take(0, 2).allowed);
    // 5 and the 3 held exceed the capacity, and just have to wait; 6 never pass.
    assert_eq!(key.peek(0, 5).retry_after_us, Some(10 * S));
    assert_eq!(key.peek(0, 6).retry_after_us, None);
    // A reserve needs free units, too: 3 of 5 are held, the next unit comes after 1 s.
    let mut key = Key::under("gcra:5/5s");
    key.hold(0, "a", 3, DAY);
    assert_eq!(key.apply(0, Op::Reserve { max_wait_us: S }, 2).unwrap().delay_us, 0);
    assert_eq!(key.apply(0, Op::Reserve { max_wait_us: S }, 1).unwrap().delay_us, S);
}

#[test]
fn hold_borrow_needs_one_unit_beside_the_held_and_is_never_never() {
    for policy in ["gcra:5/5s:borrow", "token-bucket:5/5s:borrow:refill=interval"] {
        let mut key = Key::under(policy);
        assert!(key.hold(0, "a", 4, S).allowed);
        assert!(key.peek(0, 100).allowed, "{policy}");
        key.hold(0, "b", 100, S);
        let denied = key.take(0, 1);
        assert_eq!((denied.allowed, denied.remaining), (false, 0));
        assert!(denied.retry_after_us.is_some(), "{policy}");
    }
}

#[test]
fn hold_charges_nothing_and_remaining_is_less_held() {
    let mut key = Key::under("fixed-window:5/10s");
    key.take(0, 1);
    assert_eq!(key.hold(0, "a", 3, S).remaining, 1);
    assert_eq!(key.settle(0, "a", Some(0)).remaining, 4);
}

#[test]
fn hold_of_an_open_id_is_allowed_and_changes_nothing() {
    let mut key = Key::under("concurrency:3/10s");
    key.hold(0, "a", 3, 10 * S);
    assert_eq!(short(&key.hold(S, "a", 99, 10 * S)), (true, 0, Some(0), 9 * S));
    assert_eq!(short(&key.peek(S, 1)), (false, 0, Some(9 * S), 9 * S));
}

#[test]
fn hold_of_cost_0_opens_nothing() {
    let mut key = Key::under("concurrency:3/10s");
    assert_eq!(short(&key.hold(0, "a", 0, 10 * S)), (true, 3, Some(0), 0));
    assert!(!key.settle(0, "a", None).allowed);
}

#[test]
fn hold_denied_is_recorded_by_count_all() {
    let mut key = Key::under("fixed-window:5/10s:count=all,concurrency:1/1s");
    key.hold(0, "a", 1, S);
    // 3 never fit in 1; the window records them all the same.
    assert_eq!(key.hold(0, "b", 3, S).retry_after_us, None);
    assert_eq!(key.change("fixed-window:5/10s:count=all").peek(0, 3).remaining, 1);
}

#[test]
fn hold_ttl_domain_and_default() {
    let mut key = Key::under("gcra:5/1s");
    assert!(key.apply_hold(0, b"a", hold(None)).is_err());
    for (ttl, valid) in [(0, false), (999, false), (1_000, true), (DAY, true), (DAY + 1, false)] {
        assert_eq!(key.apply_hold(0, b"a", hold(Some(ttl))).is_ok(), valid, "{ttl}");
    }
    key.change("concurrency:5/10s,gcra:5/1s,concurrency:7/3s");
    assert!(key.apply_hold(0, b"b", hold(Some(3 * S + 1))).is_err());
    assert!(key.apply_hold(0, b"a", HoldOp::Renew { ttl_us: Some(3 * S + 1) }).is_err());
    key.apply(0, Op::Reset, 0).unwrap();
    key.apply_hold(0, b"b", hold(None)).unwrap();
    assert_eq!(key.change("concurrency:5/3s").peek(0, 1).reset_after_us, 3 * S);
    assert!(key.change("concurrency:5/2d").apply_hold(0, b"c", hold(Some(DAY + 1))).is_err());
}

#[test]
fn hold_id_has_1_to_64_bytes_and_names_a_hold_of_one_key() {
    let mut key = Key::under("concurrency:5/10s");
    for (length, valid) in [(0, false), (1, true), (64, true), (65, false)] {
        assert_eq!(key.apply_hold(0, &vec![b'i'; length], hold(None)).is_ok(), valid, "{length}");
    }
    let settle = HoldOp::Settle { used: None };
    let other = key.oracle.apply_hold(b"other", b"i", "concurrency:5/10s", NOW, settle);
    assert!(!other.unwrap().allowed);
}

#[test]
fn hold_of_a_full_ledger_is_an_error_and_changes_nothing() {
    let mut key = Key::under("concurrency:65536/10s");
    key.hold(0, "0", 1, 10 * S);
    let entry = key.oracle.entries.get_mut(b"k".as_slice()).unwrap();
    let first = entry.ledger.0[0].clone();
    for id in 1..65_536_u32 {
        entry.ledger.0.push(super::Hold { id: id.to_string().into_bytes(), ..first.clone() });
    }
    let last = entry.ledger.0.last_mut().unwrap();
    last.units = super::q(0);
    assert!(key.apply_hold(0, b"one more", hold(None)).is_err());
    assert_eq!(key.oracle.entries[b"k".as_slice()].ledger.0.len(), 65_536);
}

#[test]
fn hold_under_a_queue_is_an_error() {
    let mut key = Key::under("gcra:5/1s,leaky-queue:5/1s");
    for op in [hold(Some(S)), HoldOp::Settle { used: None }, HoldOp::Renew { ttl_us: Some(S) }] {
        assert!(key.apply_hold(0, b"a", op).is_err(), "{op:?}");
    }
}

#[test]
fn settle_charges_more_or_less_than_was_held() {
    let policy = "fixed-window:10/10s";
    for (used, left) in [(None, 6), (Some(0), 10), (Some(1), 9), (Some(12), 0)] {
        let mut key = Key::under(policy);
        key.hold(0, "a", 4, S);
        let settled = key.settle(0, "a", used);
        assert_eq!((settled.allowed, settled.remaining), (true, left), "{used:?}");
    }
    // The time of the charge is that of the settle.
    let mut key = Key::under(policy);
    key.hold(0, "a", 4, 9 * S);
    assert_eq!(key.settle(5 * S, "a", None).reset_after_us, 10 * S);
}

#[test]
fn settle_of_a_hold_that_was_not_metered_charges_nothing() {
    let mut key = Key::under("concurrency:5/10s");
    key.hold(0, "a", 4, S);
    assert_eq!(key.change("fixed-window:10/10s").settle(0, "a", Some(9)).remaining, 10);
    assert_eq!(key.change("concurrency:5/10s").peek(0, 1).remaining, 5);
}

#[test]
fn settle_under_concurrency_charges_the_limits_of_the_key() {
    let mut key = Key::under("fixed-window:10/10s");
    key.hold(0, "a", 4, 9 * S);
    assert_eq!(key.change("concurrency:5/10s").settle(0, "a", Some(3)).remaining, 5);
    assert_eq!(key.change("fixed-window:10/10s").peek(0, 1).remaining, 7);
}

#[test]
fn settle_charges_the_limits_of_the_request() {
    let mut key = Key::under("fixed-window:10/10s");
    key.take(0, 2);
    key.hold(0, "a", 4, 9 * S);
    assert_eq!(key.change("fixed-window:20/10s").settle(0, "a", Some(3)).remaining, 15);
}

#[test]
fn settle_and_renew_answer_with_the_least_remaining() {
    let mut key = Key::under("fixed-window:10/10s,concurrency:5/9s");
    key.hold(0, "a", 4, 9 * S);
    let renewed = key.renew(S, "a", 2 * S);
    assert_eq!((renewed.limit, renewed.binding, renewed.remaining), (5, 1, 1));
    assert_eq!(short(&renewed), (true, 1, Some(0), 12 * S));
    let settled = key.settle(S, "a", Some(8));
    assert_eq!((settled.limit, settled.binding, settled.remaining), (10, 0, 2));
}

#[test]
fn settle_repeated_charges_once_and_is_never() {
    let mut key = Key::under("fixed-window:10/10s");
    key.hold(0, "a", 4, 9 * S);
    key.settle(0, "a", Some(3));
    let again = key.settle(0, "a", Some(3));
    assert_eq!((short(&again), again.limit), ((false, 7, None, 10 * S), 10));
    assert_eq!(short(&key.renew(0, "a", S)), (false, 7, None, 10 * S));
}

#[test]
fn expired_metered_hold_is_charged_at_its_expiry() {
    let mut key = Key::under("fixed-window:10/10s,concurrency:5/9s");
    key.hold(0, "a", 4, 2 * S);
    let later = key.peek(5 * S, 1);
    // The window opened at 2 s.
    assert_eq!(short(&later), (true, 5, Some(0), 7 * S));
    assert!(!key.settle(5 * S, "a", None).allowed);
    assert_eq!(key.change("fixed-window:10/10s").peek(5 * S, 1).remaining, 6);
    assert_eq!(key.peek(12 * S, 1).remaining, 10);
}

#[test]
fn expired_holds_are_charged_in_order_of_expiry_under_the_stored_policy() {
    // The events show the order: 3 units of 1 s, and one of 3 s.
    let mut key = Key::under("sliding-log:4/10s");
    key.hold(0, "late", 1, 3 * S);
    key.hold(0, "early", 3, S);
    let state = key.peek(5 * S, 1);
    assert_eq!((state.remaining, state.reset_after_us), (0, 8 * S));
    assert_eq!(key.peek(11 * S, 1).remaining, 3);
    // The charge of expired holds is migrated: under the old policy the window of 1 s is over.
    let mut key = Key::under("fixed-window:4/1s");
    key.hold(0, "a", 3, S);
    assert_eq!(key.change("fixed-window:4/1h").take(2 * S, 1).remaining, 3);
}

#[test]
fn expired_holds_of_one_time_are_charged_first_opened_first() {
    let mut key = Key::under("sliding-log:20/1s:keep=10s:keep-max=12");
    key.hold(0, "a", 9, 2 * S);
    key.hold(0, "b", 1, S);
    key.hold(0, "c", 3, S);
    key.renew(S / 2, "b", 3 * S / 2);
    key.renew(S / 2, "c", 3 * S / 2);
    key.take(4 * S, 1);
    // 9 + 1 + 3 + 1 exceed 12; the oldest is `a`.
    assert_eq!(key.change("sliding-log:20/10s").peek(4 * S, 1).remaining, 15);
}

#[test]
fn retry_after_looks_ahead_over_expiries() {
    // 4 are held until 2 s; then they are charged to the window that opens at that time.
    let mut key = Key::under("fixed-window:5/10s");
    key.hold(0, "a", 4, 2 * S);
    assert_eq!(short(&key.peek(0, 2)), (false, 1, Some(12 * S), 12 * S));
    // A window that is open ends before the hold.
    let mut key = Key::under("fixed-window:5/10s");
    key.take(0, 3);
    key.hold(0, "a", 2, 60 * S);
    assert_eq!(key.peek(0, 3).retry_after_us, Some(10 * S));
    assert_eq!(key.peek(0, 4).retry_after_us, Some(70 * S));
}

#[test]
fn reset_after_under_concurrency_is_until_the_last_hold_has_expired() {
    let mut key = Key::under("fixed-window:10/1h");
    key.take(0, 1);
    key.hold(0, "a", 1, 3 * S);
    key.change("concurrency:5/9s").hold(0, "b", 1, 2 * S);
    assert_eq!(key.peek(0, 1).reset_after_us, 3 * S);
    key.hold(0, "c", 1, 9 * S);
    assert_eq!(key.peek(0, 1).reset_after_us, 9 * S);
    // Under another policy, unmetered holds are waited for as well.
    assert_eq!(key.change("gcra:1000/1ms").peek(0, 1).reset_after_us, 9 * S);
}

#[test]
fn peek_stores_nothing_of_expired_holds() {
    let mut key = Key::under("concurrency:5/9s");
    key.hold(0, "a", 5, S);
    assert!(key.peek(2 * S, 5).allowed);
    // The clock steps back: the hold is open again, at most by the step longer.
    assert_eq!(key.peek(S / 2, 1).retry_after_us, Some(S / 2));
    assert!(key.hold(2 * S, "b", 5, S).allowed);
    assert!(!key.settle(S / 2, "a", None).allowed);
}

#[test]
fn reset_forgets_limits_and_holds_under_any_policy() {
    let mut key = Key::under("fixed-window:10/1h");
    key.take(0, 5);
    key.hold(0, "a", 1, 3 * S);
    let reset = key.change("concurrency:5/9s").apply(0, Op::Reset, 0).unwrap();
    assert_eq!(short(&reset), (true, 5, Some(0), 0));
    assert_eq!(short(&key.change("fixed-window:10/1h").peek(0, 1)), (true, 10, Some(0), 0));
}

#[test]
fn concurrency_takes_no_part_in_pairing() {
    // One limit beside `concurrency` on either side: they pair although the machines differ.
    let mut key = Key::under("fixed-window:10/1h");
    key.take(0, 4);
    assert_eq!(key.change("concurrency:9/1s,gcra:10/1h").peek(0, 1).remaining, 6);
    // Two limits on either side, one of them `concurrency`: 2 old and 1 new do not pair.
    let mut key = Key::under("fixed-window:10/1h,fixed-window:20/1d");
    key.take(0, 4);
    assert_eq!(key.change("concurrency:10/1s,gcra:10/1h").peek(0, 1).remaining, 10);
}

#[test]
fn concurrency_alone_does_not_change_what_is_stored() {
    let mut key = Key::under("fixed-window:10/1h");
    key.take(0, 4);
    key.hold(0, "metered", 1, S);
    key.change("concurrency:9/10s");
    key.hold(0, "a", 4, 9 * S);
    key.renew(0, "a", 9 * S);
    key.settle(0, "a", Some(4));
    assert!(!key.hold(0, "b", 9, 9 * S).allowed);
    assert_eq!(key.change("fixed-window:10/1h").peek(0, 1).remaining, 5);
    // Expired metered holds are applied.
    key.change("concurrency:9/10s").hold(2 * S, "c", 1, S);
    let entry = &key.oracle.entries[b"k".as_slice()];
    assert_eq!(entry.ledger.0.len(), 1);
    assert_eq!(key.change("fixed-window:10/1h").peek(2 * S, 1).remaining, 5);
}

#[test]
fn policy_change_is_stored_by_holds_settles_and_renews_of_open_ids() {
    let (old, new) = ("gcra:30/1m", "gcra:60/1m:burst=30");
    // 30 units in use are 60 s of debt under the first policy, and 30 s under the second.
    let check = |stores: bool, step: &dyn Fn(&mut Key)| {
        let mut key = Key::under("concurrency:9/9s");
        key.hold(0, "open", 1, 9 * S);
        key.change(old).take(0, 30);
        key.change(new);
        step(&mut key);
        let left = key.change(old).peek(15 * S, 1).reset_after_us;
        assert_eq!(left, if stores { 30 * S } else { 45 * S });
    };
    check(true, &|key| assert!(!key.hold(0, "a", 1, S).allowed));
    check(true, &|key| assert!(key.renew(0, "open", S).allowed));
    check(true, &|key| assert!(key.settle(0, "open", Some(0)).allowed));
    check(false, &|key| assert!(key.hold(0, "open", 1, S).allowed));
    check(false, &|key| assert!(key.hold(0, "a", 0, S).allowed));
    check(false, &|key| assert!(!key.renew(0, "a", S).allowed));
    check(false, &|key| assert!(!key.settle(0, "a", None).allowed));
}
