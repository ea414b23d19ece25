//! The text form of a policy: a policy that is written is read back, and an error names what is wrong.

use std::collections::HashSet;

use proptest::prelude::*;
use sluicegate_core::Policy;

use super::{CHANGING, histories};

#[test]
fn policy_text_canonical_form_is_the_shortest() {
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
        ("GCRA:30/1Minute:BURST=16:Borrow", "gcra:30/1m:borrow:burst=16"),
        ("Fixed-Window:5/1hr:ALIGN=Clock:count=ALL", "fixed-window:5/1h:align=clock:count=all"),
        ("fixed-window:5/DAY", "fixed-window:5/day"),
        ("fixed-window:5/1day", "fixed-window:5/1d"),
        ("sliding-log:5/2hours:keep=1day", "sliding-log:5/2h:keep=1d"),
    ] {
        let policy: Policy = text.parse().unwrap();
        assert_eq!(policy.to_string(), canonical);
        assert_eq!(canonical.parse(), Ok(policy));
    }
}

#[test]
fn policy_hash_is_equal_for_equal_policies() {
    let set: HashSet<Policy> = [
        "gcra:30/60s:burst=16,fixed-window:5/day:tz=europe/paris",
        "gcra:30/1m:burst=16,fixed-window:5/day:tz=Europe/Paris",
        "gcra:30/1m:burst=17,fixed-window:5/day:tz=Europe/Paris",
    ]
    .iter()
    .map(|text| text.parse().unwrap())
    .collect();
    assert_eq!(set.len(), 2);
}

proptest! {
    #![proptest_config(super::cases(256))]

    #[test]
    fn policy_text_is_parsed_to_the_same_policy(history in histories(CHANGING)) {
        for step in history.0 {
            prop_assert_eq!(step.policy.to_string().parse(), Ok(step.policy));
        }
    }
}
