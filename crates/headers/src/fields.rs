//! `RateLimit-Policy` and `RateLimit`: lists of strings with parameters (RFC 9651).

use std::time::Duration;

use http::HeaderValue;
use sluicegate_core::{CalendarUnit, Decision, Limit, Policy, Window};
use smallvec::SmallVec;

use crate::{GREATEST, more::more_after, retry_after};

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
            let (quota, window) = quota(limit);
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

/// How many units come in which time.
fn quota(limit: &Limit) -> (u32, Option<Duration>) {
    let day = Duration::from_hours(24);
    match limit {
        Limit::Gcra(gcra) if gcra.burst() > gcra.limit() => {
            let micros = gcra.period().as_micros() * u128::from(gcra.burst());
            let whole = micros % u128::from(gcra.limit()) == 0;
            let micros = u64::try_from(micros / u128::from(gcra.limit())).ok();
            (gcra.burst(), micros.filter(|_| whole).map(Duration::from_micros))
        }
        Limit::Gcra(gcra) => (gcra.limit(), Some(gcra.period())),
        Limit::IntervalBucket(bucket) if bucket.burst() > bucket.limit() => {
            let steps = bucket.burst().div_ceil(bucket.limit());
            (bucket.burst(), bucket.period().checked_mul(steps))
        }
        Limit::IntervalBucket(bucket) => (bucket.limit(), Some(bucket.period())),
        Limit::FixedWindow(window) => match window.window() {
            Window::Span { period, .. } => (window.limit(), Some(period)),
            Window::Calendar { unit, .. } => {
                let length = match unit {
                    CalendarUnit::Day => Some(day),
                    CalendarUnit::Week => Some(day * 7),
                    // Not two are alike.
                    CalendarUnit::Month | CalendarUnit::Year => None,
                };
                (window.limit(), length)
            }
        },
        Limit::SlidingLog(log) => (log.limit(), Some(log.period())),
        Limit::SlidingCounter(counter) => (counter.limit(), Some(counter.period())),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Timestamp, apply};

    use super::*;

    fn fields(policy: &str) -> Fields {
        Fields::new("p", &policy.parse().unwrap())
    }

    #[test]
    fn policies_are_told_with_their_quota_and_window() {
        for (policy, text) in [
            ("gcra:30/60s", r#""p";q=30;w=60"#),
            ("gcra:30/60s:burst=16", r#""p";q=30;w=60"#),
            ("gcra:5/10s:burst=50", r#""p";q=50;w=100"#),
            ("gcra:7/10s:burst=8", r#""p";q=8"#),
            ("leaky-queue:10/500ms", r#""p";q=10"#),
            ("fixed-window:10/1500ms", r#""p";q=10"#),
            ("fixed-window:10/day:tz=Europe/Paris", r#""p";q=10;w=86400"#),
            ("fixed-window:10/week", r#""p";q=10;w=604800"#),
            ("fixed-window:10/month", r#""p";q=10"#),
            ("token-bucket:10/1s:burst=25:refill=interval", r#""p";q=25;w=3"#),
            ("token-bucket:10/1s:refill=interval", r#""p";q=10;w=1"#),
            ("sliding-counter:4294967295/366d", r#""p";q=4294967295;w=31622400"#),
            ("gcra:10/1s,sliding-log:1000/1h", r#""p-1";q=10;w=1, "p-2";q=1000;w=3600"#),
        ] {
            assert_eq!(fields(policy).policy(), text, "{policy}");
        }
    }

    #[test]
    fn any_name_makes_a_field() {
        let policy = "gcra:1/1s".parse().unwrap();
        assert_eq!(Fields::new("a\"b\\c\nd\u{e9}", &policy).policy(), r#""a\"b\\c?d?";q=1;w=1"#);
        assert_eq!(Fields::new("", &policy).policy(), r#""";q=1;w=1"#);
    }

    #[test]
    fn what_remains_is_told_of_the_limit_that_binds() {
        let policy: Policy = "gcra:10/1s,sliding-log:12/1h".parse().unwrap();
        let (fields, mut entry) = (Fields::new("p", &policy), None);
        let mut take = |cost| {
            let operation = Operation::Take(cost);
            fields.rate_limit(&apply(&policy, &mut entry, Timestamp::EPOCH, operation).unwrap())
        };
        assert_eq!(take(3), r#""p-1";r=7"#);
        assert_eq!(take(6), r#""p-1";r=1"#);
        assert_eq!(take(5), r#""p-2";r=1;t=3600"#);
        assert_eq!(take(13), r#""p-1";r=1"#);
    }
}
