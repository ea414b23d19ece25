//! The shortcuts of algorithms equal the general way.

use proptest::prelude::*;

use super::{api::search, *};
use crate::{Entry, Operation, Policy, apply, ledger::Expiry};

/// Limits of a few milliseconds, and windows of the calendar.
fn limit() -> impl Strategy<Value = String> {
    let rate = |name: &'static str, options: &'static str| {
        (1..9_u32, 1..12_u32).prop_map(move |(n, ms)| format!("{name}:{n}/{ms}ms{options}"))
    };
    prop_oneof![
        rate("gcra", ""),
        rate("leaky-bucket", ""),
        rate("token-bucket", ":refill=interval"),
        rate("token-bucket", ":borrow"),
        rate("fixed-window", ""),
        rate("fixed-window", ":align=clock"),
        (1..9_u32).prop_map(|n| format!("fixed-window:{n}/day:tz=Europe/Berlin")),
        rate("sliding-counter", ""),
        rate("sliding-log", ""),
        rate("sliding-log", ""),
        (1..9_u32, 1..12_u32, 1..20_u32, 1..9_u32).prop_map(|(n, ms, keep, max)| format!(
            "sliding-log:{n}/{ms}ms:keep={keep}ms:keep-max={max}"
        )),
        rate("concurrency", ""),
    ]
}

