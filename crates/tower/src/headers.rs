//! Rate limit headers of responses.

use http::HeaderMap;
use sluicegate_core::Decision;
use sluicegate_headers::{
    RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET,
    integer,
};

use crate::rules::Named;

/// Rate limit headers of responses. A denial has `Retry-After` with each of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11, added to those of an inner
    /// layer.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` in seconds from now. Those of an
    /// inner layer are kept instead.
    XRateLimit,
    /// No headers.
    None,
}

impl HeaderStyle {
    /// Writes the headers of a decision.
    pub(crate) fn write(self, named: &Named, decision: &Decision, headers: &mut HeaderMap) {
        match self {
            Self::Ietf => {
                headers.append(RATELIMIT_POLICY, named.fields.policy().clone());
                headers.append(RATELIMIT, named.fields.rate_limit(decision));
            }
            Self::XRateLimit => {
                let Decision { limit, remaining, .. } = *decision;
                let values = [
                    (X_RATELIMIT_LIMIT, limit.into()),
                    (X_RATELIMIT_REMAINING, remaining.into()),
                    (X_RATELIMIT_RESET, named.fields.reset(decision)),
                ];
                for (name, value) in values {
                    headers.entry(name).or_insert_with(|| integer(value));
                }
            }
            Self::None => {}
        }
    }
}
