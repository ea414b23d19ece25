//! Generic commands on the keys of limiters, for operators.

use sluicegate_core::StoreStatus;
use sluicegate_resp::Writer;

use super::context::RespContext;

/// `DBSIZE`.
pub(super) fn count(shared: &RespContext, writer: &mut Writer<'_>) -> Result<(), String> {
    let StoreStatus::Local(usage) = shared.decider.store_status() else {
        return Err("ERR DBSIZE is unavailable: the keys are in a store; ask the store".to_owned());
    };
    writer.integer(i64::try_from(usage.keys).unwrap_or(i64::MAX));
    Ok(())
}

/// Keys that outlive what they were read from.
pub(super) fn owned(keys: &[&[u8]]) -> Vec<Box<[u8]>> {
    keys.iter().map(|&key| key.into()).collect()
}