/// The state after some charges, each after a time in microseconds.
fn state(policy: &Policy, charges: &[(u64, u32)]) -> (State, u64) {
    let (mut entry, mut now): (Option<Entry>, u64) = (None, 1_800_000_000_000_000);
    for &(after, cost) in charges {
        now += after;
        // Of `concurrency` limits there is no state.
        let _ = apply(
            policy,
            &mut entry,
            Timestamp::from_micros(now).unwrap(),
            Operation::Charge(cost),
        );
    }
    (entry.map_or(State::None, |entry| entry.states[0].clone()), now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn answers_beside_holds_equal_those_of_charges_one_by_one(
        text in limit(),
        charges in proptest::collection::vec((0..9_000_u64, 1..6_u32), 0..8),
        step_back in prop_oneof![3 => Just(0_u64), 1 => 1..5_000_u64],
        holds in proptest::collection::vec((prop_oneof![8 => 1..4_000_u64, 1 => Just(80_000_000_000)], 1..6_u32), 1..9),
        units in 1..9_u32,
    ) {
        let policy: Policy = text.parse().unwrap();
        let limit = &policy.limits()[0];
        let (state, last) = state(&policy, &charges);
        let micros = last - step_back;
        let now = Timestamp::from_micros(micros).unwrap();
        let mut at = micros + 1;
        let expiries: Expiries = holds
            .iter()
            .map(|&(after, units)| {
                // Some expire together.
                at += after / 1_000 * 1_000;
                Expiry { at, units }
            })
            .collect();

        let charge_each = |state: &mut State| {
            expiries.iter().for_each(|it| limit.charge(state, it.time(), it.units));
        };
        let (mut at_once, mut one_by_one) = (state.clone(), state.clone());
        limit.charge_all(&mut at_once, &expiries);
        charge_each(&mut one_by_one);
        prop_assert_eq!(&at_once, &one_by_one);

        let end = Timestamp::from_micros(at).unwrap();
        let lifetime = at - micros + limit.lifetime(&one_by_one, end);
        prop_assert_eq!(limit.lifetime_beside(&state, now, &expiries), lifetime);
        let mut as_of = state.clone();
        limit.refund(&mut as_of, now, 0);
        charge_each(&mut as_of);
        let reset = at - micros + limit.reset_after(&as_of, end);
        prop_assert_eq!(limit.reset_after_beside(&state, now, &expiries), reset);

        let held: u32 = expiries.iter().map(|it| it.units).sum();
        let passes = units + held <= limit.capacity() && limit.wait(&state, now, units + held) == Retry::NOW;
        if units <= limit.capacity() && !passes {
            let searched = dispatch!(limit, &state, |it, own| search(it, own, now, units, &expiries));
            prop_assert_eq!(limit.wait_beside(&state, now, units, &expiries), searched);
            // It passes then, and not before.
            let Retry::After(wait) = searched else { panic!("{text} never passes {units}") };
            let passes_at = |at: u64| {
                let (mut state, mut left) = (state.clone(), held);
                limit.refund(&mut state, now, 0);
                for it in expiries.iter().take_while(|it| it.at <= at) {
                    limit.charge(&mut state, it.time(), it.units);
                    left -= it.units;
                }
                let at = Timestamp::from_micros(at).unwrap();
                units + left <= limit.capacity() && limit.wait(&state, at, units + left) == Retry::NOW
            };
            let at = micros + u64::try_from(wait.as_micros()).unwrap();
            prop_assert!(passes_at(at), "it does not pass after {wait:?}");
            prop_assert!(!passes_at(at - 1), "it passes before {wait:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// A step back by `J` admits nothing more, and holds a key for at most `J` longer.
    #[test]
    fn step_back_admits_nothing_more_and_holds_for_the_step_at_most(
        text in limit(),
        charges in proptest::collection::vec((0..9_000_u64, 1..6_u32), 1..8),
        step_back in 1..30_000_u64,
        units in 1..9_u32,
    ) {
        let policy: Policy = text.parse().unwrap();
        let limit = &policy.limits()[0];
        let (state, last) = state(&policy, &charges);
        let now = Timestamp::from_micros(last - step_back).unwrap();
        let at = limit.decides_at(&state, now);
        let latest = dispatch!(limit, &state, |it, own| {
            fn latest<A: Algorithm>(_: &A, state: Option<&A::State>) -> u64 {
                state.map_or(0, A::latest)
            }
            latest(it, own)
        });
        if at > now {
            // It decides, and stores, as at the time that is stored; spans from `now` are longer by the difference.
            prop_assert_eq!(at.as_micros(), latest);
            let longer = at.since(now);
            let later = |wait: Retry| match wait {
                Retry::After(wait) if !wait.is_zero() => Retry::After(wait + longer),
                other => other,
            };
            prop_assert_eq!(limit.remaining(&state, now), limit.remaining(&state, at));
            prop_assert_eq!(limit.used(&state, now), limit.used(&state, at));
            prop_assert_eq!(limit.wait(&state, now, units), later(limit.wait(&state, at, units)));
            let reset = limit.reset_after(&state, at) + u64::try_from(longer.as_micros()).unwrap();
            prop_assert_eq!(limit.reset_after(&state, now), reset);
            for change in [Limit::charge, Limit::refund] {
                let (mut early, mut late) = (state.clone(), state.clone());
                change(limit, &mut early, now, units);
                change(limit, &mut late, at, units);
                prop_assert_eq!(early, late);
            }
        } else if latest > now.as_micros() {
            // The clock was set back by a period or more: all that was in use stays so, and is dated now.
            let mut dated = state.clone();
            limit.refund(&mut dated, now, 0);
            prop_assert_eq!(limit.decides_at(&dated, now), now);
            prop_assert!(limit.wait(&state, now, units) == limit.wait(&dated, now, units));
            let latest = Timestamp::from_micros(latest).unwrap();
            prop_assert!(limit.reset_after(&state, now) <= limit.reset_after(&state, latest) + step_back);
        }
        // In any case, nothing more passes than at the time of the last charge, but by a counter that was set back: its
        // counts are those of the window of `now`.
        let is_counter = matches!(limit, Limit::SlidingCounter(_)) && at == now;
        if !is_counter {
            let last = Timestamp::from_micros(last).unwrap();
            prop_assert!(limit.remaining(&state, now) <= limit.remaining(&state, last));
        }
    }
}

/// Threads read the clock at slightly different moments: a request from just before midnight that comes after the first one
/// of the new day counts in the new day, and opens no second one.
#[test]
fn stragglers_of_the_day_before_open_no_second_window() {
    let midnight = 1_700_006_400_000_000;
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    for (text, passed) in [
        ("fixed-window:100/day:tz=UTC", [100, 100]),
        ("fixed-window:100/1d:align=clock", [100, 100]),
        // The new day weighs what the day before it counted.
        ("sliding-counter:100/1d", [100, 0]),
        ("sliding-log:100/1d", [100, 0]),
    ] {
        let (policy, mut entry): (Policy, _) = (text.parse().unwrap(), None);
        let mut passes = |micros: u64, times: usize| {
            let take = Operation::Take(1);
            let takes =
                (0..times).map(|_| apply(&policy, &mut entry, at(micros), take).unwrap().allowed());
            takes.filter(|it| *it).count()
        };
        let before = passes(midnight - 1_000_000, 150);
        let mut after = 0;
        for step in 0..150 {
            after += passes(midnight + step, 1);
            after += passes(midnight - 1_000 + step, 1);
        }
        assert_eq!([before, after], passed, "{text}");
    }
}
