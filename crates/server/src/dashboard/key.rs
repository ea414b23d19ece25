//! One key, looked up: what it has used of each limit, and when it recovers.

use serde::Serialize;
use sluicegate_commands::Description;

use super::play::Level;
use crate::{DashboardMode, home::Trouble, shared::Shared};

/// What is told of a key.
#[derive(Debug, Serialize)]
pub(super) struct Looked {
    /// Whether anything is kept of it. A key that has recovered is as if never used.
    found: bool,
    /// What stands for it in the lists, where keys are masked.
    mask: Option<String>,
    #[serde(flatten)]
    state: Option<State>,
}

#[derive(Debug, Serialize)]
struct State {
    policy: String,
    reset_after_us: i64,
    lifetime_us: i64,
    bytes: i64,
    limits: Vec<Level>,
}

/// Looks up `key`, wherever the state is.
pub(super) async fn look_up(shared: &Shared, key: &[u8]) -> Result<Looked, Trouble> {
    let hub = &shared.dashboard;
    let mask = (hub.mode == DashboardMode::Masked).then(|| hub.mask(key));
    let described = shared.home.read(key, shared.now(), Description::of).await?.flatten();
    let state = described.map(|it| State {
        policy: it.policy,
        reset_after_us: it.reset_after_us,
        lifetime_us: it.lifetime_us,
        bytes: it.bytes,
        limits: it.limits.into_iter().map(Level::from).collect(),
    });
    Ok(Looked { found: state.is_some(), mask, state })
}
