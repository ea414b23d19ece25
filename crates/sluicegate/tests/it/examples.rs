//! The examples, run with less time.

#![allow(dead_code, reason = "their `main` is not called")]
#![allow(unreachable_pub, reason = "they are programs of their own")]
#![allow(missing_docs, reason = "they are programs of their own")]

#[path = "../../examples/axum_route.rs"]
mod axum_route;
#[path = "../../examples/plans.rs"]
mod plans;
#[path = "../../examples/third_party.rs"]
mod third_party;
#[path = "../../examples/token_budget/main.rs"]
mod token_budget;

use sluicegate::Limiter;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_third_party_denies_and_delays() {
    let limiter = Limiter::in_memory();
    assert_eq!(third_party::denying(&limiter, "30/1h", 40).await.unwrap(), 10);
    let mut order = third_party::delaying(&limiter, "30/1s", 5).await.unwrap();
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn example_axum_route_is_limited() {
    let app = axum_route::app(Limiter::in_memory(), "gcra:2/1h").unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let get = async |user: u32| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET /hello?user={user} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        reply
    };
    for _ in 0..2 {
        assert!(get(7).await.starts_with("HTTP/1.1 200"));
    }
    let denied = get(7).await;
    assert!(denied.starts_with("HTTP/1.1 429") && denied.contains("retry-after: 1800"), "{denied}");
    assert!(get(8).await.starts_with("HTTP/1.1 200"));
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn example_token_budget_many_tokens_is_never_refused_and_uses_the_tokens() {
    let account = token_budget::run(token_budget::MANY_TOKENS, 10_000).await.unwrap();
    assert_eq!(account.refused, 0, "{account}");
    assert!(account.tokens.utilization >= 0.95, "{account}");
    assert!(account.disconnected >= 100 && account.kills >= 20, "{account}");
}

#[tokio::test(start_paused = true)]
async fn example_token_budget_many_requests_is_never_refused_and_uses_the_requests() {
    let account = token_budget::run(token_budget::MANY_REQUESTS, 10_000).await.unwrap();
    assert_eq!(account.refused, 0, "{account}");
    assert!(account.requests.utilization >= 0.95, "{account}");
    assert!(account.disconnected >= 100 && account.kills >= 20, "{account}");
}

#[tokio::test]
async fn example_plans_changed_usage_carries_over() {
    let lines = plans::run(&Limiter::in_memory()).await.unwrap();
    assert_eq!(
        lines,
        [
            "fixed-window:30/1h: 30 of 35 pass",
            "fixed-window:60/1h: 30 of 40 pass",
            "fixed-window:20/1h: 0 of 1 pass",
        ]
    );
}
