//! The services that are spoken, and which of them a call is for.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
};
use sluicegate_proto::{
    DESCRIPTORS,
    rls::rate_limit_service_server::{RateLimitServiceServer, SERVICE_NAME},
};
use tokio::time::timeout;
use tonic::{Status, body::Body, codegen::Service, server::NamedService};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};

use super::calls::Calls;
use crate::shared::Shared;

/// Bytes of a message: Envoy makes descriptors of header fields, which it takes up to 60 KiB of.
const MAX_MESSAGE: usize = 128 * 1024;
/// What the services are called of which the health is told: all that there is, that of the proto,
/// and what envoyproxy/ratelimit calls it.
const NAMES: [&str; 3] = ["", SERVICE_NAME, "ratelimit"];

type Answer = Pin<Box<dyn Future<Output = Response<Body>>>>;
type Dispatch = Box<dyn Fn(Request<Incoming>) -> Answer>;

/// The services, as one worker has them.
pub(crate) struct Services {
    /// Each with the beginning of the paths of its calls.
    services: Vec<(String, Dispatch)>,
    health: HealthReporter,
    patience: Duration,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Services").finish_non_exhaustive()
    }
}

impl Services {
    /// The services of the worker at `index`.
    pub(crate) fn new(shared: &Arc<Shared>, index: usize) -> Self {
        let health = HealthReporter::new();
        let statuses = HealthService::from_health_reporter(health.clone());
        let limits = RateLimitServiceServer::new(Calls::new(Arc::clone(shared), index));
        let mut services = vec![
            dispatch(limits.max_decoding_message_size(MAX_MESSAGE)),
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
        Self { services, health, patience: shared.config.input_timeout }
    }

    /// Says whether calls are welcome.
    pub(crate) async fn set_serving(&self, serving: bool) {
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in NAMES {
            self.health.set_service_status(name, status).await;
        }
    }

    /// Answers a call.
    pub(crate) fn call(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + use<> {
        let answer = match refusal(&request) {
            Some(refusal) => Err(refusal),
            None => {
                let path = request.uri().path();
                let service = self.services.iter().find(|(begin, _)| path.starts_with(begin));
                service
                    .map(|(_, dispatch)| dispatch)
                    .ok_or_else(|| Status::unimplemented("there is no such service").into_http())
            }
        };
        let answer = answer.map(|dispatch| dispatch(request));
        let patience = self.patience;
        async move {
            let answer = match answer {
                Ok(answer) => answer,
                Err(refusal) => return refusal,
            };
            if patience.is_zero() {
                return answer.await;
            }
            // Most calls are there as a whole, and need no clock.
            let mut answer = answer;
            let first = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context)));
            if let Poll::Ready(answer) = first.await {
                return answer;
            }
            timeout(patience, answer).await.unwrap_or_else(|_| {
                Status::deadline_exceeded(format!("the call was not complete in {patience:?}"))
                    .into_http()
            })
        }
    }
}

/// A service, with the beginning of the paths of its calls.
fn dispatch<S>(service: S) -> (String, Dispatch)
where
    S: NamedService + Clone + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = std::convert::Infallible>,
    S::Future: 'static,
{
    let call = move |request| -> Answer {
        let called = service.clone().call(request);
        Box::pin(async move { called.await.unwrap_or_else(|never| match never {}) })
    };
    (format!("/{}/", S::NAME), Box::new(call))
}

/// What is answered to a request that is no call.
fn refusal(request: &Request<Incoming>) -> Option<Response<Body>> {
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
