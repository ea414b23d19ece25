//! The body of a rejection: a problem document (RFC 9457). All of them have the same writer, [`ProblemDocument`].

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use sluicegate_core::{Decision, Retry};

use crate::{RateLimitHeaders, rate_limit_headers::quoted, retry_after};

/// Type of a problem document: the reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemType {
    /// The quota is exhausted.
    QuotaExceeded,
    /// No decision was possible: the store is unavailable.
    ReducedCapacity,
    /// A rule blocks the request.
    Blocked,
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
            Self::Blocked => (
                429,
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
                "Blocked",
            ),
        }
    }

    /// The problem, without further members.
    #[must_use]
    pub const fn document(self) -> ProblemDocument<'static> {
        let (status, kind, title) = self.parts();
        ProblemDocument { kind, title, status, detail: None, violated_policy: None }
    }

    /// The problem as JSON, without further members.
    #[must_use]
    pub fn json(self) -> String {
        self.document().to_string()
    }
}

/// A problem document. Its [`Display`](fmt::Display) is the JSON, without spaces and with its members in the order of the
/// fields.
///
/// ```
/// use sluicegate_headers::ProblemType;
///
/// let problem = ProblemType::Blocked.document();
/// assert_eq!(
///     problem.with_detail(format_args!("{:?} is blocked", "user7")).to_string(),
///     concat!(
///         r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","#,
///         r#""title":"Blocked","status":429,"detail":"\"user7\" is blocked"}"#,
///     )
/// );
/// ```
#[derive(Clone, Debug)]
pub struct ProblemDocument<'a> {
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: Option<fmt::Arguments<'a>>,
    /// The name of the policy, quoted.
    violated_policy: Option<Cow<'a, str>>,
}

impl<'a> ProblemDocument<'a> {
    /// A problem of the type with the URI `kind`. Neither it nor the title may need escapes in JSON.
    #[must_use]
    pub const fn new(kind: &'a str, title: &'a str, status: u16) -> Self {
        Self { kind, title, status, detail: None, violated_policy: None }
    }

    /// The same with another status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Adds the explanation of this occurrence.
    #[must_use]
    pub fn with_detail(self, detail: fmt::Arguments<'a>) -> Self {
        Self { detail: Some(detail), ..self }
    }

    /// Adds the policy or rule that denied the request. Characters outside of printable ASCII become `?`, as in headers.
    #[must_use]
    pub fn with_violated_policy(self, name: &str) -> Self {
        Self { violated_policy: Some(Cow::Owned(quoted(name))), ..self }
    }
}

impl fmt::Display for ProblemDocument<'_> {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, title, status, detail, violated_policy } = self;
        write!(text, r#"{{"type":"{kind}","title":"{title}","status":{status}"#)?;
        if let Some(detail) = detail {
            text.write_str(r#","detail":""#)?;
            Escaped(text).write_fmt(*detail)?;
            text.write_char('"')?;
        }
        if let Some(name) = violated_policy {
            // Quoted as a string of structured fields, whose escapes are those of JSON.
            write!(text, r#","violated-policies":[{name}]"#)?;
        }
        text.write_char('}')
    }
}

/// Writes the inside of a JSON string.
struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        let is_special = |char: char| char < ' ' || char == '"' || char == '\\';
        while let Some(at) = text.find(is_special) {
            self.0.write_str(&text[..at])?;
            match text.as_bytes()[at] {
                b'\n' => self.0.write_str("\\n")?,
                b'\r' => self.0.write_str("\\r")?,
                b'\t' => self.0.write_str("\\t")?,
                8 => self.0.write_str("\\b")?,
                12 => self.0.write_str("\\f")?,
                byte if byte < b' ' => write!(self.0, "\\u{byte:04x}")?,
                byte => write!(self.0, "\\{}", char::from(byte))?,
            }
            text = &text[at + 1..];
        }
        self.0.write_str(text)
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
    let name = Some(Cow::Borrowed(headers.quoted_name(denied)));
    let document =
        ProblemDocument { violated_policy: name, ..ProblemType::QuotaExceeded.document() };
    document.with_detail(format_args!("{}", detail(denied))).to_string()
}

/// The member `detail` of a denial.
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
    fn problem_document_strings_are_escaped() {
        for (detail, escaped) in [
            ("", ""),
            ("a `b`: é", "a `b`: é"),
            ("\"a\\", r#"\"a\\"#),
            ("\n\r\t\u{8}\u{c}", r"\n\r\t\b\f"),
            ("\u{0}é\u{1f}\u{7f}", "\\u0000é\\u001f\u{7f}"),
        ] {
            let expected = format!(
                r#"{{"type":"about:blank","title":"Bad Request","status":400,"detail":"{escaped}","violated-policies":["a\"?"]}}"#
            );
            let problem = ProblemDocument::new("about:blank", "Bad Request", 400);
            let problem = problem.with_violated_policy("a\"é");
            assert_eq!(problem.with_detail(format_args!("{detail}")).to_string(), expected);
        }
    }

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
