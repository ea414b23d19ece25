use super::*;

#[test]
fn bound_is_the_limit_and_of_a_bucket_the_burst_as_well() {
    for (policy, units) in [
        ("fixed-window:100/1m", 100),
        ("sliding-log:100/1m", 100),
        ("sliding-counter:100/1m", 100),
        ("gcra:60/1m:burst=20", 79),
        ("gcra:60/1m", 119),
        ("gcra:60/1m:burst=1", 60),
        ("token-bucket:10/1s:burst=20:refill=interval", 29),
        ("leaky-bucket:5/1s:capacity=20", 24),
        ("leaky-queue:5/1s:capacity=20", 5),
    ] {
        assert_eq!(Bound::of(&policy.parse().unwrap())[0].units(), units, "{policy}");
    }
}
