//! The store below the library, and below a server: that of a process, with a check of each answer.

use std::fmt::Debug;

use sluicegate_core::{
    Answer, Applied, KeyedOperation, Operation, ReadEntry, Request, Store, StoreError, StoreStatus,
};

use crate::{check::Kind, process::Process};

/// Keeps the answers of a store, to compare them with those of the layer above it.
pub(crate) trait Recorder: Debug + Send + Sync + 'static {
    /// Records the answer to a request for these keys. `None` is an error.
    fn record(&self, keys: Vec<(Vec<u8>, Kind)>, answer: Option<&Answer>);
}

/// Keeps nothing.
impl Recorder for () {
    fn record(&self, _: Vec<(Vec<u8>, Kind)>, _: Option<&Answer>) {}
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

    fn record(&self, operations: &[KeyedOperation<'_>], result: &Result<Answer, StoreError>) {
        let keys = operations.iter().map(|it| (it.key.to_vec(), Kind::of(it.operation)));
        self.recorder.record(keys.collect(), result.as_ref().ok());
    }

    /// Records that an operation without an answer has failed.
    fn record_error(&self, key: &[u8], operation: Operation<'_>) {
        self.recorder.record(vec![(key.to_vec(), Kind::of(operation))], None);
    }
}

impl<R: Recorder> Store for CheckedStore<R> {
    type Error = StoreError;

    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::later(async move {
            let answer = self.process.gated(self.process.apply(request)).await;
            self.record(request.operations(), &answer);
            answer
        })
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        Applied::later(async move {
            let answers = self.process.gated(self.process.apply_many(operations)).await;
            for (it, answer) in operations.iter().zip(&answers) {
                self.record(&[*it], answer);
            }
            answers
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
                self.record_error(key, Operation::Peek(0));
            }
            done
        })
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::later(async move {
            let was_used = self.process.gated(self.process.reset(key)).await;
            if was_used.is_err() {
                self.record_error(key, Operation::Reset);
            }
            was_used
        })
    }

    fn status(&self) -> StoreStatus {
        self.process.store().status()
    }
}
