//! Guarantees of each algorithm: bounds over all intervals of random histories, and no denial for a client that stays
//! at or below the rate.

use std::{collections::VecDeque, time::Duration};

use sluicegate_conformance::{CoreSubject, History, Invocation, Shape, Subject};
use sluicegate_core::{
    CalendarUnit, GcraName, Limit, Operation, Policy, Retry, Timestamp, Window, apply,
};
use sluicegate_testing::{Random, size};

use super::{KEY, STEADY};

/// Takes in a history.
const STEPS: usize = 60;

/// A take that passed.
#[derive(Clone, Copy, Debug)]
struct Passed {
    at: u64,
    /// When the client may go on: later than `at` in a queue.
    departs: u64,
    /// When the limit has recovered: the end of a fixed window.
    ends: u64,
    cost: u32,
}

fn micros(period: Duration) -> u64 {
    u64::try_from(period.as_micros()).unwrap()
}

/// The shortest and the longest period, in microseconds: calendar windows differ.
fn periods(limit: &Limit) -> (u64, u64) {
    const HOUR: u64 = 3_600_000_000;
    let days = |least: u64, most: u64| (24 * least * HOUR - HOUR, 24 * most * HOUR + HOUR);
    let period = match limit {
        Limit::FixedWindow(it) => match it.window() {
            Window::Span { period, .. } => period,
            Window::Calendar { unit, .. } => {
                return match unit {
                    CalendarUnit::Day => days(1, 1),
                    CalendarUnit::Week => days(7, 7),
                    CalendarUnit::Month => days(28, 31),
                    CalendarUnit::Year => days(365, 366),
                };
            }
        },
        _ => limit.rate().1,
    };
    (micros(period), micros(period))
}

/// Units that the limit admits in a period.
fn units(limit: &Limit) -> u32 {
    limit.rate().0
}

fn borrows(limit: &Limit) -> bool {
    limit.borrow()
}

