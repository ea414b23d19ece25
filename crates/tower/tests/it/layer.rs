//! Which requests pass, under which key, at which cost; and the headers of the response.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use http::{HeaderName, Method, Request, Response, StatusCode};
use sluicegate_core::Policy;
use sluicegate_tower::{
    ClientAddress, HeaderStyle, KeyPart, NamedPolicy, RateLimit, RateLimitLayer, Routes, Rules,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::store::Virtual;

/// A service that counts its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountingService(Arc<AtomicU32>);

impl CountingService {
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

impl Service<Request<()>> for CountingService {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.0.fetch_add(1, Relaxed);
        std::future::ready(Ok(Response::new("done".to_owned())))
    }
}

pub(crate) fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

/// The counting service behind a layer.
type Limited = RateLimit<CountingService, Arc<Virtual>>;

/// Both kinds of store, behind a layer that `set` sets.
fn layers(
    rules: impl Into<Rules>,
    set: impl Fn(RateLimitLayer<Arc<Virtual>>) -> RateLimitLayer<Arc<Virtual>>,
) -> [(Arc<Virtual>, CountingService, Limited); 2] {
    let rules = rules.into();
    [true, false].map(|at_once| {
        let (store, counted) = (Arc::new(Virtual::new(at_once)), CountingService::default());
        let layer = set(RateLimitLayer::new(Arc::clone(&store), rules.clone()));
        let service = layer.layer(counted.clone());
        (store, counted, service)
    })
}

/// The response to a request.
async fn answer(service: &Limited, request: Request<()>) -> Response<String> {
    service.clone().oneshot(request).await.unwrap()
}

async fn status(service: &Limited, request: Request<()>) -> u16 {
    answer(service, request).await.status().as_u16()
}

fn from(peer: &str, path: &str) -> Request<()> {
    let peer: SocketAddr = peer.parse().unwrap();
    Request::builder().uri(path).extension(peer).body(()).unwrap()
}

#[tokio::test]
async fn layer_denied_request_does_not_reach_service() {
    for (store, counted, service) in layers(policy("gcra:3/1h"), |layer| layer) {
        for expected in [200, 200, 200, 429, 429] {
            assert_eq!(status(&service, Request::new(())).await, expected);
        }
        assert_eq!(counted.count(), 3);
        assert_eq!(store.keys(), ["7:default,"]);
    }
}

#[tokio::test]
async fn layer_client_address_counts_networks_and_ignores_forged_entries() {
    let by = |layer: RateLimitLayer<Arc<Virtual>>| layer.by(ClientAddress::x_forwarded_for(1));
    for (store, _, service) in layers(policy("gcra:1/1h"), by) {
        let request = |entries: &str| {
            let mut request = from("10.0.0.1:1", "/");
            request.headers_mut().insert("x-forwarded-for", entries.parse().unwrap());
            request
        };
        for (entries, expected) in [
            ("192.0.2.7", 200),
            ("192.0.2.8", 200),
            ("1.1.1.1, 192.0.2.7", 429),
            ("2.2.2.2, 192.0.2.7:99", 429),
            ("2001:db8:0:1::1", 200),
            ("2001:db8:0:1::2", 429),
            ("2001:db8:0:2::1", 200),
            ("unknown", 200),
            ("2.2.2.2, unknown", 429),
        ] {
            assert_eq!(status(&service, request(entries)).await, expected, "{entries}");
        }
        assert!(store.keys().contains(&"7:default,17:2001:db8:0:1::/64,".to_owned()));
    }
}

#[tokio::test]
async fn layer_requests_without_key_share_one_count() {
    let name = HeaderName::from_static("x-user");
    let by = |layer: RateLimitLayer<Arc<Virtual>>| {
        layer.by(KeyPart::header(name.clone())).by(KeyPart::method())
    };
    for (_, _, service) in layers(policy("gcra:1/1h"), by) {
        let user = |user: &str| Request::builder().header("x-user", user).body(()).unwrap();
        assert_eq!(status(&service, user("7")).await, 200);
        assert_eq!(status(&service, Request::new(())).await, 200);
        assert_eq!(status(&service, Request::new(())).await, 429);
        assert_eq!(status(&service, user("-")).await, 200);
        assert_eq!(status(&service, user("7")).await, 429);
        assert_eq!(status(&service, Request::post("/").body(()).unwrap()).await, 200);
    }
}

#[tokio::test]
async fn routes_each_has_its_own_policy() {
    let named = |name: &str, text: &str| NamedPolicy::new(name, policy(text));
    let routes = Routes::new()
        .unlimited("/health")
        .on(Method::POST, "/login", named("login", "gcra:1/1h"))
        .otherwise(named("other", "gcra:2/1h"));
    for (store, counted, service) in layers(routes, |layer| layer) {
        for _ in 0..5 {
            assert_eq!(status(&service, from("10.0.0.1:1", "/health")).await, 200);
        }
        let login = || Request::post("/login").body(()).unwrap();
        let answers = [answer(&service, login()).await, answer(&service, login()).await];
        assert_eq!(answers[1].status(), 429);
        assert_eq!(answers[0].headers()["ratelimit-policy"], r#""login";q=1;w=3600"#);
        for expected in [200, 200, 429] {
            assert_eq!(status(&service, from("10.0.0.1:1", "/x")).await, expected);
        }
        assert_eq!(counted.count(), 8);
        let mut keys = store.keys();
        keys.sort_unstable();
        assert_eq!(keys, ["5:login,", "5:other,"]);
    }
}

/// A route may be written in any spelling, as may the path of a request.
#[tokio::test]
async fn routes_match_in_any_spelling() {
    for (route, path) in [
        ("/caf\u{e9}", "/caf%C3%A9"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/a b/*", "/a%20b/c"),
        ("/a//b", "/a/b"),
        ("login", "/login"),
    ] {
        let routes = Routes::new().at(route, NamedPolicy::new("one", policy("gcra:1/1h")));
        for (_, _, service) in layers(routes, |layer| layer) {
            let answers = [(); 2].map(|()| from("10.0.0.1:1", path));
            for (request, expected) in answers.into_iter().zip([200, 429]) {
                assert_eq!(status(&service, request).await, expected, "{route}");
            }
        }
    }
}

#[tokio::test]
async fn layer_functions_choose_policy_and_cost() {
    let paid = NamedPolicy::new("paid", policy("gcra:10/1h"));
    let rules = Rules::by(move |head| head.header("x-plan").map(|_| paid.clone()));
    let cost = |layer: RateLimitLayer<Arc<Virtual>>| {
        layer.cost_by(|head| head.path().len().try_into().unwrap())
    };
    for (_, counted, service) in layers(rules, cost) {
        let paid = |path: &str| Request::get(path).header("x-plan", "p").body(()).unwrap();
        assert_eq!(status(&service, from("10.0.0.1:1", "/very/very/long")).await, 200);
        assert_eq!(status(&service, paid("/7654321")).await, 200);
        assert_eq!(status(&service, paid("/21")).await, 429);
        assert_eq!(status(&service, paid("/1")).await, 200);
        // More than is ever admitted: the response has no `Retry-After`.
        let never = answer(&service, paid("/very/very/long")).await;
        assert_eq!(never.status(), 429);
        assert!(!never.headers().contains_key("retry-after"), "{never:?}");
        assert_eq!(counted.count(), 3);
    }
    for (_, counted, service) in layers(policy("gcra:10/1h"), |layer| layer.cost(4)) {
        for expected in [200, 200, 429] {
            assert_eq!(status(&service, Request::new(())).await, expected);
        }
        assert_eq!(counted.count(), 2);
    }
}

/// The headers of a response, as lines.
fn lines(response: &Response<String>) -> Vec<String> {
    let line = |(name, value): (&HeaderName, &http::HeaderValue)| {
        format!("{name}: {}", value.to_str().unwrap())
    };
    let mut lines: Vec<_> = response.headers().iter().map(line).collect();
    lines.sort_unstable();
    lines
}

#[tokio::test(start_paused = true)]
async fn layer_response_has_headers_of_its_style() {
    let named = NamedPolicy::new("api", policy("gcra:2/1h"));
    let denied = ["cache-control: no-store", "content-type: application/problem+json"];
    for (headers, passed, refused) in [
        (
            HeaderStyle::Ietf,
            &[r#"ratelimit-policy: "api";q=2;w=3600"#, r#"ratelimit: "api";r=1;t=1800"#][..],
            &[r#"ratelimit-policy: "api";q=2;w=3600"#, r#"ratelimit: "api";r=0;t=1800"#][..],
        ),
        (
            HeaderStyle::XRateLimit,
            &["x-ratelimit-limit: 2", "x-ratelimit-remaining: 1", "x-ratelimit-reset: 1800"],
            &["x-ratelimit-limit: 2", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 3600"],
        ),
        (HeaderStyle::None, &[], &[]),
    ] {
        for (_, _, service) in layers(named.clone(), |layer| layer.headers(headers)) {
            assert_eq!(lines(&answer(&service, Request::new(())).await), passed);
            assert_eq!(status(&service, Request::new(())).await, 200);
            let mut expected = [&denied[..], refused, &["retry-after: 1800"]].concat();
            expected.sort_unstable();
            let response = answer(&service, Request::new(())).await;
            assert_eq!(lines(&response), expected);
            assert!(response.body().contains(r#""violated-policies":["api"]"#), "{response:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn layer_headers_of_several_limits_describe_the_binding_one() {
    let named = NamedPolicy::new("api", policy("fixed-window:2/1m,fixed-window:100000/365d"));
    let x = |remaining: u32| {
        [
            "x-ratelimit-limit: 2".to_owned(),
            format!("x-ratelimit-remaining: {remaining}"),
            "x-ratelimit-reset: 60".to_owned(),
        ]
    };
    for (_, _, service) in layers(named, |layer| layer.headers(HeaderStyle::XRateLimit)) {
        for remaining in [1, 0] {
            assert_eq!(lines(&answer(&service, Request::new(())).await), x(remaining));
        }
        let denied = lines(&answer(&service, Request::new(())).await);
        assert!(x(0).iter().all(|line| denied.contains(line)), "{denied:?}");
        assert!(denied.contains(&"retry-after: 60".to_owned()), "{denied:?}");
    }
}

#[tokio::test]
async fn layer_within_layer_adds_its_headers() {
    for headers in [HeaderStyle::Ietf, HeaderStyle::XRateLimit] {
        let store = Arc::new(Virtual::new(true));
        let layer = |name, text| {
            let policy = NamedPolicy::new(name, policy(text));
            RateLimitLayer::new(Arc::clone(&store), policy).headers(headers)
        };
        let inner = layer("user", "gcra:5/1h").layer(CountingService::default());
        let service = layer("all", "gcra:9/1h").layer(inner);
        let response = service.oneshot(Request::new(())).await.unwrap();
        let all = |name| response.headers().get_all(name).iter().collect::<Vec<_>>();
        if headers == HeaderStyle::Ietf {
            let policies = [r#""user";q=5;w=3600"#, r#""all";q=9;w=3600"#];
            assert_eq!(all("ratelimit-policy"), policies);
            assert_eq!(all("ratelimit").len(), 2);
        } else {
            assert_eq!(all("x-ratelimit-limit"), ["5"]);
        }
    }
}

#[tokio::test]
async fn layer_shadow_observes_and_passes() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let actual = Arc::clone(&seen);
    let shadow = move |layer: RateLimitLayer<Arc<Virtual>>| {
        let actual = Arc::clone(&actual);
        layer
            .shadow(true)
            .wait_up_to(std::time::Duration::from_secs(1))
            .observe(move |event| actual.lock().unwrap().push(event.to_string()))
    };
    for (store, counted, service) in layers(policy("leaky-queue:1/1h:capacity=2"), shadow) {
        for _ in 0..3 {
            let response = answer(&service, Request::new(())).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.headers().is_empty());
        }
        store.set_away(true);
        assert_eq!(status(&service, Request::new(())).await, 200);
        assert_eq!(counted.count(), 4);
        let expected = ["allowed", "allowed", "denied", "no reply"];
        let expected = expected.map(|it| format!("default: {it} (shadow)"));
        assert_eq!(*seen.lock().unwrap(), expected);
        seen.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn layer_unavailable_store_rejects_or_allows_all() {
    for (allow, expected) in [(false, 503), (true, 200)] {
        let errors = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&errors);
        let set = move |layer: RateLimitLayer<Arc<Virtual>>| {
            let errors = Arc::clone(&counter);
            layer.allow_on_error(allow).observe(move |event| {
                errors.fetch_add(event.result.is_err().into(), Relaxed);
            })
        };
        for (store, counted, service) in layers(policy("gcra:9/1h"), set) {
            store.set_away(true);
            let response = answer(&service, Request::new(())).await;
            assert_eq!(response.status(), expected);
            assert_eq!(counted.count(), u32::from(allow));
            assert_eq!(response.body().contains("temporary-reduced-capacity"), !allow);
            assert!(!response.headers().contains_key("ratelimit"));
            store.set_away(false);
            assert_eq!(status(&service, Request::new(())).await, 200);
        }
        assert_eq!(errors.load(Relaxed), 2);
    }
}

#[tokio::test]
async fn layer_ready_service_is_called() {
    /// Panics where it is called without having been made ready, and so does each clone.
    #[derive(Debug, Default)]
    struct Strict {
        ready: bool,
    }
    impl Clone for Strict {
        fn clone(&self) -> Self {
            Self::default()
        }
    }
    impl Service<Request<()>> for Strict {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<String>, Infallible>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.ready = true;
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            assert!(std::mem::take(&mut self.ready), "called before it was ready");
            std::future::ready(Ok(Response::new(String::new())))
        }
    }
    tokio::time::pause();
    for at_once in [true, false] {
        let layer = RateLimitLayer::new(Virtual::new(at_once), policy("gcra:1/1s:burst=2"))
            .wait_up_to(std::time::Duration::from_secs(9));
        let mut service = layer.layer(Strict::default());
        for _ in 0..5 {
            assert!(service.ready().await.unwrap().call(Request::new(())).await.is_ok());
        }
    }
}

#[tokio::test]
async fn layer_error_of_service_is_returned() {
    let fails = service_fn(async |_: Request<()>| Err::<Response<String>, _>("broken"));
    for at_once in [true, false] {
        let layer = RateLimitLayer::new(Virtual::new(at_once), policy("gcra:1/1h"));
        let service = layer.layer(fails);
        assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap_err(), "broken");
        assert_eq!(service.oneshot(Request::new(())).await.unwrap().status(), 429);
    }
}
