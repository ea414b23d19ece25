//! The body of a response whose request holds units.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, HeaderName, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use sluicegate_core::Store;
use sluicegate_holds::HoldGuard;

use crate::response::ResponseHeaders;

pin_project! {
    /// The body of a response. The units of its request are held until it has ended or is dropped.
    pub struct HeldBody<C, S>
    where
        S: Store,
        S: 'static,
    {
        #[pin]
        body: C,
        held: Option<Box<Held<S>>>,
    }
}

/// The units of a request in flight.
pub(super) struct Held<S: Store + 'static> {
    pub(super) guard: HoldGuard<S>,
    /// The header or trailer with the units that were used.
    pub(super) used_from: Option<HeaderName>,
}

impl<S: Store> Held<S> {
    /// Reads the units that were used, if a header or trailer has them.
    pub(super) fn read_used(&mut self, headers: &HeaderMap) {
        let Some(name) = &self.used_from else { return };
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(used) = value.and_then(|value| value.parse::<u32>().ok()) {
            self.guard.set_used(used);
        }
    }
}

impl<C: Body, S: Store> HeldBody<C, S> {
    /// `body`, which holds nothing if it has ended already.
    pub(super) fn new(body: C, held: Option<Box<Held<S>>>) -> Self {
        let held = held.filter(|_| !body.is_end_stream());
        Self { body, held }
    }
}

impl<C: Body, S: Store> Body for HeldBody<C, S> {
    type Data = C::Data;
    type Error = C::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<C::Data>, C::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(context);
        let Some(held) = this.held else { return polled };
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
        {
            held.read_used(trailers);
        }
        let has_ended = match &polled {
            Poll::Ready(Some(Ok(_))) => this.body.is_end_stream(),
            Poll::Ready(_) => true,
            Poll::Pending => false,
        };
        if has_ended {
            *this.held = None;
        } else {
            held.guard.keep_alive();
        }
        Poll::Ready(ready!(polled))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An empty body that holds nothing.
impl<C: Default, S: Store> Default for HeldBody<C, S> {
    fn default() -> Self {
        Self { body: C::default(), held: None }
    }
}

impl<C: fmt::Debug, S: Store> fmt::Debug for HeldBody<C, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HeldBody")
            .field("body", &self.body)
            .field("is_held", &self.held.is_some())
            .finish()
    }
}

/// Hands the units to the body of the response.
pub(super) fn respond<C: Body, S: Store>(
    mut response: Response<C>,
    mut held: Option<Box<Held<S>>>,
    headers: Option<Box<ResponseHeaders>>,
) -> Response<HeldBody<C, S>> {
    if let Some(held) = &mut held {
        held.read_used(response.headers());
    }
    if let Some(headers) = headers {
        headers.write(response.headers_mut());
    }
    response.map(|body| HeldBody::new(body, held))
}
