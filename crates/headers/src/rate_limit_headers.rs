//! `RateLimit-Policy` and `RateLimit`: lists of strings with parameters (RFC 9651).

use http::HeaderValue;
use sluicegate_core::{Decision, Limit, Policy};
use smallvec::SmallVec;

use crate::{GREATEST, retry_after, seconds};

/// A policy with its name, as the fields of a response tell it. Made once, and kept.
///
/// A policy of several limits is told as several, `name-1`, `name-2` and so on in the order in which they
/// are written.
#[derive(Clone, Debug)]
pub struct Fields {
    policy: Policy,
    /// The whole of `RateLimit-Policy`.
    header: HeaderValue,
    /// The name of each limit, in quotes.
    names: Vec<String>,
}

impl Fields {
    /// The fields of `policy` under a name: printable ASCII; any other character is told as `?`.
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
            // A window of no whole number of seconds is left out, rather than told wrong.
            match window.filter(|window| window.subsec_nanos() == 0) {
                Some(window) => format!("{name};q={quota};w={}", window.as_secs()),
                None => format!("{name};q={quota}"),
            }
        };
        let items: Vec<_> = names.iter().zip(limits).map(item).collect();
        Self { header: value(items.join(", ").as_bytes()), names, policy: policy.clone() }
    }

    /// The value of `RateLimit-Policy`: of each limit its name, `q` units, and the `w` seconds in which
    /// they come, where that is a whole number.
    ///
    /// A limit of the gcra family is told as written, `N` units in `P`; but where its burst is larger, as
    /// the burst in the time that it takes to come back.
    #[must_use]
    pub fn policy(&self) -> &HeaderValue {
        &self.header
    }

    /// The value of `RateLimit`: of the limit that binds its name, the `r` units that remain, and after how
    /// many seconds `t` there are more, where that is known.
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
            text.extend_from_slice(number.format(seconds.min(GREATEST)).as_bytes());
        }
        value(&text)
    }

    /// The name of the limit that binds, in quotes: a string of structured fields, and of JSON too.
    #[must_use]
    pub fn quoted_name(&self, decision: &Decision) -> &str {
        self.names.get(decision.binding).map_or("\"\"", String::as_str)
    }
}

/// Copied at its exact length: a text that has room behind it would be kept with a count of its owners.
fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).expect("fields are printable ASCII")
}

/// A string of structured fields.
fn quoted(name: &str) -> String {
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

/// Whole seconds until more is available than now; `None` where all is available, and where the decision does
/// not determine it.
fn more_after(policy: &Policy, decision: &Decision) -> Option<u64> {
    // Of several limits, `reset_after` is that of the slowest, and not of the binding one.
    let [limit] = policy.limits() else { return None };
    limit.more_after(decision).map(seconds)
}

#[cfg(test)]
mod tests;
