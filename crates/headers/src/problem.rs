//! The body of a rejection: a problem document (RFC 9457) of the types that the draft registers.

use std::fmt;

use sluicegate_core::{Decision, Retry};

use crate::{RateLimitHeaders, retry_after};

/// Type of a problem document: the reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemType {
    /// The quota is exhausted.
    QuotaExceeded,
    /// No decision was possible: the store is unavailable.
    ReducedCapacity,
}

impl ProblemType {
    /// The media type.
    pub const MEDIA_TYPE: &str = "application/problem+json";

    /// The status: 429 or 503.
    #[must_use]
    pub const fn status(self) -> u16 {
        self.parts().0
    }

    /// The URI of its type.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        self.parts().1
    }

    /// Its title, for humans.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.parts().2
    }

    /// Status, type and title.
    const fn parts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::QuotaExceeded => (
                429,
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Too many requests",
            ),
            Self::ReducedCapacity => (
                503,
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Rate limit unavailable",
            ),
        }
    }

    /// The members that every problem has, without the braces.
    fn members(self) -> impl fmt::Display {
        let (status, kind, title) = self.parts();
        fmt::from_fn(move |text| {
            write!(text, r#""type":"{kind}","title":"{title}","status":{status}"#)
        })
    }

    /// The problem as JSON, without further members.
    #[must_use]
    pub fn json(self) -> String {
        format!("{{{}}}", self.members())
    }
}

/// The problem of a denial as JSON, with the policy that denied the request, and when to retry.
///
/// ```
/// use sluicegate_core::{Operation, Policy, Timestamp, apply};
/// use sluicegate_headers::{RateLimitHeaders, problem};
///
/// let policy: Policy = "fixed-window:1/60s".parse()?;
/// let never = apply(&policy, &mut None, Timestamp::EPOCH, Operation::Take(2))?;
/// assert_eq!(
///     problem(&RateLimitHeaders::new("login", &policy), &never),
///     concat!(
///         r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
///         r#""title":"Too many requests","status":429,"#,
///         r#""detail":"The cost exceeds the limit: this request can never be allowed.","#,
///         r#""violated-policies":["login"]}"#,
///     )
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn problem(headers: &RateLimitHeaders, denied: &Decision) -> String {
    let members = ProblemType::QuotaExceeded.members();
    let (detail, name) = (detail(denied), headers.quoted_name(denied));
    format!(r#"{{{members},"detail":"{detail}","violated-policies":[{name}]}}"#)
}

/// The member `detail` of a denial. It needs no escapes in JSON.
fn detail(denied: &Decision) -> impl fmt::Display {
    fmt::from_fn(|text| {
        if denied.retry() == Some(Retry::Never) {
            return text
                .write_str("The cost exceeds the limit: this request can never be allowed.");
        }
        let seconds = retry_after(denied).unwrap_or_default();
        let unit = if seconds == 1 { "second" } else { "seconds" };
        write!(text, "Retry after {seconds} {unit}.")
    })
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Policy, Timestamp, apply};

    use super::*;

    #[test]
    fn detail_seconds_agree_in_number() {
        for (policy, expected) in [
            ("gcra:1/1ms", "Retry after 1 second."),
            ("gcra:1/1s", "Retry after 1 second."),
            ("gcra:1/1001ms", "Retry after 2 seconds."),
        ] {
            let policy: Policy = policy.parse().unwrap();
            let mut entry = None;
            let mut take =
                || apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1)).unwrap();
            assert!(take().allowed());
            assert_eq!(detail(&take()).to_string(), expected);
        }
    }
}
