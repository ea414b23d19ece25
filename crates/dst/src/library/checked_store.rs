//! The store below the library, and below a server: that of a process, with a check of each answer.

use sluicegate_core::{
    Answer, Applied, HoldOperation, KeyedOperation, KeyedTake, MultiKeyAnswer, MultiKeyOperation,
    Operation, PreparedPolicy, ReadEntry, Store, StoreError, StoreStatus,
};

use crate::{
    process::{KeyedCall, Process},
    redis_model::ScriptOperation,
};

/// The store of a process. It does not answer while the process is paused, and never after it has ended.
#[derive(Debug)]
pub(crate) struct CheckedStore(pub(crate) Process);

impl CheckedStore {
    fn call<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: ScriptOperation<'a>,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        let call = KeyedCall { key, policy, operation };
        Applied::Later(self.0.gated(self.0.apply(call)))
    }
}

impl Store for CheckedStore {
    type Error = StoreError;

    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        self.call(key, policy, ScriptOperation::OnKey(operation))
    }

    fn apply_hold<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: HoldOperation<'a>,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        self.call(key, policy, ScriptOperation::OnHold(operation))
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        Applied::Later(self.0.gated(self.0.apply_many(operations)))
    }

    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, StoreError>> {
        Applied::Later(self.0.gated(self.0.apply_multi_key(operation, takes)))
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        Applied::Later(self.0.gated(self.0.store().read(key, read).into_future()))
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::Later(self.0.gated(self.0.reset(key)))
    }

    fn status(&self) -> StoreStatus {
        self.0.store().status()
    }
}
