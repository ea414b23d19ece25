//! Obeys a third party's limit of 30 requests a minute from several workers: by denying requests, and by
//! delaying them.
//!
//! `cargo run --example third_party`. With a `RedisStore` in the limiter, several processes share the limit.

use std::time::Duration;

use sluicegate::{Error, Limiter, OnError, PreparedPolicy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::in_memory();
    let denied = denying(&limiter, "30/60s", 40).await?;
    println!("by denying: {denied} of 40 requests were too early");
    let order = delaying(&limiter, "30/60s", 4).await?;
    println!("by delaying: {order:?} were sent, two seconds apart");
    Ok(())
}

/// Denies requests that are too early, and returns how many there were.
pub async fn denying(limiter: &Limiter, rate: &str, requests: u32) -> Result<u32, Error> {
    // Never more than 30 in any 60 seconds. Better to send nothing while the store is unavailable than to be
    // banned.
    let policy: PreparedPolicy = format!("sliding-log:{rate}").parse()?;
    let policy = policy.on_error(OnError::Deny);
    let mut denied = 0;
    for _ in 0..requests {
        if limiter.take("third-party", &policy, 1).await?.allowed() {
            // send it
        } else {
            denied += 1;
        }
    }
    Ok(denied)
}

/// Delays requests that are too early: evenly spaced over all workers. Returns the order in which the workers
/// sent.
pub async fn delaying(limiter: &Limiter, rate: &str, workers: u32) -> Result<Vec<u32>, Error> {
    let policy: PreparedPolicy = format!("leaky-queue:{rate}").parse()?;
    let (sent, mut order) = tokio::sync::mpsc::unbounded_channel();
    for worker in 0..workers {
        let (limiter, policy, sent) = (limiter.clone(), policy.clone(), sent.clone());
        tokio::spawn(async move {
            // At most a minute; a longer wait is denied immediately.
            let timeout = Duration::from_secs(60);
            let answer = limiter.until_ready("third-party-queue", &policy, 1, timeout).await;
            // send the request, if it is allowed
            sent.send(answer.map(|answer| answer.allowed().then_some(worker)))
        });
    }
    drop(sent);
    let mut all = Vec::new();
    while let Some(worker) = order.recv().await {
        all.extend(worker?);
    }
    Ok(all)
}
