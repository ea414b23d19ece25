//! A server as the store of other programs.

use sluicegate_core::{KeyedTake, MultiKeyOperation, PreparedPolicy, Source, Store as _};
use sluicegate_redis::RedisStore;

use crate::{harness::Running, store::patient};

/// A server of Sluicegate has no scripts, and no command that peeks at several keys.
#[test]
fn store_in_a_server_peeks_at_several_keys() {
    let server = Running::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("redis://{}", server.address);
        let store = RedisStore::new(&url, patient()).unwrap();
        let policy: PreparedPolicy = "fixed-window:2/1h".parse().unwrap();
        let take = |key, cost| KeyedTake { key, policy: &policy, cost };
        let takes = [take(&b"a"[..], 1), take(b"b", 2)];
        for (operation, expected) in [
            (MultiKeyOperation::Peek, Ok(())),
            (MultiKeyOperation::Take, Ok(())),
            (MultiKeyOperation::Peek, Err(1)),
        ] {
            let answer = store.apply_multi_key(operation, &takes).await.unwrap();
            assert_eq!(answer.source, Source::Store);
            let denied = if answer.decision.allowed() { Ok(()) } else { Err(answer.multi_key.key) };
            assert_eq!(denied, expected, "{operation:?}");
        }
    });
}
