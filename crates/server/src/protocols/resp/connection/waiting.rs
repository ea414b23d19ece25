//! Commands that wait for their reply.

use std::io;

use sluicegate_core::KeyedOperation;
use sluicegate_resp::Writer;

use super::Connection;
use crate::{
    budgets::buffers::NO_MEMORY,
    protocols::resp::{call::WaitingCall, store_operation::answer_all},
    stats::Cause,
    wait,
};

impl Connection<'_> {
    /// Waits for a request, and replies. `false`: the client has disconnected, and leaves the queue.
    pub(super) async fn wait(&mut self, waiting: WaitingCall) -> io::Result<bool> {
        let WaitingCall { mut request, repeated } = waiting;
        let shared = self.session.shared;
        let mut reserved = shared.buffers.reserve_nothing();
        if !reserved.resize_for_payload(request.reserved_bytes()) {
            self.reject(NO_MEMORY);
            return Ok(true);
        }
        let stopping = self.stopping.clone();
        let answer = tokio::select! {
            // Most are answered immediately, without a read.
            biased;
            answer = wait::wait(&shared.decider, &mut request, stopping) => answer,
            left = self.left() => return left.map(|()| false),
        };
        let (stats, operations) = (self.worker.stats(), request.attempted());
        let writer = &mut Writer::new(&mut self.out, self.session.version);
        match (answer, repeated) {
            (Ok(answer), Some(repeated)) => {
                answer_all(&operations, (&answer, &repeated), self.worker, writer);
            }
            (Ok(answer), None) => {
                stats.decided(answer.source, &answer.decision);
                for KeyedOperation { key, policy, .. } in operations {
                    stats.sampler.note(key, &answer.decision, Cause::policy(policy.policy()));
                }
                writer.integers(&answer.decision.to_integers());
            }
            (Err(failure), _) => {
                stats.errors.add();
                writer.error(failure.to_string());
            }
        }
        Ok(true)
    }
}
