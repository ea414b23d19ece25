//! The text form of a policy: what is written reads back, what is wrong is told.

use proptest::prelude::*;
use sluicegate_core::Policy;

use super::{CHANGING, histories};

#[test]
fn the_canonical_form_is_the_shortest() {
    for (text, canonical) in [
        ("gcra:30/60s:burst=16", "gcra:30/1m:burst=16"),
        ("gcra:30/60s:capacity=30", "gcra:30/1m"),
        ("gcra:1/s:borrow", "gcra:1/1s:borrow"),
        (
            "token-bucket:10/1s:refill=interval:burst=20",
            "token-bucket:10/1s:burst=20:refill=interval",
        ),
        ("token-bucket:10/1000ms:refill=continuous", "token-bucket:10/1s"),
        ("token-bucket:10/1s:refill=interval:borrow", "token-bucket:10/1s:borrow:refill=interval"),
        ("leaky-bucket:5/min:burst=6", "leaky-bucket:5/1m:capacity=6"),
        ("leaky-queue:5/1s:capacity=20", "leaky-queue:5/1s:capacity=20"),
        ("fixed-window:100/60s:align=clock:count=all", "fixed-window:100/1m:align=clock:count=all"),
        ("fixed-window:100/60s:count=allowed:align=first", "fixed-window:100/1m"),
        ("fixed-window:10000/month:tz=asia/shanghai", "fixed-window:10000/month:tz=Asia/Shanghai"),
        ("fixed-window:1/week:tz=UTC:align=clock", "fixed-window:1/week"),
        ("sliding-log:30/1m:keep=60m:count=all", "sliding-log:30/1m:count=all:keep=1h"),
        ("sliding-log:30/1m:keep=1h:keep-max=1800", "sliding-log:30/1m:keep=1h"),
        ("sliding-log:30/1m:keep=1h:keep-max=99", "sliding-log:30/1m:keep=1h:keep-max=99"),
        ("sliding-counter:1000/1500us", "sliding-counter:1000/1500us"),
        ("gcra:1/1s,gcra:2/168h,gcra:3/48h", "gcra:1/1s,gcra:2/1w,gcra:3/2d"),
    ] {
        let policy: Policy = text.parse().unwrap();
        assert_eq!(policy.to_string(), canonical);
        assert_eq!(canonical.parse(), Ok(policy));
    }
}

#[test]
fn errors_point_at_the_part_and_say_what_would_do() {
    for (text, error) in [
        ("", "limit `` has no rate; `gcra:30/60s` would do (limit 1, at byte 0)"),
        ("gcra:30", "rate `30` is not N/PERIOD, as `30/60s` (limit 1, at byte 5)"),
        ("gcra:0/1s", "limit `0` is outside 1..=4294967295 (limit 1, at byte 5)"),
        ("gcra:4294967296/1s", "limit `4294967296` is outside 1..=4294967295 (limit 1, at byte 5)"),
        ("gcra:-1/1s", "limit `-1` is not a whole number of units (limit 1, at byte 5)"),
        ("gcra:1/999us", "period `999us` is outside 1ms..=366d (limit 1, at byte 7)"),
        ("gcra:1/53w", "period `53w` is outside 1ms..=366d (limit 1, at byte 7)"),
        ("gcra:1/1s:burst=0", "burst `0` is outside 1..=4294967295 (limit 1, at byte 16)"),
        (
            "leaky-queue:1/1s:burst=0",
            "capacity `0` is outside 1..=4294967295 (limit 1, at byte 23)",
        ),
        (
            "gcra:1/1s,gcra:1/366d:burst=100",
            "burst `100` would take more than 2^50us (35 years) to drain; a lower burst, a higher \
             limit or a shorter period would do (limit 2, at byte 28)",
        ),
        (
            "gcra:1/1s:keep=1h",
            "gcra has no option `keep`; it knows borrow, burst (limit 1, at byte 10)",
        ),
        ("gcra:1/1s:", "gcra has no option ``; it knows borrow, burst (limit 1, at byte 10)"),
        ("gcra:1/1s:burst=2:burst=2", "option `burst` is given twice (limit 1, at byte 18)"),
        ("gcra:1/1s:burst=2:capacity=3", "option `burst` is given twice (limit 1, at byte 18)"),
        ("gcra:1/1s:burst", "option `burst` needs a value, as `burst=...` (limit 1, at byte 10)"),
        ("gcra:1/1s:borrow=yes", "option `borrow` takes no value (limit 1, at byte 10)"),
        (
            "leaky-queue:1/1s:borrow",
            "leaky-queue has no option `borrow`; it knows capacity (limit 1, at byte 17)",
        ),
        (
            "sliding-log:1/1s:count=some",
            "count `some` is unknown; `count=allowed` or `count=all` would do (limit 1, at byte 23)",
        ),
        (
            "sliding-log:1/1s:keep-max=2",
            "`keep-max` needs `keep`, as `keep=1h` (limit 1, at byte 26)",
        ),
        (
            "sliding-log:1/1s:keep=1h:keep-max=1048577",
            "keep-max `1048577` is outside 1..=1048576 (limit 1, at byte 34)",
        ),
        (
            "sliding-log:5/day",
            "period `day` is not a period; one like `250ms`, `60s`, `1m`, `2h`, `1d`, `1w` would \
             do; `day`, `week`, `month` and `year` stand alone, as the period of a fixed-window \
             (limit 1, at byte 14)",
        ),
        (
            "fixed-window:1/day:tz=Mars",
            "time zone `Mars` is unknown; a name of the IANA database would do, as \
             `Asia/Shanghai` (limit 1, at byte 22)",
        ),
        (
            "fixed-window:1/1d:tz=UTC",
            "`tz` needs a period of the calendar; `day`, `week`, `month` or `year` instead of \
             `1d` would do (limit 1, at byte 21)",
        ),
        ("1/1s", "limit `1/1s` has no rate; `gcra:30/60s` would do (limit 1, at byte 0)"),
        (
            "gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,x",
            "a policy has at most 8 limits (limit 9, at byte 80)",
        ),
    ] {
        assert_eq!(text.parse::<Policy>().unwrap_err().to_string(), error, "{text}");
    }
}

proptest! {
    #![proptest_config(super::cases(256))]

    #[test]
    fn what_is_written_reads_back(history in histories(CHANGING)) {
        for step in history.0 {
            prop_assert_eq!(step.policy.to_string().parse(), Ok(step.policy));
        }
    }
}
