//! The calls of the rate limit service.

use std::{
    any::Any,
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
use tonic::{Code, Request, Response, Status, async_trait};
use tracing::{Instrument as _, Span};

use super::{
    context::EnvoyContext,
    decide::decide,
    response::{DescriptorOutcome, response},
};
use crate::{net::worker::panic_text, stats::Stats};

/// The rate limit service of one worker.
#[derive(Debug)]
pub(super) struct RateLimitCalls {
    context: Arc<EnvoyContext>,
    stats: Arc<Stats>,
}

impl RateLimitCalls {
    pub(super) const fn new(context: Arc<EnvoyContext>, stats: Arc<Stats>) -> Self {
        Self { context, stats }
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
        let decided = if self.context.decider.is_local() {
            span.in_scope(|| decide_now(&self.context, stats, &request, start))
        } else {
            // Boxed, because it makes the future of every call larger otherwise.
            let decided = decide(&self.context, stats, &request, start).instrument(span.clone());
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

/// Decides with a store in this process, which answers at once.
#[inline(never)]
fn decide_now(
    context: &EnvoyContext,
    stats: &Stats,
    request: &RateLimitRequest,
    now: Timestamp,
) -> Result<Vec<DescriptorOutcome>, Status> {
    let mut decided = pin!(decide(context, stats, request, now));
    let mut poll = || decided.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    match catch_unwind(AssertUnwindSafe(&mut poll)) {
        Ok(Poll::Ready(decided)) => decided,
        Ok(Poll::Pending) => Err(Status::internal(format!("{FAULT}waits for what is here"))),
        Err(panic) => Err(failed(&*panic)),
    }
}

/// Start of the message of a status for a fault of this server.
const FAULT: &str = "the call ";

/// Whether the status is a fault of this server.
pub(super) fn is_our_fault(status: &Status) -> bool {
    status.message().starts_with(FAULT)
}

/// The status for a panic.
fn failed(panic: &(dyn Any + Send)) -> Status {
    tracing::error!(panic = panic_text(panic), "a call failed");
    Status::internal(format!("{FAULT}failed; the log of the server says why"))
}
