//! Units that were taken for a request that is cancelled.

use std::sync::Arc;

use sluicegate_core::{Operation, PreparedPolicy, Request, Store};
use tokio::runtime::Handle;

/// Applies `refund`, which is that of a request of `key` that was cancelled: at once,
/// or by a task of `runtime` in a store that answers later. It is for the drop of a request, which cannot wait. If the
/// refund fails, the units recover in time.
pub fn return_units<S: Store + ?Sized + 'static>(
    store: &Arc<S>,
    key: &[u8],
    policy: &PreparedPolicy,
    refund: Operation<'static>,
    runtime: Option<&Handle>,
) {
    if store.apply(Request::one(key, policy, refund)).now().is_some() {
        return;
    }
    let Some(runtime) = runtime else { return };
    let (store, key, policy) = (Arc::clone(store), key.to_vec(), policy.clone());
    runtime.spawn(async move { drop(store.apply(Request::one(&key, &policy, refund)).await) });
}
