//! The body of a refusal: a problem (RFC 9457) of the types that the draft registers.

use sluicegate_core::{Decision, Retry};

use crate::{Fields, retry_after};

/// Why a request does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// There is no quota left for it.
    QuotaExceeded,
    /// Nobody could tell: the store is away.
    ReducedCapacity,
}

impl Problem {
    /// The media type.
    pub const MEDIA_TYPE: &str = "application/problem+json";

    /// The status: 429 or 503.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::QuotaExceeded => 429,
            Self::ReducedCapacity => 503,
        }
    }

    /// The URI of its type.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
        }
    }

    /// What it is, for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Too many requests",
            Self::ReducedCapacity => "The rate limit cannot be decided now",
        }
    }

    /// The members that every problem has, without the braces.
    fn members(self) -> String {
        let (kind, title, status) = (self.kind(), self.title(), self.status());
        format!(r#""type":"{kind}","title":"{title}","status":{status}"#)
    }

    /// The problem as JSON, where there is nothing more to tell.
    #[must_use]
    pub fn json(self) -> String {
        format!("{{{}}}", self.members())
    }
}

/// The problem of a denial as JSON, with the policy that it broke, and when to come again.
///
/// ```
/// use sluicegate_core::{Operation, Policy, Timestamp, apply};
/// use sluicegate_headers::{Fields, problem};
///
/// let policy: Policy = "fixed-window:1/60s".parse()?;
/// let never = apply(&policy, &mut None, Timestamp::EPOCH, Operation::Take(2))?;
/// assert_eq!(
///     problem(&Fields::new("login", &policy), &never),
///     concat!(
///         r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
///         r#""title":"Too many requests","status":429,"#,
///         r#""detail":"the request costs more than is ever admitted at once","#,
///         r#""violated-policies":["login"]}"#,
///     )
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn problem(fields: &Fields, denied: &Decision) -> String {
    let members = Problem::QuotaExceeded.members();
    let detail = match (denied.retry(), retry_after(denied)) {
        (Some(Retry::Never), _) => {
            "the request costs more than is ever admitted at once".to_owned()
        }
        (_, Some(1)) => "it would pass after 1 second".to_owned(),
        (_, seconds) => format!("it would pass after {} seconds", seconds.unwrap_or_default()),
    };
    let name = fields.quoted_name(denied);
    format!(r#"{{{members},"detail":"{detail}","violated-policies":[{name}]}}"#)
}
