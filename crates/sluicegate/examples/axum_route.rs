//! Limits an axum route by hand: 429 with `Retry-After` for clients that send too many requests. The crate
//! `sluicegate-tower` is middleware that does this and more, for tonic and hyper too.
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
use sluicegate::{Limiter, OnError, PreparedPolicy, Retry};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 3000)).await?;
    Ok(axum::serve(listener, app(Limiter::in_memory(), "gcra:5/10s")?).await?)
}

/// The routes, with a limit.
pub fn app(limiter: Limiter, policy: &str) -> Result<Router, sluicegate::PolicyError> {
    // While the store is unavailable, requests pass. For logins, use `OnError::Deny`.
    let policy = policy.parse::<PreparedPolicy>()?.on_error(OnError::Allow);
    Ok(Router::new()
        .route("/hello", get(async || "hello\n"))
        .layer(middleware::from_fn_with_state((limiter, policy), limit)))
}

async fn limit(
    State((limiter, policy)): State<(Limiter, PreparedPolicy)>,
    request: Request,
    next: Next,
) -> Response {
    // The key: here the query string. In production, a verified user or an address.
    let key = format!("hello:{}", request.uri().query().unwrap_or_default());
    match limiter.take(key, &policy, 1).await {
        Ok(answer) if answer.allowed() => next.run(request).await,
        Ok(answer) => {
            // Whole seconds, rounded up: a client that waits that long passes.
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
