//! The examples, with real clients.

#![allow(dead_code, reason = "their `main` is not called")]
#![allow(unreachable_pub, reason = "they are programs of their own")]
#![allow(missing_docs, reason = "they are programs of their own")]

#[path = "../../examples/axum.rs"]
mod axum_example;
#[path = "../../examples/tonic.rs"]
mod tonic_example;

use std::{net::SocketAddr, time::Duration};

use sluicegate::Limiter;
use sluicegate_redis::{Options, RedisStore};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tonic::{
    Code, Request,
    transport::{Channel, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use sluicegate_testing::{Engine, Server};

use crate::server::limiter;

/// The response of the server to a request without a body.
async fn exchange(address: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layer_on_axum_protects_routes() {
    let redis = Server::start(Engine::Redis70);
    for limiter in [Limiter::in_memory(), limiter(&redis).await] {
        let app = axum_example::app(limiter).unwrap();
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        for remaining in [1, 0] {
            let reply = exchange(address, "POST /login").await;
            assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
            assert!(reply.contains("ratelimit-policy: \"login\";q=5;w=60\r\n"), "{reply}");
            assert!(reply.contains(&format!("ratelimit: \"login\";r={remaining};t=1")), "{reply}");
        }
        let denied = exchange(address, "POST /login").await;
        assert!(denied.starts_with("HTTP/1.1 429"), "{denied}");
        assert!(denied.contains("\r\nretry-after: 1"), "{denied}");
        assert!(denied.contains("content-type: application/problem+json"), "{denied}");
        assert!(exchange(address, "GET /hello").await.contains("\"other\";r=29;t="));
        assert!(!exchange(address, "GET /health").await.contains("ratelimit"));
        server.abort();
    }
}

/// A service starts while its store is down, and answers by its fallback; the usage is unknown then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_axum_starts_while_the_store_is_down() {
    let mut redis = Server::start(Engine::Redis70);
    let url = redis.url();
    redis.kill();
    let mut options = Options::default();
    (options.deadline, options.connect_timeout) = (Duration::from_secs(5), Duration::from_secs(5));
    let store = RedisStore::new(&url, options).unwrap();
    let app = axum_example::app(Limiter::new(store.clone())).unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    // Its burst is 2.
    for _ in 0..4 {
        let reply = exchange(address, "POST /login").await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        assert!(!reply.contains("ratelimit:"), "{reply}");
    }
    assert!(store.unavailable().is_some());
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_tonic_returns_resource_exhausted() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let incoming = TcpIncoming::from(listener);
        tonic_example::serve(incoming, Limiter::in_memory(), "gcra:2/1h").await.unwrap();
    });
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut check = async |caller: &'static str| {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-caller", caller.parse().unwrap());
        client.check(request).await
    };
    for remaining in [1, 0] {
        let reply = check("seven").await.unwrap();
        let actual = reply.metadata().get("ratelimit").unwrap().to_str().unwrap();
        assert!(actual.starts_with(&format!("\"calls\";r={remaining};")), "{actual}");
    }
    let status = check("seven").await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Too many requests"));
    let actual = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap().to_owned();
    assert!((1_700_000..=1_800_000).contains(&actual("grpc-retry-pushback-ms").parse().unwrap()));
    assert!((1700..=1800).contains(&actual("retry-after").parse().unwrap()));
    assert!(check("eight").await.is_ok());
    server.abort();
}
