//! Reads the stored entry of a key.

use redis::{Pipeline, Value, from_redis_value_ref};
use sluicegate_commands::CommandError;
use sluicegate_core::{Entry, StateError, StateFault, StoreError, Timestamp};

use crate::{
    RedisStore,
    call::MAX_REDIRECTS,
    net::node_connection::Deadline,
    reply::{redirect_target, too_many_redirects},
    slot::slot,
};

impl RedisStore {
    /// The entry of `key`, if there is one, and the time of the store, by which the entry may have recovered.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the key holds something else, [`StoreError::Unavailable`] and
    /// [`StoreError::Timeout`] while the store is unavailable.
    pub(crate) async fn entry(&self, key: &[u8]) -> Result<(Option<Entry>, Timestamp), StoreError> {
        let inner = self.inner();
        let (key, deadline) =
            (inner.key_or_empty(key)?, Deadline::after(inner.context.options.deadline));
        let slot = slot(&key);
        let mut node = inner.topology.node(slot, deadline).await?;
        let mut asking = false;
        for _ in 0..=MAX_REDIRECTS {
            let mut both = Pipeline::with_capacity(3);
            if asking {
                both.cmd("ASKING");
            }
            both.cmd("GET").arg(&*key).cmd("TIME");
            let replies = node.commands(&both, deadline).await;
            let mut replies = replies.inspect_err(|_| inner.topology.refresh())?;
            let (time, bytes) = (replies.pop().unwrap_or(Value::Nil), replies.pop());
            let bytes = bytes.unwrap_or(Value::Nil);
            if let Some((to, moved)) = redirect_target(&bytes) {
                inner.context.counts.redirects.one();
                node = inner.topology.redirected(slot, &to, &node, moved)?;
                asking = !moved;
                continue;
            }
            let now = inner.given_time().map_or_else(|| clock(&time), Ok);
            return Ok((read(&key, &bytes)?, now?));
        }
        Err(too_many_redirects(slot))
    }
}

/// Parses the value of a key.
fn read(key: &[u8], value: &Value) -> Result<Option<Entry>, StoreError> {
    let corrupt = |fault, error: &CommandError| Err(StoreError::Corrupt(fault, error.to_string()));
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) if is_redis_cell(bytes) => {
            corrupt(StateFault::Damaged, &CommandError::redis_cell(key))
        }
        Value::BulkString(bytes) => Entry::decode(bytes).map(Some).or_else(|error| {
            let is_later = matches!(error, StateError::Version(_));
            let fault = if is_later { StateFault::Version } else { StateFault::Damaged };
            corrupt(fault, &CommandError::state(key, error))
        }),
        Value::ServerError(error) if error.code() == "WRONGTYPE" => {
            corrupt(StateFault::WrongType, &CommandError::wrong_type(key))
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            Err(StoreError::Unavailable(format!("{code} {details}")))
        }
        other => Err(StoreError::Unavailable(format!("unexpected reply to GET: {other:?}"))),
    }
}

/// Whether the value is one of redis-cell: digits, with which no state of Sluicegate begins.
fn is_redis_cell(bytes: &[u8]) -> bool {
    (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit)
}

/// Parses the reply to `TIME`.
fn clock(value: &Value) -> Result<Timestamp, StoreError> {
    let (seconds, micros): (u64, u64) = from_redis_value_ref(value)
        .map_err(|_| StoreError::Unavailable(format!("unexpected reply to TIME: {value:?}")))?;
    Ok(Timestamp::saturating_from_micros(seconds.saturating_mul(1_000_000) + micros))
}
