//! One key, looked up: its usage of each limit, when the next request passes, and when it has fully
//! recovered.

use serde::Serialize;
use sluicegate_commands::{KeyDescription, PolicyText};
use sluicegate_core::{Entry, Policy, PreparedPolicy, Retry, StoreError, Timestamp, as_micros};

use super::{playground::Level, sources::Sources};
use crate::{DashboardMode, key_display::KeyDisplay};

/// The state of a key, as the page shows it.
#[derive(Debug, Serialize)]
pub(super) struct KeyView {
    /// Whether the key has usage that has not recovered.
    found: bool,
    /// How long an operator still blocks the key.
    blocked_us: Option<u64>,
    /// Its mask in the lists, if keys are masked.
    mask: Option<String>,
    #[serde(flatten)]
    state: Option<State>,
}

#[derive(Debug, Serialize)]
struct State {
    policy: String,
    /// How a request of cost 1 would be answered; `None` if the store does not say.
    next: Option<Next>,
    reset_after_us: i64,
    lifetime_us: i64,
    bytes: i64,
    limits: Vec<Level>,
    /// `None` if no hold is open.
    holds: Option<Holds>,
}

/// The open holds of a key.
#[derive(Debug, Serialize)]
struct Holds {
    count: usize,
    units: u64,
    /// The mask of the id of the hold that expires first: ids may identify requests.
    first: String,
    /// When that hold expires, unless it is settled or renewed.
    first_expires_after_us: u64,
}

impl Holds {
    fn of(entry: &Entry, now: Timestamp, display: &KeyDisplay) -> Option<Self> {
        let first = entry.holds(now).next()?;
        let (count, units) = entry
            .holds(now)
            .fold((0, 0), |(count, units), hold| (count + 1, units + u64::from(hold.units)));
        Some(Self {
            count,
            units,
            first: display.mask(first.id),
            first_expires_after_us: as_micros(first.expires_after(now)),
        })
    }
}

/// How a request of cost 1 would be answered.
#[derive(Debug, Serialize)]
struct Next {
    allowed: bool,
    remaining: u32,
    /// `None` if it is allowed, or can never succeed.
    retry_after_us: Option<u64>,
    /// The binding limit.
    limit: Option<String>,
}

/// Looks up `key` in the store.
pub(super) async fn look_up(sources: &Sources, key: &[u8]) -> Result<KeyView, StoreError> {
    let display = &sources.display;
    let mask = (display.mode == DashboardMode::Masked).then(|| display.mask(key));
    let read = |entry: &Entry, now| {
        KeyDescription::of(entry, now).map(|it| (it, Holds::of(entry, now, display)))
    };
    let described = sources.decider.read(key, sources.decider.now(), read).await?.flatten();
    let blocked = sources.decider.blocks.remaining(key, sources.decider.now());
    let blocked_us = blocked.map(as_micros);
    let Some((it, holds)) = described else {
        return Ok(KeyView { found: false, blocked_us, mask, state: None });
    };
    let state = State {
        next: next(sources, key, &it.policy).await?,
        policy: it.policy,
        reset_after_us: it.reset_after_us,
        lifetime_us: it.lifetime_us,
        bytes: it.bytes,
        limits: it.limits.into_iter().map(Level::from).collect(),
        holds,
    };
    Ok(KeyView { found: true, blocked_us, mask, state: Some(state) })
}

/// Peeks at `key` under the policy that it was last written under.
async fn next(sources: &Sources, key: &[u8], policy: &str) -> Result<Option<Next>, StoreError> {
    let Ok(policy): Result<Policy, _> = PolicyText::Text(policy.as_bytes()).parse() else {
        return Ok(None);
    };
    let prepared = PreparedPolicy::new(&policy);
    let now = sources.decider.now();
    let decision = sources.decider.peek(key, &prepared, 1, now).await?.decision;
    let retry_after_us = match decision.retry() {
        Some(Retry::After(span)) => Some(as_micros(span)),
        Some(Retry::Never) | None => None,
    };
    Ok(Some(Next {
        allowed: decision.allowed(),
        remaining: decision.remaining,
        retry_after_us,
        limit: policy.limits().get(decision.binding).map(ToString::to_string),
    }))
}
