//! Responses: rate limit headers, and rejections.

use http::{HeaderMap, Response, header::RETRY_AFTER};
use sluicegate_core::{Answer, Decision};
use sluicegate_headers::{integer, retry_after};

use crate::{Head, HeaderStyle, NamedPolicy, Rejection, RejectionHandler, settings::Shared};

impl<S, R> Shared<S, R> {
    /// The rate limit headers of a response, if any.
    #[inline]
    pub(crate) fn response_headers(
        &self,
        answer: Option<&Answer>,
        policy: &NamedPolicy,
    ) -> Option<Box<ResponseHeaders>> {
        let headers = self.settings.headers;
        let answer = answer.filter(|_| headers != HeaderStyle::None && !self.settings.shadow)?;
        let (policy, decision) = (policy.clone(), answer.decision);
        Some(Box::new(ResponseHeaders { headers, policy, decision }))
    }

    /// The response to a request whose key is invalid, of which the observer gets the error; `None` in shadow mode, where it
    /// passes. No setting about errors of the store applies.
    #[cold]
    pub(crate) fn reject_key<C>(
        &self,
        head: Head<'_>,
        policy: &NamedPolicy,
        error: &(impl std::error::Error + 'static),
    ) -> Option<Response<C>>
    where
        R: RejectionHandler<C>,
    {
        let _ = self.settings.passes(policy, Err(error));
        let rejection = Rejection { head, policy, denied: None, is_invalid: true };
        (!self.settings.shadow).then(|| self.handler.respond(&rejection))
    }

    /// The response to a rejected request.
    #[inline(never)]
    pub(crate) fn reject<C>(
        &self,
        head: Head<'_>,
        policy: &NamedPolicy,
        denied: Option<&Answer>,
    ) -> Response<C>
    where
        R: RejectionHandler<C>,
    {
        let rejection = Rejection { head, policy, denied, is_invalid: false };
        let mut response = self.handler.respond(&rejection);
        let headers = response.headers_mut();
        if let Some(seconds) = rejection.denied.and_then(|denied| retry_after(denied)) {
            headers.insert(RETRY_AFTER, integer(seconds));
        }
        // Without the store, the usage is unknown.
        if let Some(denied) = rejection.denied_by_limit() {
            write(self.settings.headers, policy, denied, headers);
        }
        response
    }
}

/// The rate limit headers of one response.
#[derive(Debug)]
pub(crate) struct ResponseHeaders {
    headers: HeaderStyle,
    policy: NamedPolicy,
    decision: Decision,
}

impl ResponseHeaders {
    #[inline(never)]
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        write(self.headers, &self.policy, &self.decision, headers);
    }
}

/// Adds the headers of a decision to those of an inner layer; `X-RateLimit-*` of an inner layer are kept.
fn write(style: HeaderStyle, policy: &NamedPolicy, decision: &Decision, headers: &mut HeaderMap) {
    policy.inner().fields.write(style, decision, |name, value| match style {
        HeaderStyle::Ietf => {
            headers.append(name, value);
        }
        _ => {
            headers.entry(name).or_insert(value);
        }
    });
}
