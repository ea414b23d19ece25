//! The calls of the rate limit service.

use std::{
    any::Any,
    error::Error as _,
    future::Future as _,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt as _;
use sluicegate_core::Timestamp;
use sluicegate_proto::rls::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use tokio::sync::Semaphore;
use tonic::{Code, Request, Response, Status, async_trait};
use tracing::{Instrument as _, Span};

use super::{
    context::EnvoyContext,
    decide::decide,
    response::{DescriptorOutcome, response},
};
use crate::{budgets::turn::LANE_TURNS, net::worker::panic_text, stats::Stats};

/// The rate limit service of one worker.
#[derive(Debug)]
pub(super) struct RateLimitCalls {
    context: Arc<EnvoyContext>,
    stats: Arc<Stats>,
    /// Calls whose turn is over continue in it, a few between two polls of the sockets.
    lane: Semaphore,
}

impl RateLimitCalls {
    pub(super) fn new(context: Arc<EnvoyContext>, stats: Arc<Stats>) -> Self {
        Self { context, stats, lane: Semaphore::new(LANE_TURNS) }
    }
}

#[async_trait]
impl RateLimitService for RateLimitCalls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let telemetry = self.context.telemetry.as_ref();
        let span = telemetry.and_then(|it| it.envoy(request.metadata().as_ref()));
        let span = span.unwrap_or_else(Span::none);
        let request = request.into_inner();
        let (stats, start) = (&*self.stats, self.context.decider.now());
        stats.requests.add();
        let decided = if self.context.decider.is_local() && request.descriptors.len() == 1 {
            span.in_scope(|| decide_now(&self.context, stats, &self.lane, &request, start))
        } else {
            // A store elsewhere answers later, and many descriptors yield. Boxed, because it makes the future of every call
            // larger otherwise.
            let decided =
                decide(&self.context, stats, &self.lane, &request, start).instrument(span.clone());
            let decided = Box::pin(decided);
            let decided = AssertUnwindSafe(decided).catch_unwind().await;
            decided.unwrap_or_else(|panic| Err(failed(&*panic)))
        };
        let end = self.context.decider.now();
        stats.answered(1, request.descriptors.len(), start, end);
        if !span.is_none() {
            let code = decided.as_ref().err().map_or(Code::Ok, Status::code);
            span.record("rpc.grpc.status_code", i64::from(i32::from(code)));
            if code != Code::Ok {
                span.record("otel.status_code", "error");
            }
        }
        let outcomes = decided.inspect_err(|status| {
            stats.errors.add();
            tracing::debug!(%status, "a call failed");
        })?;
        Ok(Response::new(response(&request, outcomes, &self.context.config)))
    }
}

/// Decides one descriptor with a store in this process, which answers at once.
#[inline(never)]
fn decide_now(
    context: &EnvoyContext,
    stats: &Stats,
    lane: &Semaphore,
    request: &RateLimitRequest,
    now: Timestamp,
) -> Result<Vec<DescriptorOutcome>, Status> {
    let mut decided = pin!(decide(context, stats, lane, request, now));
    let mut poll = || decided.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    match catch_unwind(AssertUnwindSafe(&mut poll)) {
        Ok(Poll::Ready(decided)) => decided,
        Ok(Poll::Pending) => Err(ServerFault::Pending.status()),
        Err(panic) => Err(failed(&*panic)),
    }
}

/// A fault of this server: the source of the status of a call that it could not answer.
#[derive(Debug, thiserror::Error)]
enum ServerFault {
    /// The call waits although the store is in this process.
    #[error("the call waits for what is here")]
    Pending,
    /// The call panicked.
    #[error("the call failed; the log of the server says why")]
    Panicked,
}

impl ServerFault {
    fn status(self) -> Status {
        let mut status = Status::internal(self.to_string());
        status.set_source(Arc::new(self));
        status
    }
}

/// Whether the status is a fault of this server.
pub(super) fn is_our_fault(status: &Status) -> bool {
    status.source().is_some_and(|source| source.is::<ServerFault>())
}

/// The status for a panic.
fn failed(panic: &(dyn Any + Send)) -> Status {
    tracing::error!(panic = panic_text(panic), "a call failed");
    ServerFault::Panicked.status()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_our_fault_message_of_a_fault_does_not_matter() {
        for fault in [ServerFault::Pending, ServerFault::Panicked] {
            let text = fault.to_string();
            let sent = fault.status().into_http::<()>();
            let status = sent.extensions().get().expect("tonic keeps the status");
            assert!(is_our_fault(status), "{text}");
            assert_eq!((status.code(), status.message()), (Code::Internal, &*text));
            assert!(!is_our_fault(&Status::internal(text)), "of tonic or a store");
        }
    }
}
