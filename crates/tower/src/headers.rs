//! What a response says of the limit.

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use sluicegate_core::Decision;
use sluicegate_headers::{self as text, retry_after, seconds};

use crate::rules::Named;

const RATELIMIT: HeaderName = HeaderName::from_static(text::RATELIMIT);
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static(text::RATELIMIT_POLICY);
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static(text::X_RATELIMIT_LIMIT);
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static(text::X_RATELIMIT_REMAINING);
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static(text::X_RATELIMIT_RESET);

/// What a response says of the limit. A refusal says `Retry-After` under each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Headers {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11. Where there are some
    /// already, of a layer further in, these are added to them.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` in seconds from now. Those of a
    /// layer further in stay.
    XRateLimit,
    /// Nothing.
    None,
}

impl Headers {
    /// Tells the decision.
    pub(crate) fn tell(self, named: &Named, decision: &Decision, headers: &mut HeaderMap) {
        match self {
            Self::Ietf => {
                headers.append(RATELIMIT_POLICY, named.header.clone());
                let text = named.fields.rate_limit(decision);
                let value = HeaderValue::try_from(text).expect("fields are printable ASCII");
                headers.append(RATELIMIT, value);
            }
            Self::XRateLimit => {
                let reset = seconds(decision.reset_after);
                headers.entry(X_RATELIMIT_LIMIT).or_insert(decision.limit.into());
                headers.entry(X_RATELIMIT_REMAINING).or_insert(decision.remaining.into());
                headers.entry(X_RATELIMIT_RESET).or_insert(reset.into());
            }
            Self::None => {}
        }
    }

    /// Tells when to come again.
    pub(crate) fn tell_retry(decision: &Decision, headers: &mut HeaderMap) {
        if let Some(seconds) = retry_after(decision) {
            headers.insert(RETRY_AFTER, seconds.into());
        }
    }
}
