use std::time::Duration;

use sluicegate_core::{Operation, Timestamp, apply};

use super::*;

fn headers(policy: &str) -> RateLimitHeaders {
    RateLimitHeaders::new("p", &policy.parse().unwrap())
}

#[test]
fn policy_has_quota_and_window() {
    for (policy, text) in [
        ("gcra:30/60s", r#""p";q=30;w=60"#),
        ("gcra:30/60s:burst=16", r#""p";q=30;w=60"#),
        ("gcra:5/10s:burst=50", r#""p";q=50;w=100"#),
        ("gcra:7/10s:burst=8", r#""p";q=8"#),
        ("leaky-queue:10/500ms", r#""p";q=10"#),
        ("fixed-window:10/1500ms", r#""p";q=10"#),
        ("fixed-window:10/day:tz=Europe/Paris", r#""p";q=10;w=86400"#),
        ("fixed-window:10/week", r#""p";q=10;w=604800"#),
        ("fixed-window:10/month", r#""p";q=10"#),
        ("token-bucket:10/1s:burst=25:refill=interval", r#""p";q=25;w=3"#),
        ("token-bucket:10/1s:refill=interval", r#""p";q=10;w=1"#),
        ("sliding-counter:4294967295/366d", r#""p";q=4294967295;w=31622400"#),
        ("concurrency:20/30s", r#""p";q=20;qu="concurrent-requests""#),
        (
            "gcra:60/1m,concurrency:20/30s",
            r#""p-1";q=60;w=60, "p-2";q=20;qu="concurrent-requests""#,
        ),
        ("gcra:10/1s,sliding-log:1000/1h", r#""p-1";q=10;w=1, "p-2";q=1000;w=3600"#),
    ] {
        assert_eq!(headers(policy).policy(), text, "{policy}");
    }
}

#[test]
fn new_any_name_makes_a_header() {
    let policy = "gcra:1/1s".parse().unwrap();
    assert_eq!(
        RateLimitHeaders::new("a\"b\\c\nd\u{e9}", &policy).policy(),
        r#""a\"b\\c?d?";q=1;w=1"#
    );
    assert_eq!(RateLimitHeaders::new("", &policy).policy(), r#""";q=1;w=1"#);
}

#[test]
fn rate_limit_names_the_binding_limit() {
    let policy: Policy = "gcra:10/1s,sliding-log:12/1h".parse().unwrap();
    let (fields, mut entry) = (RateLimitHeaders::new("p", &policy), None);
    let mut take = |cost| {
        let operation = Operation::Take(cost);
        fields.rate_limit(&apply(&policy, &mut entry, Timestamp::EPOCH, operation).unwrap())
    };
    assert_eq!(take(3), r#""p-1";r=7"#);
    assert_eq!(take(6), r#""p-1";r=1"#);
    assert_eq!(take(5), r#""p-2";r=1;t=3600"#);
    assert_eq!(take(13), r#""p-1";r=1"#);
}

fn after(policy: &str, takes: &[(u64, Operation)]) -> Option<u64> {
    let policy: Policy = policy.parse().unwrap();
    let (mut entry, mut last) = (None, None);
    for &(millis, operation) in takes {
        let now = Timestamp::from_micros(1_000_000_000 + millis * 1000).unwrap();
        last = Some(apply(&policy, &mut entry, now, operation).unwrap());
    }
    more_after(&policy, &last.unwrap())
}

#[test]
fn rate_limit_after_is_the_time_of_one_more_unit() {
    use Operation::{Charge, Peek, Take};
    let bucket = "token-bucket:10/10s:burst=25:refill=interval";
    for (policy, takes, expected) in [
        ("gcra:6/60s", vec![(0, Take(1))], Some(10)),
        ("gcra:6/60s", vec![(0, Take(6))], Some(10)),
        ("gcra:6/60s", vec![(0, Take(6)), (3500, Peek(0))], Some(7)),
        ("gcra:6/60s", vec![(0, Charge(8))], None),
        ("gcra:6/60s", vec![(0, Peek(0))], None),
        ("gcra:1000/1s", vec![(0, Take(1))], Some(1)),
        (bucket, vec![(0, Take(1))], Some(10)),
        (bucket, vec![(0, Take(24)), (2500, Take(1))], Some(8)),
        (bucket, vec![(0, Take(20)), (2500, Take(1))], Some(8)),
        (bucket, vec![(0, Charge(45))], None),
        ("fixed-window:6/60s", vec![(0, Take(1)), (9001, Take(1))], Some(51)),
        ("sliding-log:6/60s", vec![(0, Take(1))], None),
        ("gcra:6/60s,gcra:9/1h", vec![(0, Take(1))], None),
    ] {
        assert_eq!(after(policy, &takes), expected, "{policy} {takes:?}");
    }
}

#[test]
fn rate_limit_after_is_enough_and_tight() {
    for policy in [
        "gcra:7/60s",
        "gcra:7/60s:burst=20",
        "fixed-window:7/60s",
        "token-bucket:7/60s:burst=20:refill=interval",
    ] {
        let policy: Policy = policy.parse().unwrap();
        for taken in 1..=7 {
            let (mut entry, start) = (None, Timestamp::from_micros(1_000_000_000).unwrap());
            let first = apply(&policy, &mut entry, start, Operation::Take(taken)).unwrap();
            let wait = more_after(&policy, &first).unwrap();
            let mut at = |seconds| {
                let now = start + Duration::from_secs(seconds);
                apply(&policy, &mut entry, now, Operation::Peek(0)).unwrap().remaining
            };
            assert!(at(wait) > first.remaining, "{policy} {taken}");
            assert_eq!(at(wait - 1), first.remaining, "{policy} {taken}");
        }
    }
}

#[test]
fn rate_limit_after_of_open_holds_is_omitted_or_tight() {
    let ttls = [1, 5, 8, 30, 60, 90, 3600];
    for (policy, step, is_exact) in [
        ("gcra:20/60s", 3, false),
        ("gcra:7/60s:burst=20", 9, false),
        ("token-bucket:7/60s:burst=20:refill=interval", 60, false),
        ("fixed-window:20/60s", 60, true),
        ("fixed-window:20/60s:align=clock", 60, true),
        ("fixed-window:20/month", 28 * 86_400, true),
    ] {
        let policy: Policy = policy.parse().unwrap();
        // The last days of January 1970: the next month is shorter.
        let start = Timestamp::from_micros(30 * 86_400_000_000 + 7).unwrap();
        let mut known = 0;
        for (taken, held, seconds, ttl) in (0..7)
            .flat_map(|taken| [1, 5, 13].map(|held| (taken, held)))
            .flat_map(|(taken, held)| {
                [0, 1, 55].into_iter().flat_map(move |seconds| {
                    ttls.into_iter().map(move |ttl| (taken, held, seconds, ttl))
                })
            })
        {
            let mut entry = None;
            let taken = apply(&policy, &mut entry, start, Operation::Take(taken)).unwrap();
            assert!(taken.allowed());
            let now = start + Duration::from_secs(seconds);
            let ttl = Some(Duration::from_secs(ttl));
            let hold = Operation::Hold { id: b"-", cost: held, ttl };
            let held = apply(&policy, &mut entry, now, hold).unwrap();
            let Some(wait) = more_after(&policy, &held) else { continue };
            let mut at = |seconds| {
                let now = now + Duration::from_secs(seconds);
                apply(&policy, &mut entry, now, Operation::Peek(0)).unwrap().remaining
            };
            let context = format!("{policy} {taken:?} {held:?} {ttl:?} {wait}");
            assert!(at(wait) > held.remaining, "{context}");
            assert!(wait <= step, "{context}");
            assert!(!is_exact || at(wait - 1) == held.remaining, "{context}");
            known += 1;
        }
        assert!(known > 0, "{policy}");
    }
}

#[test]
fn rate_limit_of_short_hold_has_no_time() {
    let policy: Policy = "gcra:500/1m".parse().unwrap();
    let (headers, mut entry) = (RateLimitHeaders::new("p", &policy), None);
    assert!(apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(100)).unwrap().allowed());
    let hold = Operation::Hold { id: b"-", cost: 4, ttl: Some(Duration::from_secs(30)) };
    let held = apply(&policy, &mut entry, Timestamp::EPOCH, hold).unwrap();
    assert_eq!(headers.rate_limit(&held), r#""p";r=396"#);
}

/// The reset of `takes` units per request, after each request at its second.
fn resets(policy: &str, takes: &[(u64, u32)]) -> Vec<(bool, u32, u32, u64)> {
    let policy: Policy = policy.parse().unwrap();
    let (headers, mut entry) = (RateLimitHeaders::new("p", &policy), None);
    let take = |&(second, cost): &(u64, u32)| {
        let now = Timestamp::from_micros(1_000_000_000 + second * 1_000_000).unwrap();
        let decision = apply(&policy, &mut entry, now, Operation::Take(cost)).unwrap();
        let (limit, remaining) = (decision.limit, decision.remaining);
        (decision.allowed(), limit, remaining, headers.reset(&decision))
    };
    takes.iter().map(take).collect()
}

#[test]
fn reset_is_that_of_the_binding_limit() {
    for (policy, takes, expected) in [
        (
            "fixed-window:5/1m,fixed-window:100000/365d",
            vec![(0, 4), (0, 1), (0, 1), (20, 1)],
            vec![(true, 5, 1, 60), (true, 5, 0, 60), (false, 5, 0, 60), (false, 5, 0, 40)],
        ),
        (
            "fixed-window:100000/365d,fixed-window:5/1m",
            vec![(0, 5), (0, 1)],
            vec![(true, 5, 0, 60), (false, 5, 0, 60)],
        ),
        (
            "gcra:10/10s,sliding-log:1000/1h",
            vec![(0, 4), (0, 6), (0, 1), (3, 2)],
            vec![(true, 10, 6, 4), (true, 10, 0, 10), (false, 10, 0, 10), (true, 10, 1, 9)],
        ),
        (
            "token-bucket:10/10s:refill=interval,gcra:1000/1d",
            vec![(0, 10), (0, 1)],
            vec![(true, 10, 0, 10), (false, 10, 0, 10)],
        ),
        (
            "sliding-log:2/1m,gcra:90/1d",
            vec![(0, 1), (0, 2)],
            vec![(true, 2, 1, 60), (false, 2, 1, 60)],
        ),
        ("sliding-counter:2/1m,gcra:90/1d", vec![(0, 1)], vec![(true, 2, 1, 120)]),
        (
            "gcra:1/1h,fixed-window:90/1m",
            vec![(0, 1), (0, 1)],
            vec![(true, 1, 0, 3600), (false, 1, 0, 3600)],
        ),
        // A limit alone: the reset of the key.
        ("gcra:6/1m", vec![(0, 6), (5, 2)], vec![(true, 6, 0, 60), (false, 6, 0, 55)]),
        ("fixed-window:6/1m", vec![(0, 6), (5, 9)], vec![(true, 6, 0, 60), (false, 6, 0, 55)]),
    ] {
        assert_eq!(resets(policy, &takes), expected, "{policy}");
    }
}
