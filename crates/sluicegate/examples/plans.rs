//! Plans that change while the program runs: the usage of each key carries over.
//!
//! `cargo run --example plans`

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use sluicegate::{Limiter, PreparedPolicy};

/// The policy of each plan. Shared by all requests; changed when the settings change.
#[derive(Clone, Debug, Default)]
pub struct Plans(Arc<RwLock<HashMap<String, PreparedPolicy>>>);

impl Plans {
    /// Sets the policy of a plan, from the next request on. Other processes may use the old policy for a while: their
    /// takes count for all.
    pub fn set(&self, plan: &str, policy: &str) -> Result<(), sluicegate::PolicyError> {
        let policy = policy.parse()?;
        if let Ok(mut plans) = self.0.write() {
            plans.insert(plan.to_owned(), policy);
        }
        Ok(())
    }

    /// The policy of a plan, if there is one.
    pub fn policy(&self, plan: &str) -> Option<PreparedPolicy> {
        self.0.read().ok()?.get(plan).cloned()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for line in run(&Limiter::in_memory()).await? {
        println!("{line}");
    }
    Ok(())
}

/// Shows how two changes affect a user.
pub async fn run(limiter: &Limiter) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let plans = Plans::default();
    let mut lines = Vec::new();
    plans.set("free", "fixed-window:30/1h")?;
    for (change, requests) in
        [(None, 35), (Some("fixed-window:60/1h"), 40), (Some("fixed-window:20/1h"), 1)]
    {
        if let Some(policy) = change {
            plans.set("free", policy)?;
        }
        let policy = plans.policy("free").ok_or("the plan exists")?;
        let mut passed = 0;
        for _ in 0..requests {
            passed += u32::from(limiter.take("user7", &policy, 1).await?.allowed());
        }
        lines.push(format!("{}: {passed} of {requests} pass", policy.policy()));
    }
    Ok(lines)
}
