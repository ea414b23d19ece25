use super::*;
use crate::Policy;

#[test]
fn share_of_any_policy_is_never_more() {
    for (policy, (part, whole), expected) in [
        ("gcra:1000/1s:burst=100", (1, 4), "gcra:1000/4s:burst=25"),
        ("gcra:1/1s", (1, 3), "gcra:1/3s"),
        ("leaky-queue:30/1m:capacity=7", (1, 2), "leaky-queue:30/2m:capacity=3"),
        ("fixed-window:10/1m", (1, 4), "fixed-window:2/1m"),
        ("fixed-window:2/1m", (1, 4), "fixed-window:1/2m"),
        ("fixed-window:10/day", (1, 4), "fixed-window:2/day"),
        ("gcra:1000/366d", (1, 4), "gcra:250/366d"),
        ("fixed-window:2/366d", (1, 4), "fixed-window:1/366d"),
        ("sliding-log:10/1m,gcra:5/1s", (1, 1), "sliding-log:10/1m,gcra:5/1s"),
        ("sliding-counter:3/1m", (1, 10), "sliding-counter:1/200s"),
        (
            "token-bucket:5/1s:burst=20:refill=interval",
            (2, 4),
            "token-bucket:5/2s:burst=10:refill=interval",
        ),
    ] {
        let share = Share::of(part, whole).unwrap();
        let part = policy.parse::<Policy>().unwrap().share(share);
        assert_eq!(part, expected.parse().unwrap(), "{policy} {share:?}: {part}");
    }
}

#[test]
fn share_outside_its_domain_is_rejected() {
    assert!(Share::of(0, 4).is_err() && Share::of(5, 4).is_err() && Share::of(0, 0).is_err());
    assert_eq!(Share::of(1, 4).unwrap().used(9), 3);
}
