//! A token budget for a language model, whose costs are known only afterwards: reserves the expected cost of a
//! request, then charges or refunds the difference.
//!
//! `cargo run --example token_budget`

use std::time::Duration;

use sluicegate::{Limiter, PreparedPolicy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::in_memory();
    // 100 000 tokens a minute, at most 20 000 at once.
    let policy: PreparedPolicy = "token-bucket:100000/60s:burst=20000".parse()?;
    for (expected, real) in [(6_000, 7_500), (12_000, 4_000), (9_000, 9_000)] {
        match request(&limiter, &policy, "team-7", expected, async || real).await? {
            Some(left) => println!("expected {expected}, took {real}: {left} left"),
            None => println!("expected {expected}: not within a second"),
        }
    }
    Ok(())
}

/// Sends a request when its expected tokens are available, and settles the actual number. Returns the remaining
/// tokens; `None` if the wait exceeds a second.
pub async fn request(
    limiter: &Limiter,
    policy: &PreparedPolicy,
    team: &str,
    expected: u32,
    send: impl AsyncFnOnce() -> u32,
) -> Result<Option<u32>, sluicegate::Error> {
    let answer = limiter.reserve(team, policy, expected, Duration::from_secs(1)).await?;
    if !answer.allowed() {
        return Ok(None);
    }
    tokio::time::sleep(answer.delay()).await;
    let real = send().await;
    let settled = if real > expected {
        limiter.charge(team, policy, real - expected).await?
    } else {
        limiter.refund(team, policy, expected - real).await?
    };
    Ok(Some(settled.remaining))
}
