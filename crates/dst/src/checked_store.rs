//! The store below the library, and below a server: that of a process, with a check of each answer.

use std::fmt::Debug;

use sluicegate_core::{
    Answer, Applied, HoldOperation, KeyedOperation, KeyedTake, MultiKeyAnswer, MultiKeyOperation,
    Operation, PreparedPolicy, ReadEntry, Store, StoreError, StoreStatus,
};

use crate::{
    check::Kind,
    process::{KeyedCall, Process},
    redis_model::ScriptOperation,
};

/// Keeps the answers of a store, to compare them with those of the layer above it.
pub(crate) trait Recorder: Debug + Send + Sync + 'static {
    /// Records the answer on a key. `None` is an error.
    fn on_key(&self, key: &[u8], kind: Kind, answer: Option<&Answer>);

    fn on_keys(&self, takes: &[KeyedTake<'_>], answer: &Result<MultiKeyAnswer, StoreError>);
}

/// Keeps nothing.
impl Recorder for () {
    fn on_key(&self, _: &[u8], _: Kind, _: Option<&Answer>) {}

    fn on_keys(&self, _: &[KeyedTake<'_>], _: &Result<MultiKeyAnswer, StoreError>) {}
}

/// The store of a process. It does not answer while the process is paused, and never after it has ended.
#[derive(Debug)]
pub(crate) struct CheckedStore<R = ()> {
    process: Process,
    recorder: R,
}

impl<R: Recorder> CheckedStore<R> {
    pub(crate) fn new(process: &Process, recorder: R) -> Self {
        Self { process: process.clone(), recorder }
    }

    fn call<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: ScriptOperation<'a>,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::later(async move {
            let call = KeyedCall { key, policy, operation };
            let answer = self.process.gated(self.process.apply(call)).await;
            self.recorder.on_key(key, Kind::of(operation), answer.as_ref().ok());
            answer
        })
    }
}

impl<R: Recorder> Store for CheckedStore<R> {
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
        Applied::later(async move {
            let answers = self.process.gated(self.process.apply_many(operations)).await;
            for (it, answer) in operations.iter().zip(&answers) {
                let kind = Kind::of(it.operation.into());
                self.recorder.on_key(it.key, kind, answer.as_ref().ok());
            }
            answers
        })
    }

    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, StoreError>> {
        Applied::later(async move {
            let answer = self.process.gated(self.process.apply_multi_key(operation, takes)).await;
            self.recorder.on_keys(takes, &answer);
            answer
        })
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        Applied::later(async move {
            let reading = self.process.store().read(key, read).into_future();
            let done = self.process.gated(reading).await;
            if done.is_err() {
                self.recorder.on_key(key, Kind::Other("peek", 0), None);
            }
            done
        })
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::later(async move {
            let was_used = self.process.gated(self.process.reset(key)).await;
            if was_used.is_err() {
                self.recorder.on_key(key, Kind::Other("reset", 0), None);
            }
            was_used
        })
    }

    fn status(&self) -> StoreStatus {
        self.process.store().status()
    }
}