/// The greatest cost of a take with which no debt saturates: a limit drops debt that would take longer than 2^50 µs
/// to repay, which only `borrow` can reach here.
fn max_cost(limit: &Limit) -> u32 {
    if !borrows(limit) {
        return u32::MAX;
    }
    let repaid = u64::from(units(limit)).saturating_mul((1 << 50) / periods(limit).1);
    let most = repaid.saturating_sub(limit.capacity().into()).max(1);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// Upper bound on the units that pass in a closed interval of `span` µs whose last take costs `last`.
fn bound(limit: &Limit, span: u64, last: u32) -> u128 {
    let (n, period) = (u128::from(units(limit)), u128::from(periods(limit).0));
    // With `borrow` a take that finds one unit takes all that it costs.
    let borrowed = if borrows(limit) { u128::from(last - 1) } else { 0 };
    let span = u128::from(span);
    // A closed interval of less than k periods lies in k half-open ones.
    let half_open = span / period + 1;
    match limit {
        Limit::Gcra(it) => u128::from(it.burst()) + span * n / period + borrowed,
        Limit::IntervalBucket(_) => u128::from(limit.capacity()) + n * half_open + borrowed,
        Limit::SlidingLog(_) => n * half_open,
        Limit::SlidingCounter(_) => 2 * n * half_open,
        // That many windows begin in it, and one was open before.
        Limit::FixedWindow(_) => n * (half_open + 1),
        Limit::Concurrency(_) => unreachable!("nothing is taken from it"),
    }
}

/// Takes by a client that presses against the first limit of `policy`: at the same time, a moment before and after
/// units come back, around the edges of its period, and at the retry time of a denial. Returns those that passed.
fn press(policy: &Policy, start: u64, random: &mut Random) -> Vec<Passed> {
    let pick = usize::try_from(random.below(policy.limits().len() as u64)).unwrap();
    let limit = &policy.limits()[pick];
    let (period, _) = periods(limit);
    let interval = (period / u64::from(units(limit))).max(1);
    let mut core = CoreSubject::default();
    let (mut now, mut passed) = (start, Vec::new());
    for _ in 0..STEPS {
        let capacity = limit.capacity();
        let cost = match random.below(8) {
            0 => capacity,
            1 => (capacity / 2).max(1),
            2 => 1 + u32::try_from(random.below(capacity.into())).unwrap(),
            _ => 1,
        };
        let cost = policy.limits().iter().map(max_cost).fold(cost, u32::min);
        let at = Timestamp::saturating_from_micros(now);
        let question = Invocation { key: KEY, policy, now: at, operation: Operation::Take(cost) };
        let decision = core.apply(question).unwrap();
        // Beyond the end of time, all times are one.
        if at + decision.reset_after == Timestamp::MAX {
            break;
        }
        if decision.allowed() {
            let departs = (at + decision.delay()).as_micros();
            let ends = (at + decision.reset_after).as_micros();
            passed.push(Passed { at: at.as_micros(), departs, ends, cost });
        }
        let retry = match decision.retry() {
            Some(Retry::After(wait)) => micros(wait),
            _ => 0,
        };
        now = now.saturating_add(match random.below(12) {
            0..=3 => retry,
            4 => retry.saturating_sub(1),
            5 => 0,
            6 => interval,
            7 => interval.saturating_sub(1),
            8 => period.saturating_sub(now % period).saturating_sub(random.below(3)),
            9 => period - random.below(2).min(period - 1),
            10 => random.below(2 * period),
            _ => random.below(4 * interval),
        });
    }
    passed
}

/// Panics with the history unless `passed` is within the bound of `limit` in each of its intervals. Returns the
/// number of intervals.
fn check(limit: &Limit, passed: &[Passed], policy: &Policy) -> u64 {
    let mut intervals = 0;
    for first in 0..passed.len() {
        let mut sum = 0;
        for take in &passed[first..] {
            sum += u128::from(take.cost);
            let span = take.at - passed[first].at;
            let most = bound(limit, span, take.cost);
            assert!(sum <= most, "{limit}: {sum} units in {span} us: {policy}: {passed:?}");
            intervals += 1;
        }
    }
    intervals
}

/// `N` units a window, exactly; windows end at least a period apart.
fn check_windows(limit: &Limit, passed: &[Passed]) {
    let mut last: Option<(u64, u64)> = None;
    for take in passed {
        let sum = match last {
            Some((end, sum)) if end == take.ends => sum,
            Some((end, _)) => {
                assert!(take.ends >= end + periods(limit).0, "{limit}: {passed:?}");
                0
            }
            None => 0,
        } + u64::from(take.cost);
        assert!(sum <= units(limit).into(), "{limit}: {sum} in a window: {passed:?}");
        last = Some((take.ends, sum));
    }
}

/// The time between two departures covers all requests that departed from the first on.
fn check_departures(limit: &Limit, passed: &[Passed]) {
    for first in 0..passed.len() {
        let mut sum = 0_u128;
        for pair in passed[first..].windows(2) {
            sum += u128::from(pair[0].cost);
            // Each is rounded up by less than a microsecond.
            let apart = u128::from(pair[1].departs - passed[first].departs) + 1;
            let least = sum * u128::from(periods(limit).0);
            assert!(apart * u128::from(units(limit)) > least, "{limit}: {passed:?}");
        }
    }
}

/// RELIABILITY 2.
#[test]
fn take_no_interval_of_any_history_exceeds_the_bound() {
    let histories = size("SLUICEGATE_PROMISES", 10_000);
    let (mut intervals, mut takes) = (0, 0);
    for seed in 0..histories {
        let history = History::random(seed, Shape { steps: 1, ..STEADY });
        let (policy, start) = (&history.0[0].policy, history.0[0].now.as_micros());
        let mut random = Random(seed);
        // Each limit alone, and then all together, where each must hold as well.
        let alone: Vec<Policy> = policy.limits().iter().map(|it| it.clone().into()).collect();
        let together = if alone.len() > 1 { Some(policy) } else { None };
        for policy in alone.iter().chain(together) {
            let passed = press(policy, start, &mut random);
            takes += passed.len();
            for limit in policy.limits() {
                intervals += check(limit, &passed, policy);
            }
            // Several limits delay one another, and recover later than a window ends.
            match policy.limits() {
                [limit @ Limit::FixedWindow(_)] => check_windows(limit, &passed),
                [limit @ Limit::Gcra(it)] if it.name() == GcraName::LeakyQueue => {
                    check_departures(limit, &passed);
                }
                _ => {}
            }
        }
    }
    println!(
        "figure: {histories} histories, {takes} takes that passed, {intervals} intervals: 0 with more than \
         promised"
    );
}

/// A client of this limit that stays at or below its rate: the cost of a take, and the least time between two takes.
/// `None` if no client does.
fn steady(limit: &Limit, random: &mut Random) -> Option<(u32, u64)> {
    let (n, (_, period)) = (units(limit), periods(limit));
    let any_of = |most: u32, random: &mut Random| match random.below(3) {
        0 => most,
        1 => 1 + u32::try_from(random.below(most.into())).unwrap(),
        _ => 1,
    };
    let each = |takes: u32| period.div_ceil(takes.into());
    match limit {
        Limit::Gcra(it) => {
            let cost = any_of(it.burst(), random);
            let apart = (u128::from(cost) * u128::from(period)).div_ceil(u128::from(n));
            Some((cost, u64::try_from(apart).unwrap()))
        }
        // A small bucket overflows between two refills: its size is then its rate.
        Limit::IntervalBucket(_) => {
            let most = n.min(limit.capacity());
            let cost = any_of(most, random);
            Some((cost, each(most / cost)))
        }
        Limit::SlidingLog(_) | Limit::FixedWindow(_) => {
            let cost = any_of(n, random);
            Some((cost, each(n / cost)))
        }
        // It assumes that the takes of the last window were spread evenly. At its edge that is up to one take too
        // many, therefore one less than N in a period is never denied.
        Limit::SlidingCounter(_) => Some((1, each(n.checked_sub(1).filter(|n| *n > 0)?))),
        Limit::Concurrency(_) => None,
    }
}

/// RELIABILITY 2: liveness.
#[test]
fn take_client_at_or_below_the_rate_is_never_denied() {
    let histories = size("SLUICEGATE_PROMISES", 10_000);
    let (mut clients, mut takes) = (0, 0_u64);
    for seed in 0..histories {
        let history = History::random(seed, Shape { steps: 1, ..STEADY });
        let mut random = Random(seed);
        for limit in history.0[0].policy.limits() {
            let Some((cost, apart)) = steady(limit, &mut random) else { continue };
            let policy: Policy = limit.clone().into();
            let (mut core, mut now) = (CoreSubject::default(), history.0[0].now.as_micros());
            clients += 1;
            for take in 0..STEPS {
                let at = Timestamp::saturating_from_micros(now);
                if at == Timestamp::MAX {
                    break;
                }
                let operation = Operation::Take(cost);
                let question = Invocation { key: KEY, policy: &policy, now: at, operation };
                let decision = core.apply(question).unwrap();
                assert!(decision.allowed(), "{limit}: {cost} each {apart} us, take {take} at {at}");
                takes += 1;
                let late =
                    [0, 0, 0, 1, apart / 3, apart][usize::try_from(random.below(6)).unwrap()];
                now = now.saturating_add(apart + late);
            }
        }
    }
    println!("figure: {clients} clients at or below the rate, {takes} takes: 0 denied");
}

/// RELIABILITY 4: no window of a sliding log, wherever it begins, has more than `N`.
#[test]
fn sliding_log_no_window_of_a_long_log_exceeds_the_limit() {
    const PERIOD: u64 = 60_000_000;
    let events = size("SLUICEGATE_LOG_EVENTS", 100_000);
    for (n, costs) in [(1, 1), (100, 1), (100, 7), (1000, 50)] {
        let policy: Policy = format!("sliding-log:{n}/1m").parse().unwrap();
        let mut random = Random(n);
        let (mut entry, mut now) = (None, 1_700_000_000_000_000);
        let mut window: VecDeque<(u64, u64)> = VecDeque::new();
        let (mut sum, mut most, mut admitted) = (0, 0, 0_u64);
        for _ in 0..events / 4 {
            now += match random.below(8) {
                0 => 0,
                1 => 1,
                2 => PERIOD / n,
                3 => random.below(4 * PERIOD / n),
                // The very moment at which the oldest leaves, and a microsecond before.
                edge @ 4..=5 => {
                    window.front().map_or(0, |(at, _)| (at + PERIOD).saturating_sub(now + edge - 4))
                }
                _ => random.below(PERIOD / n + 2),
            };
            let cost = 1 + random.below(costs);
            let take = Operation::Take(u32::try_from(cost).unwrap());
            let at = Timestamp::from_micros(now).unwrap();
            if !apply(&policy, &mut entry, at, take).unwrap().allowed() {
                continue;
            }
            while window.front().is_some_and(|(at, _)| at + PERIOD <= now) {
                sum -= window.pop_front().map_or(0, |(_, cost)| cost);
            }
            window.push_back((now, cost));
            (sum, admitted) = (sum + cost, admitted + 1);
            most = most.max(sum);
            assert!(sum <= n, "{sum} of {n} units end at {now}");
        }
        println!(
            "figure: {policy}, {} events: {admitted} admitted, {most} units in the fullest window",
            events / 4
        );
        assert_eq!(most, n, "the limit was reached");
    }
}

#[test]
fn lifetime_after_a_clock_set_back_lasts_until_the_clock_is_there_again() {
    let at = |seconds| Timestamp::EPOCH + Duration::from_secs(seconds);
    for text in [
        "fixed-window:2/3s",
        "fixed-window:2/3s:align=clock",
        "fixed-window:2/day:tz=Asia/Tokyo",
        "token-bucket:2/3s:capacity=4:refill=interval",
        "sliding-counter:2/3s",
        "sliding-log:2/3s",
    ] {
        let policy: Policy = text.parse().unwrap();
        let (taken, back) = (at(1_000_000), at(500_000));
        let mut entry = None;
        let decision = apply(&policy, &mut entry, taken, Operation::Take(1)).unwrap();
        let lifetime = entry.unwrap().lifetime(back);
        assert_eq!(lifetime, taken.since(back) + decision.reset_after, "{text}");
    }
}
