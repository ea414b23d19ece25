//! `/admin/...`: an operator resets and blocks keys. Only where a token is required.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use sluicegate_commands::{CommandError, MAX_KEY};

use super::{Client, Reply, ask::read, problem::Problem, reply, route::Action};
use crate::{blocks::Listed, shared::Shared};

/// The shortest and the longest block.
const MIN_BLOCK: Duration = Duration::from_secs(1);
const MAX_BLOCK: Duration = Duration::from_secs(366 * 86_400);
/// Blocks that one response lists.
const MAX_LISTED: usize = 1000;

/// A key, and what to do with it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Order {
    key: Option<String>,
    key_base64: Option<String>,
    /// The number of a block, in place of its key.
    id: Option<u64>,
    duration_us: Option<u64>,
}

#[derive(Serialize)]
struct BlockList {
    count: usize,
    blocks: Vec<Shown>,
}

/// A blocked key. The dashboard's setting says how keys are shown.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    id: u64,
    key: String,
    remaining_us: u64,
}

impl Shown {
    pub(crate) fn of(shared: &Shared, block: &Listed) -> Self {
        Self {
            id: block.id,
            key: shared.dashboard.shown_key(&block.key),
            remaining_us: u64::try_from(block.remaining.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// The keys that are blocked.
pub(super) fn list(shared: &Shared) -> Reply {
    let listed = shared.decider.blocks.list(shared.decider.now());
    let blocks = listed.iter().take(MAX_LISTED).map(|it| Shown::of(shared, it)).collect();
    reply::value(&BlockList { count: listed.len(), blocks })
}

/// Carries out an action on a key, and logs it.
pub(super) async fn act(client: &Client, action: Action, body: &[u8]) -> Result<Reply, Problem> {
    let shared = &*client.worker.shared;
    let order: Order = read(body)?;
    let now = shared.decider.now();
    if action != Action::Block && order.duration_us.is_some() {
        return Err(Problem::unprocessable("`duration_us` is for /admin/block: remove it"));
    }
    if action != Action::Unblock && order.id.is_some() {
        return Err(Problem::unprocessable("`id` is for /admin/unblock: remove it"));
    }
    let key = match order.id {
        None => order.key()?,
        Some(_) if order.key.is_some() || order.key_base64.is_some() => {
            return Err(Problem::unprocessable("both `id` and a key are given: expected one"));
        }
        Some(id) => match shared.decider.blocks.key_of(id) {
            Some(key) => key.to_vec(),
            None => return Ok(reply::reset(false)),
        },
    };
    let shown = shared.dashboard.shown_key(&key);
    let from = client.address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
    match action {
        Action::Reset => {
            let existed = shared.decider.store.reset(&key, now).await?;
            shared.decider.queues.changed(&key);
            tracing::warn!(key = shown, client = from, existed, "key reset by an operator");
            Ok(reply::reset(existed))
        }
        Action::Block => {
            let duration = order.duration()?;
            let id = shared.decider.blocks.block(&key, duration, now);
            let id = id.map_err(|error| Problem::unprocessable(error.to_string()))?;
            let seconds = duration.as_secs_f64();
            tracing::warn!(key = shown, client = from, seconds, "key blocked by an operator");
            Ok(reply::value(&serde_json::json!({ "id": id })))
        }
        Action::Unblock => {
            let existed = shared.decider.blocks.unblock(&key, now);
            shared.decider.queues.changed(&key);
            tracing::warn!(key = shown, client = from, existed, "key unblocked by an operator");
            Ok(reply::reset(existed))
        }
    }
}

impl Order {
    fn key(&self) -> Result<Vec<u8>, Problem> {
        let key = match (&self.key, &self.key_base64) {
            (Some(key), None) => key.clone().into_bytes(),
            (None, Some(text)) => STANDARD.decode(text).map_err(|_| {
                let text = "invalid `key_base64`: expected standard Base64 with padding";
                Problem::unprocessable(text)
            })?,
            (None, None) => {
                return Err(Problem::unprocessable("missing key: expected `key` or `key_base64`"));
            }
            (Some(_), Some(_)) => {
                let text = "both `key` and `key_base64` are given: expected one";
                return Err(Problem::unprocessable(text));
            }
        };
        if key.len() > MAX_KEY { Err(CommandError::Key(key.len()).into()) } else { Ok(key) }
    }

    fn duration(&self) -> Result<Duration, Problem> {
        let Some(micros) = self.duration_us else {
            let text = "missing `duration_us`: expected microseconds, as 600000000 for 10 minutes";
            return Err(Problem::unprocessable(text));
        };
        let duration = Duration::from_micros(micros);
        if (MIN_BLOCK..=MAX_BLOCK).contains(&duration) {
            return Ok(duration);
        }
        let text = format!("invalid `duration_us` {micros}: expected 1 second to 366 days");
        Err(Problem::unprocessable(text))
    }
}
