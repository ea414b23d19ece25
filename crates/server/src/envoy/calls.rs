//! The calls of the rate limit service.

use std::{any::Any, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use sluicegate_proto::rls::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use tonic::{Request, Response, Status, async_trait};

use super::{answer::answer, decide::decide};
use crate::shared::Shared;

/// The calls as a worker carries them out.
#[derive(Debug)]
pub(super) struct Calls {
    shared: Arc<Shared>,
    /// Which worker it is.
    index: usize,
}

impl Calls {
    pub(super) const fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self { shared, index }
    }
}

#[async_trait]
impl RateLimitService for Calls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let (stats, start) = (&self.shared.workers[self.index], self.shared.now());
        stats.questions.add();
        let decided = AssertUnwindSafe(decide(&self.shared, stats, &request, start));
        let decided = decided.catch_unwind().await.unwrap_or_else(|panic| Err(failed(&*panic)));
        let end = self.shared.now();
        stats.question_latency.took(end.as_micros().saturating_sub(start.as_micros()));
        let verdicts = decided.inspect_err(|status| {
            stats.errors.add();
            tracing::debug!(%status, "a call was not answered");
        })?;
        Ok(Response::new(answer(&request, &verdicts, &self.shared.config.envoy)))
    }
}

/// What is answered where we have failed.
fn failed(panic: &(dyn Any + Send)) -> Status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("unknown"), "a call failed");
    Status::internal("the call failed; the log of the server says why")
}
