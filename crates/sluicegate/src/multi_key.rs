//! Arguments of calls on several keys.

use std::borrow::Borrow;

use sluicegate_core::{KeyedTake, PreparedPolicy};

/// The takes, for a store.
pub(crate) fn keyed_takes<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
    takes: &[(K, P, u32)],
) -> Vec<KeyedTake<'_>> {
    let takes = takes.iter();
    takes
        .map(|take| KeyedTake { key: take.0.as_ref(), policy: take.1.borrow(), cost: take.2 })
        .collect()
}

/// The policy of each.
pub(crate) fn policies<'a>(takes: &[KeyedTake<'a>]) -> Vec<&'a PreparedPolicy> {
    takes.iter().map(|take| take.policy).collect()
}
