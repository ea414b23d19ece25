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
use tonic::{Request, Response, Status, async_trait};

use super::{
    answer::{Verdict, answer},
    context::EnvoyContext,
    decide::decide,
};
use crate::stats::Stats;

/// The calls on one worker.
#[derive(Debug)]
pub(super) struct Calls {
    context: Arc<EnvoyContext>,
    stats: Arc<Stats>,
}

impl Calls {
    pub(super) const fn new(context: Arc<EnvoyContext>, stats: Arc<Stats>) -> Self {
        Self { context, stats }
    }
}

#[async_trait]
impl RateLimitService for Calls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let (stats, start) = (&*self.stats, self.context.decider.now());
        stats.requests.add();
        let decided = if self.context.decider.store.memory().is_some() {
            decide_local(&self.context, stats, &request, start)
        } else {
            // Boxed, so that calls on state in this process have no room for it.
            let decided = Box::pin(decide(&self.context, stats, &request, start));
            let decided = AssertUnwindSafe(decided).catch_unwind().await;
            decided.unwrap_or_else(|panic| Err(failed(&*panic)))
        };
        let end = self.context.decider.now();
        stats.sampler.answered(request.descriptors.len(), start, end);
        stats.latency.record_latency(end.as_micros().saturating_sub(start.as_micros()));
        let verdicts = decided.inspect_err(|status| {
            stats.errors.add();
            tracing::debug!(%status, "a call failed");
        })?;
        Ok(Response::new(answer(&request, verdicts, &self.context.config)))
    }
}

/// Decides with state in this process, which never waits.
#[inline(never)]
fn decide_local(
    context: &EnvoyContext,
    stats: &Stats,
    request: &RateLimitRequest,
    now: Timestamp,
) -> Result<Vec<Verdict>, Status> {
    let mut decided = pin!(decide(context, stats, request, now));
    let mut poll = || decided.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    match catch_unwind(AssertUnwindSafe(&mut poll)) {
        Ok(Poll::Ready(decided)) => decided,
        Ok(Poll::Pending) => Err(Status::internal(format!("{FAULT}waits for what is here"))),
        Err(panic) => Err(failed(&*panic)),
    }
}

/// The prefix of messages about faults of this server.
const FAULT: &str = "the call ";

/// Whether a status is about a fault of this server.
pub(super) fn is_our_fault(status: &Status) -> bool {
    status.message().starts_with(FAULT)
}

/// The status after a panic.
fn failed(panic: &(dyn Any + Send)) -> Status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("unknown"), "a call failed");
    Status::internal(format!("{FAULT}failed; the log of the server says why"))
}
