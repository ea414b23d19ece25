//! Deletes all keys that match a pattern, on every server of the store.

use std::sync::Arc;

use redis::{Pipeline, Value, from_redis_value_ref};
use sluicegate_core::{Operation, StoreError};

use crate::{
    RedisStore,
    net::node_connection::{Deadline, NodeConnection},
};

/// Keys that one `SCAN` examines.
const SCAN_COUNT: usize = 1000;

impl RedisStore {
    /// Deletes the keys with the store's prefix that match `pattern`, which is one of `SCAN`. Returns their number;
    /// `None` for a server that cannot list its keys, such as one of Sluicegate.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] and [`StoreError::Timeout`] while a server is unavailable: some keys may be deleted.
    pub async fn delete_matching(&self, pattern: &str) -> Result<Option<u64>, StoreError> {
        let inner = self.inner();
        let mut matches = Vec::new();
        for &byte in &*inner.key_or_empty(b"")? {
            if b"*?[]\\".contains(&byte) {
                matches.push(b'\\');
            }
            matches.push(byte);
        }
        matches.extend_from_slice(pattern.as_bytes());
        let mut count = 0;
        for node in inner.topology.all(self.deadline()).await? {
            match self.delete_on(&node, &matches).await? {
                Some(deleted) => count += deleted,
                None => return Ok(None),
            }
        }
        Ok(Some(count))
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.options().deadline)
    }

    /// Deletes the keys of one server that match `pattern`.
    async fn delete_on(
        &self,
        node: &Arc<NodeConnection>,
        pattern: &[u8],
    ) -> Result<Option<u64>, StoreError> {
        let (mut cursor, mut count) = (0_u64, 0_u64);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
            let reply = node.command(&scan, self.deadline()).await?;
            if let Value::ServerError(error) = &reply
                && error.details().is_some_and(|it| it.starts_with("unknown command"))
            {
                return Ok(None);
            }
            let page: Result<(u64, Vec<Vec<u8>>), _> = from_redis_value_ref(&reply);
            let (next, keys) = page.map_err(|_| unexpected("SCAN", &reply))?;
            if !keys.is_empty() {
                // One command for each key, because in a cluster they are in several slots.
                let mut deletes = Pipeline::with_capacity(keys.len());
                let mut forgetting = Vec::with_capacity(keys.len());
                for key in &keys {
                    deletes.cmd("UNLINK").arg(key);
                    forgetting.push(self.inner().begin(key, Operation::Reset));
                }
                for reply in node.commands(&deletes, self.deadline()).await? {
                    let deleted: u64 =
                        from_redis_value_ref(&reply).map_err(|_| unexpected("UNLINK", &reply))?;
                    count += deleted;
                }
                for key in &keys {
                    self.inner().finish(key, Operation::Reset, true);
                }
            }
            if next == 0 {
                return Ok(Some(count));
            }
            cursor = next;
        }
    }
}

/// An error in place of a value of the expected type.
fn unexpected(command: &str, reply: &Value) -> StoreError {
    StoreError::Unavailable(match reply {
        Value::ServerError(error) => {
            format!("{} {}", error.code(), error.details().unwrap_or_default())
        }
        other => format!("unexpected reply to {command}: {other:?}"),
    })
}
