//! The gRPC services, the routing of calls to them, and the calls of the rate limit service.

use std::{
    any::Any,
    convert::Infallible,
    error::Error as _,
    future::{Future, poll_fn, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, combinators::MapErr};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
};
use sluicegate_core::Timestamp;
use sluicegate_proto::{
    DESCRIPTORS,
    rlqs::rate_limit_quota_service_server::{RateLimitQuotaServiceServer, SERVICE_NAME as QUOTAS},
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer, SERVICE_NAME},
    },
};
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};
use tonic::{
    Code, Status, async_trait,
    body::Body,
    codegen::{BoxFuture, Service},
    server::NamedService,
};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tracing::{Instrument as _, Span};

use super::{
    context::EnvoyContext,
    decide::decide,
    quota_service::QuotaCalls,
    response::{DescriptorOutcome, response},
};
use crate::{
    budgets::turn::LANE_TURNS,
    net::{
        web::{BodyError, RequestBody},
        worker::panic_text,
    },
    stats::Stats,
};

/// Longest message, in bytes: Envoy makes descriptors of headers, of which it accepts 60 KiB.
const MAX_MESSAGE: usize = 128 * 1024;
/// The same for the quota service, whose messages report all buckets of an Envoy.
const MAX_REPORTS: usize = 2 * 1024 * 1024;
/// The service names of health checks: the whole server, the service of the proto, and the name in
/// envoyproxy/ratelimit.
const NAMES: [&str; 4] = ["", SERVICE_NAME, "ratelimit", QUOTAS];

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>>>>;
type Dispatch = Box<dyn Fn(Request<CallBody>) -> ResponseFuture>;
/// The body of a call, whose errors are statuses.
type CallBody = MapErr<RequestBody, fn(BodyError) -> Status>;

/// The services of one worker.
pub(crate) struct Services {
    /// Each with the prefix of its paths.
    services: Vec<(String, Dispatch)>,
    health: HealthReporter,
    /// Whether the server stops: streams end then.
    stopping: watch::Sender<bool>,
    input_timeout: Duration,
}

impl Services {
    /// The services of the worker that `stats` counts for.
    pub(crate) fn new(context: &Arc<EnvoyContext>, stats: &Arc<Stats>) -> Self {
        let health = HealthReporter::new();
        let statuses = HealthService::from_health_reporter(health.clone());
        let limits = RateLimitServiceServer::new(RateLimitCalls::new(
            Arc::clone(context),
            Arc::clone(stats),
        ));
        let stopping = watch::Sender::new(false);
        let quotas = QuotaCalls::new(Arc::clone(context), stopping.subscribe());
        let quotas = RateLimitQuotaServiceServer::new(quotas);
        let mut services = vec![
            dispatch(limits.max_decoding_message_size(MAX_MESSAGE)),
            dispatch(quotas.max_decoding_message_size(MAX_REPORTS)),
            dispatch(HealthServer::new(statuses).max_decoding_message_size(MAX_MESSAGE)),
        ];
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        if let (Ok(v1), Ok(alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
            services.push(dispatch(v1.max_decoding_message_size(MAX_MESSAGE)));
            services.push(dispatch(alpha.max_decoding_message_size(MAX_MESSAGE)));
        }
        Self { services, health, stopping, input_timeout: context.input_timeout }
    }

    /// Sets the health.
    pub(crate) async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.health.set_service_status(name, status).await;
        }
        self.stopping.send_replace(!serving);
    }

    /// Answers a call.
    pub(crate) fn call(
        &self,
        mut request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + use<> {
        if request.uri().path().trim_start_matches('/').starts_with(QUOTAS) {
            let streamed = request.body_mut().stream();
            request.extensions_mut().insert(streamed);
        }
        let mut answer = match rejection(&request) {
            Some(rejection) => ready_answer(rejection),
            None => {
                let path = request.uri().path();
                match self.services.iter().find(|(begin, _)| path.starts_with(begin)) {
                    Some((_, dispatch)) => {
                        let unread: fn(BodyError) -> Status = unread;
                        dispatch(request.map(|body| body.map_err(unread)))
                    }
                    None => ready_answer(Status::unimplemented("unknown service").into_http()),
                }
            }
        };
        let (input_timeout, mut timer) = (self.input_timeout, None);
        // Small, because the future of a call is moved when it is spawned.
        poll_fn(move |context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(answer.map(correct_status)),
            Poll::Pending if input_timeout.is_zero() => Poll::Pending,
            Poll::Pending => {
                // Most calls arrive completely and need no timer.
                let timer = timer.get_or_insert_with(|| Box::pin(sleep(input_timeout)));
                let late = || {
                    let text = format!("the call was not complete in {input_timeout:?}");
                    Ok(Status::deadline_exceeded(text).into_http())
                };
                timer.as_mut().poll(context).map(|()| late())
            }
        })
    }
}

/// A service, with the prefix of its paths.
fn dispatch<S>(service: S) -> (String, Dispatch)
where
    S: NamedService + Clone + 'static,
    S: Service<Request<CallBody>, Future = BoxFuture<Response<Body>, Infallible>>,
{
    (format!("/{}/", S::NAME), Box::new(move |request| service.clone().call(request)))
}

/// The response where the memory budget is used up.
pub(super) fn unavailable() -> Response<Body> {
    Status::unavailable("the memory for requests and replies is used up").into_http()
}

/// The status of a message that cannot be read.
#[expect(clippy::needless_pass_by_value, reason = "an error is mapped by value")]
fn unread(error: BodyError) -> Status {
    match error {
        BodyError::NoMemory => Status::unavailable(error.to_string()),
        BodyError::Invalid(_) | BodyError::Closed => Status::cancelled(error.to_string()),
    }
}

/// Changes the status of a malformed message to `INVALID_ARGUMENT`: tonic says `INTERNAL` or
/// `OUT_OF_RANGE`.
fn correct_status(response: Response<Body>) -> Response<Body> {
    let Some(status) = response.extensions().get::<Status>() else { return response };
    match status.code() {
        Code::Internal if !is_our_fault(status) => {}
        Code::OutOfRange => {}
        _ => return response,
    }
    Status::invalid_argument(status.message()).into_http()
}

/// An answer that is ready.
fn ready_answer(response: Response<Body>) -> ResponseFuture {
    Box::pin(ready(Ok(response)))
}

/// The response to a request that is not a call of gRPC.
fn rejection(request: &Request<RequestBody>) -> Option<Response<Body>> {
    let mut response = Response::new(Body::empty());
    if request.method() != Method::POST {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(response);
    }
    let content = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !matches!(content.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..])) {
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Some(response);
    }
    None
}

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
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
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
        Ok(tonic::Response::new(response(&request, outcomes, &self.context.config)))
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
mod calls_tests {
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
