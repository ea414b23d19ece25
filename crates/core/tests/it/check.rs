//! Checks for any bytes that are read as a policy or as the state of a key. Fuzz targets and tests run them.

use std::time::Duration;

use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};

/// Any bytes as the text of a policy: an error, or a policy that its own text reads back to.
///
/// # Panics
/// Where that does not hold.
pub(crate) fn check_policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Policy>() {
        Ok(policy) => {
            let canonical = policy.to_string();
            assert_eq!(canonical.parse().as_ref(), Ok(&policy), "{canonical}");
            exercise(&policy, None);
        }
        Err(error) => {
            assert!(error.offset() <= text.len(), "{error}");
            assert!(!error.message().is_empty());
        }
    }
}

/// Any bytes as the state of a key: an error, or a state that is written and decided with.
///
/// # Panics
/// Where that does not hold.
pub(crate) fn check_state(data: &[u8]) {
    let Ok(entry) = Entry::decode(data) else { return };
    assert_eq!(Entry::decode(&entry.encode()).as_ref(), Ok(&entry));
    let policies =
        ["gcra:7/60s", "sliding-log:3/1s:count=all,sliding-counter:5/1m,fixed-window:2/day"];
    exercise(entry.policy(), Some(&entry));
    for text in policies {
        exercise(&text.parse().expect("a policy"), Some(&entry));
    }
}

/// Every operation at the edges of every domain.
fn exercise(policy: &Policy, entry: Option<&Entry>) {
    for micros in [0, 1 << 51, Timestamp::MAX.as_micros()] {
        let now = Timestamp::saturating_from_micros(micros);
        for cost in [0, 1, u32::MAX] {
            let max_wait = Duration::from_micros(u64::from(cost));
            for operation in [
                Operation::Peek(cost),
                Operation::Take(cost),
                Operation::Charge(cost),
                Operation::Refund(cost),
                Operation::Reserve { cost, max_wait },
            ] {
                let mut entry = entry.cloned();
                if let Ok(decision) = apply(policy, &mut entry, now, operation) {
                    assert!(decision.remaining <= decision.limit);
                    let again = apply(policy, &mut entry, now, Operation::Peek(0));
                    let again = again.expect("a peek is never an error");
                    assert_eq!(again.reset_after, decision.reset_after);
                }
            }
        }
    }
}
