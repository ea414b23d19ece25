//! Arguments of calls on several keys.

use std::borrow::Borrow;

use sluicegate_core::{KeyedOperation, Operation, PreparedPolicy};

/// `operation` on each key, with the cost there.
pub(crate) fn keyed<'a, K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
    operation: Operation<'a>,
    keys: &'a [(K, P, u32)],
) -> Vec<KeyedOperation<'a>> {
    let keyed = |(key, policy, cost): &'a (K, P, u32)| KeyedOperation {
        key: key.as_ref(),
        policy: policy.borrow(),
        operation: operation.with_cost(*cost),
    };
    keys.iter().map(keyed).collect()
}
