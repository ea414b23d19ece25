//! The store below the library: that of a process, with a check of each answer.

use sluicegate_core::{
    Answer, Applied, KeyedOperation, ReadEntry, Request, Store, StoreError, StoreStatus,
};

use crate::process::Process;

/// The store of a process. It does not answer while the process is paused, and never after it has ended.
#[derive(Debug)]
pub(crate) struct CheckedStore(pub(crate) Process);

impl Store for CheckedStore {
    type Error = StoreError;

    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::later(self.0.gated(self.0.apply(request)))
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        Applied::later(self.0.gated(self.0.apply_many(operations)))
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        Applied::later(self.0.gated(self.0.store().read(key, read).into_future()))
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::later(self.0.gated(self.0.reset(key)))
    }

    fn status(&self) -> StoreStatus {
        self.0.store().status()
    }
}
