//! `/admin/...`: an operator reloads the rules, and, where a token is required, resets and blocks keys.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use http_body_util::Either;
use hyper::Method;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Visitor},
};
use sluicegate_commands::CommandError;
use sluicegate_core::{KeyLengthError, as_micros};

use crate::{
    decide::{Decider, blocks::BlockedKey},
    key_display::KeyDisplay,
    policies::rule_store::ReloadReport,
    protocols::http::{self, Access, Handler, Mount, MountedRequest, Problem, Reply},
};

/// Bounds of the duration of a block.
const MIN_BLOCK: Duration = Duration::from_secs(1);
const MAX_BLOCK: Duration = Duration::from_secs(366 * 86_400);
/// Maximum number of blocks in one response.
const MAX_LISTED: usize = 1000;

/// The body of an action on a key.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Order {
    #[serde(deserialize_with = "key")]
    key: Option<String>,
    #[serde(deserialize_with = "key_base64")]
    key_base64: Option<String>,
    /// The number of a block, in place of its key.
    #[serde(deserialize_with = "id")]
    id: Option<u64>,
    #[serde(deserialize_with = "duration")]
    duration_us: Option<u64>,
}

#[derive(Serialize)]
struct ReloadReply {
    version: u64,
    rules: usize,
    changed: bool,
}

#[derive(Serialize)]
struct BlockList {
    count: usize,
    blocks: Vec<ShownBlock>,
}

/// A blocked key, as operators see it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownBlock {
    id: u64,
    key: String,
    remaining_us: u64,
}

impl ShownBlock {
    pub(crate) fn new(display: &KeyDisplay, block: &BlockedKey) -> Self {
        Self {
            id: block.id,
            key: display.show(&block.key),
            remaining_us: as_micros(block.remaining),
        }
    }
}

/// The parts of the server that operators act on.
struct Admin {
    decider: Arc<Decider>,
    display: Arc<KeyDisplay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminAction {
    Reset,
    Block,
    Unblock,
}

/// Answers the requests of a route.
type AdminHandler =
    for<'a> fn(Arc<Admin>, MountedRequest<'a>) -> LocalBoxFuture<'a, Result<Reply, Problem>>;

/// The routes of operators.
pub(crate) fn mounts(decider: &Arc<Decider>, display: &Arc<KeyDisplay>) -> Vec<Mount> {
    let admin = Arc::new(Admin { decider: Arc::clone(decider), display: Arc::clone(display) });
    let route = |path, method, access, answer: AdminHandler| {
        let admin = Arc::clone(&admin);
        let handler: Handler = Box::new(move |call| {
            let reply = answer(Arc::clone(&admin), call);
            Box::pin(async move { Ok(reply.await?.map(Either::Left)) })
        });
        Mount { path, method, access, is_documented: true, handler }
    };
    let (get, post, holders) = (Method::GET, Method::POST, Access::TokenHolders);
    vec![
        route("/admin/reload", post.clone(), Access::Clients, |admin, call| {
            Box::pin(async move { admin.reload(&call).await })
        }),
        route("/admin/reset", post.clone(), holders, |admin, call| {
            Box::pin(async move { admin.act(AdminAction::Reset, call).await })
        }),
        route("/admin/block", post.clone(), holders, |admin, call| {
            Box::pin(async move { admin.act(AdminAction::Block, call).await })
        }),
        route("/admin/unblock", post, holders, |admin, call| {
            Box::pin(async move { admin.act(AdminAction::Unblock, call).await })
        }),
        route("/admin/blocks", get, holders, |admin, _| {
            Box::pin(async move { Ok(admin.blocks()) })
        }),
    ]
}

impl Admin {
    /// Reads the rules again.
    async fn reload(&self, call: &MountedRequest<'_>) -> Result<Reply, Problem> {
        call.check_json_type()?;
        let report = self.decider.rules.reload().await.map_err(Problem::unprocessable)?;
        let ReloadReport { version, rules, changed, .. } = report;
        Ok(http::value(&ReloadReply { version, rules, changed }))
    }

    /// The keys that are blocked.
    fn blocks(&self) -> Reply {
        let listed = self.decider.blocks.list(self.decider.now());
        let blocks = listed.iter().take(MAX_LISTED);
        let blocks = blocks.map(|it| ShownBlock::new(&self.display, it)).collect();
        http::value(&BlockList { count: listed.len(), blocks })
    }

    /// Carries out an action on a key, and logs it.
    async fn act(
        &self,
        action: AdminAction,
        mut call: MountedRequest<'_>,
    ) -> Result<Reply, Problem> {
        let decider = &*self.decider;
        let order: Order = call.read_json().await?;
        let now = decider.now();
        if action != AdminAction::Block && order.duration_us.is_some() {
            return Err(Problem::unprocessable("`duration_us` is for /admin/block: remove it"));
        }
        if action != AdminAction::Unblock && order.id.is_some() {
            return Err(Problem::unprocessable("`id` is for /admin/unblock: remove it"));
        }
        let key = match order.id {
            None => order.key()?,
            Some(_) if order.key.is_some() || order.key_base64.is_some() => {
                return Err(Problem::unprocessable("both `id` and a key are given: expected one"));
            }
            Some(id) => match decider.blocks.key_of(id) {
                Some(key) => key.to_vec(),
                None => return Ok(http::reset(false)),
            },
        };
        let shown = self.display.show(&key);
        let from = call.address.map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        match action {
            AdminAction::Reset => {
                let existed = decider.reset(&key, now).await?;
                tracing::warn!(key = shown, client = from, existed, "key reset by an operator");
                Ok(http::reset(existed))
            }
            AdminAction::Block => {
                let duration = order.duration()?;
                let id = decider.blocks.block(&key, duration, now);
                let id = id.map_err(|error| Problem::unprocessable(error.to_string()))?;
                let seconds = duration.as_secs_f64();
                tracing::warn!(key = shown, client = from, seconds, "key blocked by an operator");
                Ok(http::value(&serde_json::json!({ "id": id })))
            }
            AdminAction::Unblock => {
                let existed = decider.blocks.unblock(&key, now);
                decider.queues.changed(&key);
                tracing::warn!(key = shown, client = from, existed, "key unblocked by an operator");
                Ok(http::reset(existed))
            }
        }
    }
}

impl Order {
    /// The key. It may be empty: `CL.THROTTLE` limits such a key, too.
    fn key(&self) -> Result<Vec<u8>, Problem> {
        let key = http::given_key(self.key.as_deref(), self.key_base64.as_deref())?;
        KeyLengthError::check_or_empty(key.len()).map_err(CommandError::Key)?;
        Ok(key.into())
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
        let text = format!("invalid `duration_us` `{micros}`: expected {}", expected_duration());
        Err(Problem::unprocessable(text))
    }
}

fn expected_duration() -> String {
    format!("{} to {} microseconds", as_micros(MIN_BLOCK), as_micros(MAX_BLOCK))
}

// A member must have a value; null is rejected.

fn key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    from.deserialize_str(http::Str { expected: "`key`, a string" }).map(|it| Some(it.into()))
}

fn key_base64<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    from.deserialize_str(http::Str { expected: "`key_base64`, a string" }).map(|it| Some(it.into()))
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_u64(WholeNumber("`id`, the number of a block".to_owned())).map(Some)
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let expected = format!("`duration_us`, {}", expected_duration());
    from.deserialize_u64(WholeNumber(expected)).map(Some)
}

/// Reads a whole number. The string is what an error expects: the name of the member, and its values.
struct WholeNumber(String);

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}
