//! Deferred operations of a batch: applied while the connection waits, with as little kept as in any other wait.

use std::mem;

use super::Connection;
use crate::{budgets::buffers::NO_MEMORY, protocols::resp::store_operation::answer_deferred};

impl Connection<'_> {
    /// Applies the operations, and inserts the replies where they belong. `false`: there is no memory for what is kept
    /// until then, and the client is to be closed.
    pub(super) async fn answer_deferred(&mut self) -> bool {
        let deferred = self.worker.deferred.take();
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
            // None was applied: the error replaces the first of their replies.
            known.truncate(deferred.replies.first().map_or(0, |reply| reply.offset));
            known.append(&mut self.out);
            self.out = known;
            return false;
        }
        if !self.keeps {
            let few = known.as_slice().to_vec();
            self.worker.buffers.put(mem::replace(&mut known, few));
        }
        answer_deferred(deferred, self.worker, &known, &mut self.out).await;
        true
    }
}
