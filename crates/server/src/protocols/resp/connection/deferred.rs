//! What a batch has put off: done while the connection waits, with as little kept as for any other wait.

use std::mem;

use super::{Connection, NO_MEMORY};
use crate::protocols::resp::job::Deferred;

impl Connection<'_> {
    /// Does what was put off, and puts the replies where they belong. `false`: there is no memory for what is kept
    /// until then, and the client is to be closed.
    pub(super) async fn answer_deferred(&mut self, deferred: Deferred) -> bool {
        self.pause();
        let mut known = mem::take(&mut self.out);
        let mut reserved = self.worker.shared.buffers.reserve_nothing();
        let fits = self.compact() && {
            let fits = reserved.resize(deferred.size() + known.len());
            if !fits {
                self.reject(NO_MEMORY);
            }
            fits
        };
        if !fits {
            // Nothing of it was done: the error stands where the first of its replies would.
            known.truncate(deferred.start());
            known.append(&mut self.out);
            self.out = known;
            return false;
        }
        if !self.keeps {
            let few = known.as_slice().to_vec();
            self.worker.buffers.put(mem::replace(&mut known, few));
        }
        deferred.answer(self.worker, &known, &mut self.out).await;
        true
    }
}
