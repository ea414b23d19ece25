//! Responses to rejected requests.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use sluicegate_core::{OnError, Policy, PreparedPolicy, Source};
use sluicegate_testing::{Engine, Server};
use sluicegate_tower::{
    Grpc, KeyPart, NamedPolicy, ProblemJson, RateLimitLayer, Rejection, RejectionHandler,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    layer::{CountingService, policy},
    server::limiter,
    store::Virtual,
};

/// The response to the second request, or to one while the store is unavailable.
async fn rejected<R>(
    handler: R,
    content_type: &str,
    unavailable: bool,
    cost: u32,
) -> Response<String>
where
    R: RejectionHandler<String> + Send + Sync + 'static,
{
    let store = Arc::new(Virtual::new(true));
    let policy: Policy = "gcra:1/1m".parse().unwrap();
    let layer =
        RateLimitLayer::new(store.clone(), NamedPolicy::new("calls", policy)).on_rejection(handler);
    let service = layer.cost_by(move |head| if head.path() == "/" { 1 } else { cost }).layer(
        service_fn(async |_: Request<()>| {
            Ok::<_, std::convert::Infallible>(Response::new("done".to_owned()))
        }),
    );
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), 200);
    store.set_away(unavailable);
    let request = Request::get("/x").header("content-type", content_type).body(()).unwrap();
    service.oneshot(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn rejection_problem_has_reason_and_retry() {
    for (away, cost, status, body) in [
        (
            false,
            1,
            429,
            r##"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"detail":"Retry after 60 seconds.","violated-policies":["calls"]}"##,
        ),
        (
            false,
            2,
            429,
            r##"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"detail":"The cost exceeds the limit: this request can never be allowed.","violated-policies":["calls"]}"##,
        ),
        (
            true,
            1,
            503,
            r##"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Rate limit unavailable","status":503}"##,
        ),
    ] {
        let response = rejected(ProblemJson, "text/plain", away, cost).await;
        assert_eq!((response.status().as_u16(), response.body().as_str()), (status, body));
        assert_eq!(response.headers()["content-type"], "application/problem+json");
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_of_grpc_call_has_grpc_status() {
    for (content_type, is_grpc) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc;x", true),
        ("application/grpc-web", false),
        ("application/grpcx", false),
    ] {
        let response = rejected(ProblemJson, content_type, false, 1).await;
        assert_eq!(response.headers().contains_key("grpc-status"), is_grpc, "{content_type}");
    }
    for (away, cost, status, pushback) in
        [(false, 1, "8", Some("60000")), (false, 2, "8", Some("-1")), (true, 1, "14", None)]
    {
        let response = rejected(Grpc, "application/grpc", away, cost).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(response.headers()["grpc-status"], status);
        let retry = response.headers().get("grpc-retry-pushback-ms");
        assert_eq!(retry.map(|it| it.to_str().unwrap()), pushback);
        assert_eq!(response.body(), "");
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_function_gets_retry_after_added() {
    let slow_down = |rejection: &Rejection<'_>| {
        let mut response =
            Response::new(format!("{} {}", rejection.policy.name(), rejection.head.path()));
        *response.status_mut() = http::StatusCode::from_u16(420).unwrap();
        response
    };
    let response = rejected(slow_down, "text/plain", false, 1).await;
    assert_eq!((response.status().as_u16(), response.body().as_str()), (420, "calls /x"));
    assert_eq!(response.headers()["retry-after"], "60");
}

#[tokio::test]
async fn observe_and_rejection_have_the_source() {
    for (at_once, source) in [(true, Source::Cache), (false, Source::Cache), (true, Source::Lease)]
    {
        let (store, observed) = (Arc::new(Virtual::new(at_once)), Arc::new(Mutex::new(Vec::new())));
        let events = Arc::clone(&observed);
        let layer = RateLimitLayer::new(Arc::clone(&store), policy("gcra:1/1h"))
            .observe(move |event| {
                let answer = event.result.expect("the store answers");
                events.lock().unwrap().push((answer.allowed(), answer.source));
            })
            .on_rejection(|rejection: &Rejection<'_>| {
                Response::new(rejection.denied.map_or("none", |it| it.source.as_str()).to_owned())
            });
        let service = layer.layer(CountingService::default());
        let passed = service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(passed.body(), "done");
        store.set_source(source);
        let denied = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(denied.body(), source.as_str());
        assert_eq!(*observed.lock().unwrap(), [(true, Source::Store), (false, source)]);
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_by_fallback_is_unavailable() {
    let store = Arc::new(Virtual::new(true));
    let layer = RateLimitLayer::new(Arc::clone(&store), policy("gcra:1/1m")).allow_on_error(true);
    let service = layer.clone().layer(CountingService::default());
    let held = layer.hold().layer(service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::<Full<Bytes>>::default())
    }));
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), 200);
    store.set_source(Source::Fallback);
    let call = Request::get("/").header("content-type", "application/grpc");
    let call = service.clone().oneshot(call.body(()).unwrap()).await.unwrap();
    assert_eq!(call.headers()["grpc-status"], "14");
    assert_eq!(call.headers()["grpc-retry-pushback-ms"], "60000");
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(
        response.body(),
        r##"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Rate limit unavailable","status":503}"##,
    );
    let of_hold = held.oneshot(Request::new(())).await.unwrap();
    for (status, headers) in
        [(response.status(), response.headers()), (of_hold.status(), of_hold.headers())]
    {
        assert_eq!((status.as_u16(), &headers["retry-after"]), (503, &"60".parse().unwrap()));
        assert!(!headers.contains_key("ratelimit") && !headers.contains_key("ratelimit-policy"));
    }
}

/// A client cannot leave the limit with a key that the store does not take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layer_key_too_long_is_rejected_and_not_allowed_on_error() {
    let redis = Server::start(Engine::Redis70);
    let policy: PreparedPolicy = "gcra:1/1h".parse().unwrap();
    let policy = NamedPolicy::prepared("login", policy.on_error(OnError::Allow));
    let errors: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&errors);
    let layer = RateLimitLayer::new(limiter(&redis).await, policy)
        .by(KeyPart::own(|head| head.header("x-user").map(str::to_owned)))
        .allow_on_error(true)
        .observe(move |event| {
            seen.lock().unwrap().extend(event.result.err().map(ToString::to_string));
        });
    let done = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new("done".to_owned()))
    });
    let held = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let (takes, holds) = (layer.clone().layer(done), layer.hold().layer(held));
    let long = "x".repeat(70_000);
    let request = |user: &str| Request::get("/").header("x-user", user).body(()).unwrap();
    for _ in 0..2 {
        let response = takes.clone().oneshot(request(&long)).await.unwrap();
        assert_eq!(response.status(), 400);
        assert_eq!(
            response.body(),
            r#"{"type":"about:blank","title":"Bad request","status":400,"detail":"the request has no key, or one that is too long"}"#
        );
        let response = holds.clone().oneshot(request(&long)).await.unwrap();
        assert_eq!(response.status(), 400);
    }
    assert_eq!(takes.oneshot(request("ann")).await.unwrap().status(), 200);
    let errors = errors.lock().unwrap();
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert!(errors[0].starts_with("invalid key: expected 1 to 65536 bytes, found "), "{errors:?}");
}
