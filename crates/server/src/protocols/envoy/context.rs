//! The parts of the server that calls of the rate limit service use.

use std::{sync::Arc, time::Duration};

use sluicegate_core::Timestamp;
use tokio::sync::Semaphore;

use crate::{
    EnvoyConfig, FallbackDenial, budgets::buffers::BufferBudget, decide::Decider,
    stats::QuotaStats, telemetry::Telemetry,
};

/// The parts of the server that calls of the rate limit service use.
#[derive(Debug)]
pub(crate) struct EnvoyContext {
    pub(crate) decider: Arc<Decider>,
    pub(crate) config: EnvoyConfig,
    pub(crate) fallback_denial: FallbackDenial,
    /// How long a call may be incomplete; zero: any time.
    pub(crate) input_timeout: Duration,
    /// Memory for all clients.
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) quotas: Arc<QuotaStats>,
    /// One stream of the quota service at a time uses a store elsewhere, so that they are a small load for it.
    pub(crate) quota_turns: Semaphore,
    /// When the server was started.
    pub(crate) started: Timestamp,
    /// Records spans, if it is to.
    pub(crate) telemetry: Option<Telemetry>,
}
