//! Limits axum routes, each by its own policy, per client network.
//!
//! `cargo run -p sluicegate-tower --example axum`, then `curl -i http://127.0.0.1:3000/hello` a few times. With a
//! Redis URL as argument, several processes share the limits.

use std::net::SocketAddr;

use axum::{
    Router,
    extract::ConnectInfo,
    http::Method,
    routing::{get, post},
};
use sluicegate::Limiter;
use sluicegate_redis::{Options, RedisStore};
use sluicegate_tower::{ClientAddress, NamedPolicy, RateLimitLayer, Routes};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = match std::env::args().nth(1) {
        Some(url) => Limiter::new(RedisStore::new(&url, Options::default())?),
        None => Limiter::in_memory(),
    };
    let address = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let app = app(limiter)?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}

/// The routes, with their limits.
pub fn app(limiter: Limiter) -> Result<Router, sluicegate::PolicyError> {
    let routes = Routes::new()
        .unlimited("/health")
        .on(Method::POST, "/login", NamedPolicy::new("login", "gcra:5/1m:burst=2".parse()?))
        .otherwise(NamedPolicy::new("other", "gcra:30/1m".parse()?));
    let layer = RateLimitLayer::new(limiter, routes)
        // Behind one proxy: ClientAddress::x_forwarded_for(1)
        .by(ClientAddress::peer().found_in::<ConnectInfo<SocketAddr>>())
        // While the store is unavailable, requests pass. To deny logins then, give them middleware of their own.
        .allow_on_error(true)
        .observe(|event| {
            if event.result.is_err() {
                eprintln!("{event}");
            }
        });
    Ok(Router::new()
        .route("/health", get(async || "well\n"))
        .route("/login", post(async || "welcome\n"))
        .route("/hello", get(async || "hello\n"))
        .layer(layer))
}
