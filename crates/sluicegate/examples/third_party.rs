//! Obeys a third party's limit of 30 requests a minute from several workers: by denying requests, and by
//! delaying them.
//!
//! `cargo run --example third_party`. With a Redis URL as argument, several processes share the limit.

use std::time::Duration;

use sluicegate::{Limiter, OnError, PreparedPolicy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let limiter = match std::env::args().nth(1) {
        Some(url) => Limiter::connect(&url).await?,
        None => Limiter::in_memory(),
    };
    let refused = refusing(&limiter, "30/60s", 40).await?;
    println!("by denying: {refused} of 40 requests were too early");
    let order = delaying(&limiter, "30/60s", 4).await?;
    println!("by delaying: {order:?} were sent, two seconds apart");
    Ok(())
}

/// Denies requests that are too early, and returns how many there were.
pub async fn refusing(
    limiter: &Limiter,
    rate: &str,
    requests: u32,
) -> Result<u32, sluicegate::Error> {
    // Never more than 30 in any 60 seconds. Better to send nothing while the store is unavailable than to be
    // banned.
    let policy = policy(&format!("sliding-log:{rate}"))?.on_error(OnError::Deny);
    let mut refused = 0;
    for _ in 0..requests {
        if limiter.take("third-party", &policy, 1).await?.allowed() {
            // send it
        } else {
            refused += 1;
        }
    }
    Ok(refused)
}

/// Delays requests that are too early: evenly spaced over all workers. Returns the order in which the workers
/// sent.
pub async fn delaying(
    limiter: &Limiter,
    rate: &str,
    workers: u32,
) -> Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>> {
    let policy = policy(&format!("leaky-queue:{rate}"))?;
    let (sent, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for worker in 0..workers {
        let (limiter, policy, sent) = (limiter.clone(), policy.clone(), sent.clone());
        tasks.push(tokio::spawn(async move {
            // At most a minute; a longer wait is denied immediately.
            let patience = Duration::from_secs(60);
            let answer = limiter.until_ready("third-party-queue", &policy, 1, patience).await?;
            if answer.allowed() {
                // send it
                let _ = sent.send(worker);
            }
            Ok::<_, sluicegate::Error>(())
        }));
    }
    drop(sent);
    for task in tasks {
        task.await??;
    }
    let mut all = Vec::new();
    while let Some(worker) = order.recv().await {
        all.push(worker);
    }
    Ok(all)
}

fn policy(text: &str) -> Result<PreparedPolicy, sluicegate::Error> {
    text.parse()
        .map_err(|error: sluicegate::PolicyError| sluicegate::Error::Settings(error.to_string()))
}
