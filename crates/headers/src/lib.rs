//! Rate limits in HTTP: the response headers of draft-ietf-httpapi-ratelimit-headers-11, `X-RateLimit-*` and `Retry-After`,
//! the problem document (RFC 9457) of a rejection, and the client address and paths of requests.
//!
//! All protocols and middleware over HTTP use these. Spans are whole seconds, rounded up, so that a client that waits is
//! never early.
//!
//! ```
//! use sluicegate_core::{Operation, Policy, Timestamp, apply};
//! use sluicegate_headers::{RateLimitHeaders, retry_after};
//!
//! let policy: Policy = "gcra:30/60s:burst=16".parse()?;
//! let headers = RateLimitHeaders::new("login", &policy);
//! assert_eq!(headers.policy(), r#""login";q=30;w=60"#);
//!
//! let mut entry = None;
//! let taken = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(16))?;
//! assert_eq!(headers.rate_limit(&taken), r#""login";r=0;t=2"#);
//! let denied = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1))?;
//! assert_eq!(retry_after(&denied), Some(2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod forwarded;
mod network;
mod path_options;
mod problem;
mod rate_limit_headers;
mod target;

pub use forwarded::{AddressList, address};
pub use network::Network;
pub use path_options::PathOptions;
pub use problem::{ProblemDocument, ProblemType, problem};
pub use rate_limit_headers::{HeaderStyle, RateLimitHeaders, reset_after};
pub use target::{Others, Reading, Readings, canonical_path, unescaped};

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use sluicegate_core::{Decision, Retry, whole_seconds};

/// The header with the policies: `RateLimit-Policy`.
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The header with the remaining units: `RateLimit`.
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The capacity of the binding limit.
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// The number of requests of cost 1 that would still pass.
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Seconds until the binding limit has its full quota: a span, not a point in time.
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The greatest integer of a structured field (RFC 9651): 15 digits.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A span in whole seconds, rounded up, at most 999 999 999 999 999.
#[must_use]
pub fn seconds(span: Duration) -> u64 {
    whole_seconds(span).min(MAX_INTEGER)
}

/// The value of `Retry-After`: whole seconds, rounded up, at least 1. `None` if the request is allowed, and if it can
/// never succeed.
#[must_use]
pub fn retry_after(decision: &Decision) -> Option<u64> {
    match decision.retry() {
        Some(Retry::After(wait)) => Some(seconds(wait).max(1)),
        Some(Retry::Never) | None => None,
    }
}

/// A number as the value of a header. Its digits are copied at their exact length; those of `HeaderValue::from(number)` have
/// spare capacity, which costs a second allocation.
#[must_use]
pub fn integer(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits are printable ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_is_written_in_decimal() {
        for number in [0, 7, 1024, u64::MAX] {
            assert_eq!(integer(number), HeaderValue::from(number));
        }
    }

    #[test]
    fn seconds_round_up() {
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
        assert_eq!(seconds(Duration::MAX - Duration::from_secs(1)), MAX_INTEGER);
    }
}
