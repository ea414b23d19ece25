//! What an HTTP response says of a rate limit: the fields of
//! draft-ietf-httpapi-ratelimit-headers-11, `X-RateLimit-*`, `Retry-After`, and the problem (RFC 9457) that
//! is the body of a refusal.
//!
//! Every face that speaks HTTP takes its words from here. Spans are whole seconds, rounded up, so that who
//! waits as told is not denied.
//!
//! ```
//! use sluicegate_core::{Operation, Policy, Timestamp, apply};
//! use sluicegate_headers::{Fields, retry_after};
//!
//! let policy: Policy = "gcra:30/60s:burst=16".parse()?;
//! let fields = Fields::new("login", &policy);
//! assert_eq!(fields.policy(), r#""login";q=30;w=60"#);
//!
//! let mut entry = None;
//! let taken = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(16))?;
//! assert_eq!(fields.rate_limit(&taken), r#""login";r=0;t=2"#);
//! let denied = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1))?;
//! assert_eq!(retry_after(&denied), Some(2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fields;
mod forwarded;
mod path_options;
mod problem;
mod target;

pub use fields::Fields;
pub use forwarded::AddressList;
pub use path_options::PathOptions;
pub use problem::{Detail, Problem, problem};
pub use target::{Others, Reading, Readings, canonical_path};

use std::time::Duration;

use http::HeaderName;
use sluicegate_core::{Decision, Retry};

/// The field with the policies: `RateLimit-Policy`.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The field with what is left: `RateLimit`.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The capacity of the limit that binds.
pub const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// How many requests of cost 1 would still pass.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds, as Envoy counts them and not a point in time, until all is as if never used.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The greatest integer of a structured field (RFC 9651): 15 digits.
const GREATEST: u64 = 999_999_999_999_999;

/// A span in whole seconds, rounded up.
#[must_use]
pub fn seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).min(GREATEST)
}

/// The value of `Retry-After`: whole seconds, rounded up, at least 1. `None` where the request passed, and
/// where it never would.
#[must_use]
pub fn retry_after(decision: &Decision) -> Option<u64> {
    match decision.retry() {
        Some(Retry::After(wait)) => Some(seconds(wait).max(1)),
        Some(Retry::Never) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        for (micros, expected) in [
            (0, 0),
            (1, 1),
            (999_999, 1),
            (1_000_000, 1),
            (1_000_001, 2),
            (u64::MAX, 18_446_744_073_710),
        ] {
            assert_eq!(seconds(Duration::from_micros(micros)), expected, "{micros}");
        }
        assert_eq!(seconds(Duration::MAX - Duration::from_secs(1)), GREATEST);
    }
}
