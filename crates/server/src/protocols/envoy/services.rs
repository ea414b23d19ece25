//! The gRPC services, and the routing of calls to them.

use std::{
    convert::Infallible,
    future::{Future, poll_fn, ready},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use http_body_util::{BodyExt as _, combinators::MapErr};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
};
use sluicegate_proto::{
    DESCRIPTORS,
    rlqs::rate_limit_quota_service_server::{RateLimitQuotaServiceServer, SERVICE_NAME as QUOTAS},
    rls::rate_limit_service_server::{RateLimitServiceServer, SERVICE_NAME},
};
use tokio::{sync::watch, time::sleep};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{BoxFuture, Service},
    server::NamedService,
};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use super::{
    calls::{RateLimitCalls, is_our_fault},
    context::EnvoyContext,
    quota_service::QuotaCalls,
};
use crate::{
    net::web::{BodyError, RequestBody},
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
