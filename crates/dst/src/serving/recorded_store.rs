//! The store of a server: that of its process, whose answers are kept until clients have them.

use std::sync::Arc;

use parking_lot::Mutex;
use sluicegate_core::{
    Answer, Applied, HoldOperation, KeyedOperation, KeyedTake, MultiKeyAnswer, MultiKeyOperation,
    Operation, PreparedPolicy, ReadEntry, Store, StoreError, StoreStatus,
};

use super::answers::Answers;
use crate::{check::Kind, library::CheckedStore, redis_model::ScriptOperation};

#[derive(Debug)]
pub(super) struct RecordedStore {
    pub(super) store: CheckedStore,
    pub(super) answers: Arc<Mutex<Answers>>,
}

impl RecordedStore {
    fn record(
        &self,
        key: &[u8],
        operation: ScriptOperation<'_>,
        answer: &Result<Answer, StoreError>,
    ) {
        self.answers.lock().on_key(key, Kind::of(operation), answer.as_ref().ok());
    }
}

impl Store for RecordedStore {
    type Error = StoreError;

    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::later(async move {
            let answer = self.store.apply(key, policy, operation).await;
            self.record(key, operation.into(), &answer);
            answer
        })
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        Applied::later(async move {
            let answers = self.store.apply_many(operations).await;
            for (it, answer) in operations.iter().zip(&answers) {
                self.record(it.key, it.operation.into(), answer);
            }
            answers
        })
    }

    fn apply_hold<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: HoldOperation<'a>,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::later(async move {
            let answer = self.store.apply_hold(key, policy, operation).await;
            self.record(key, ScriptOperation::OnHold(operation), &answer);
            answer
        })
    }

    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, StoreError>> {
        Applied::later(async move {
            let answer = self.store.apply_multi_key(operation, takes).await;
            let keys = takes.iter().map(|it| it.key.to_vec()).collect();
            self.answers.lock().on_keys(keys, &answer);
            answer
        })
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        Applied::later(async move {
            let done = self.store.read(key, read).await;
            if done.is_err() {
                self.answers.lock().on_key(key, Kind::Other("peek", 0), None);
            }
            done
        })
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::later(async move {
            let was_used = self.store.reset(key).await;
            if was_used.is_err() {
                self.answers.lock().on_key(key, Kind::Other("reset", 0), None);
            }
            was_used
        })
    }

    fn status(&self) -> StoreStatus {
        self.store.status()
    }

    fn close(&self) -> Applied<'_, ()> {
        self.store.close()
    }
}
