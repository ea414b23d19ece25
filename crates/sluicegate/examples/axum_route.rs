//! Protecting a route of axum by hand: 429 with `Retry-After` for whoever asks too often. The crate
//! `sluicegate-tower` is a layer that does this and more, for tonic and hyper too.
//!
//! `cargo run --example axum_route`, then `curl -i http://127.0.0.1:3000/hello?user=7` a few times.

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::RETRY_AFTER},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use sluicegate::{Limiter, OnError, Retry, Rule};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = match std::env::args().nth(1) {
        Some(url) => Limiter::connect(&url).await?,
        None => Limiter::in_memory(),
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 3000)).await?;
    Ok(axum::serve(listener, app(limiter, "gcra:5/10s")?).await?)
}

/// The routes, each behind the limit.
pub fn app(limiter: Limiter, policy: &str) -> Result<Router, sluicegate::PolicyError> {
    // A limiter in front of the public fails open: without Redis, all may pass.
    let rule = policy.parse::<Rule>()?.on_error(OnError::Allow);
    Ok(Router::new()
        .route("/hello", get(async || "hello\n"))
        .layer(middleware::from_fn_with_state((limiter, rule), limit)))
}

async fn limit(
    State((limiter, rule)): State<(Limiter, Rule)>,
    request: Request,
    next: Next,
) -> Response {
    // Whom it is about: here a part of the query, elsewhere a token or an address.
    let key = format!("hello:{}", request.uri().query().unwrap_or_default());
    match limiter.take(key, &rule, 1).await {
        Ok(answer) if answer.allowed() => next.run(request).await,
        Ok(answer) => {
            // Whole seconds, rounded up, so that who waits as told passes.
            let seconds = match answer.retry() {
                Some(Retry::After(wait)) => wait.as_millis().div_ceil(1000).max(1),
                _ => 1,
            };
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds.to_string())], "too many\n")
                .into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
