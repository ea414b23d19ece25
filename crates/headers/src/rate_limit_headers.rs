//! `RateLimit-Policy` and `RateLimit`: lists of strings with parameters (RFC 9651).

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use sluicegate_core::{Decision, Limit, Policy};
use smallvec::SmallVec;

use crate::{
    MAX_INTEGER, RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING,
    X_RATELIMIT_RESET, integer, retry_after, seconds,
};

/// Which rate limit headers responses have. A denial has `Retry-After` with each of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11. Middleware adds them to those of
    /// an inner layer.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` in seconds from now. Middleware keeps those of
    /// an inner layer instead.
    XRateLimit,
    /// No headers.
    None,
}

/// The headers of responses about one named policy. Create them once.
///
/// The limits of a policy with several are named `name-1`, `name-2` and so on, in the order written.
#[derive(Clone, Debug)]
pub struct RateLimitHeaders {
    policy: Policy,
    /// The value of `RateLimit-Policy`.
    header: HeaderValue,
    /// The name of each limit, in quotes.
    names: Vec<String>,
}

impl RateLimitHeaders {
    /// The headers of `policy` under a name in printable ASCII; any other character becomes `?`.
    #[must_use]
    pub fn new(name: &str, policy: &Policy) -> Self {
        let limits = policy.limits();
        let name_of = |place: usize| match limits.len() {
            1 => quoted(name),
            _ => quoted(&format!("{name}-{}", place + 1)),
        };
        let names: Vec<_> = (0..limits.len()).map(name_of).collect();
        let item = |(name, limit): (&String, &Limit)| {
            let (quota, window) = limit.quota();
            if limit.counts_holds() {
                return format!("{name};q={quota};qu=\"concurrent-requests\"");
            }
            // Only whole seconds can be written.
            match window.filter(|window| window.subsec_nanos() == 0) {
                Some(window) => format!("{name};q={quota};w={}", window.as_secs()),
                None => format!("{name};q={quota}"),
            }
        };
        let items: Vec<_> = names.iter().zip(limits).map(item).collect();
        Self { header: value(items.join(", ").as_bytes()), names, policy: policy.clone() }
    }

    /// Passes the headers of `decision` to `write`, by name and value. `Retry-After` is not one of them: of several keys it is that
    /// of the whole decision, and these are those of the binding key.
    #[inline]
    pub fn write(
        &self,
        style: HeaderStyle,
        decision: &Decision,
        mut write: impl FnMut(HeaderName, HeaderValue),
    ) {
        match style {
            HeaderStyle::Ietf => {
                write(RATELIMIT_POLICY, self.header.clone());
                write(RATELIMIT, self.rate_limit(decision));
            }
            HeaderStyle::XRateLimit => {
                write(X_RATELIMIT_LIMIT, integer(decision.limit.into()));
                write(X_RATELIMIT_REMAINING, integer(decision.remaining.into()));
                write(X_RATELIMIT_RESET, integer(self.reset(decision)));
            }
            HeaderStyle::None => {}
        }
    }

    /// The value of `RateLimit-Policy`: the name of each limit, its quota of `q` units, and its window of `w` seconds if
    /// that is a whole number. A `concurrency` limit has no window, and the quota unit `qu="concurrent-requests"`.
    ///
    /// The quota of the gcra family is `N` units in `P`, or the burst, if that is larger, in the time in which it recovers.
    #[must_use]
    pub fn policy(&self) -> &HeaderValue {
        &self.header
    }

    /// The value of `RateLimit`: the name of the binding limit, the `r` remaining units, and the `t` seconds until more
    /// are available, if that is known.
    #[must_use]
    pub fn rate_limit(&self, decision: &Decision) -> HeaderValue {
        let mut text = SmallVec::<[u8; 96]>::new();
        let mut number = itoa::Buffer::new();
        text.extend_from_slice(self.quoted_name(decision).as_bytes());
        text.extend_from_slice(b";r=");
        text.extend_from_slice(number.format(decision.remaining).as_bytes());
        let after = if decision.allowed() {
            more_after(&self.policy, decision)
        } else {
            retry_after(decision)
        };
        if let Some(seconds) = after {
            text.extend_from_slice(b";t=");
            text.extend_from_slice(number.format(seconds.min(MAX_INTEGER)).as_bytes());
        }
        value(&text)
    }

    /// The value of `X-RateLimit-Reset`: seconds until the binding limit has its full quota, as [`reset_after`].
    #[must_use]
    pub fn reset(&self, decision: &Decision) -> u64 {
        seconds(reset_after(&self.policy, decision))
    }

    /// The name of the binding limit in quotes: a string of structured fields, and of JSON.
    pub(crate) fn quoted_name(&self, decision: &Decision) -> &str {
        self.names.get(decision.binding).map_or("\"\"", String::as_str)
    }
}

/// Time until the binding limit of `policy` has its full quota: with `limit` and `remaining` of the decision, a field
/// about one limit. [`Decision::reset_after`] is that of the slowest limit, which may be another one.
#[must_use]
pub fn reset_after(policy: &Policy, decision: &Decision) -> Duration {
    match policy.limits() {
        [_] => decision.reset_after,
        limits => limits
            .get(decision.binding)
            .map_or(decision.reset_after, |it| it.binding_reset_after(decision)),
    }
}

/// Copied at its exact length: text with spare capacity would get a count of its owners.
fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("headers are printable ASCII")
}

/// A string of structured fields.
pub(crate) fn quoted(name: &str) -> String {
    let mut text = String::from("\"");
    for char in name.chars() {
        match char {
            '"' | '\\' => text.extend(['\\', char]),
            ' '..='~' => text.push(char),
            _ => text.push('?'),
        }
    }
    text + "\""
}

/// Whole seconds until more units are available; `None` if all are available, or if the decision does not determine it.
fn more_after(policy: &Policy, decision: &Decision) -> Option<u64> {
    // Of several limits, `reset_after` is that of the slowest, and not of the binding one.
    let [limit] = policy.limits() else { return None };
    limit.more_after(decision).map(seconds)
}

#[cfg(test)]
mod tests;
