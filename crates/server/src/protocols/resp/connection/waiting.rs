//! Commands that wait for their reply.

use std::io;

use sluicegate_commands::RepeatedKeys;
use sluicegate_core::Answer;
use sluicegate_resp::Writer;

use super::Connection;
use crate::{
    budgets::buffers::NO_MEMORY,
    protocols::resp::{call::WaitingCall, store_operation::answer_all},
    stats::Cause,
    wait::{self, WaitingTake, WaitingTakes},
};

impl Connection<'_> {
    /// Waits for a request, and replies. `false`: the client has disconnected, and leaves the queue.
    pub(super) async fn wait(&mut self, waiting: WaitingCall) -> io::Result<bool> {
        let bytes = match &waiting {
            WaitingCall::One(waiting) => waiting.reserved_bytes(),
            WaitingCall::All(waiting, _) => waiting.reserved_bytes(),
        };
        let mut reserved = self.session.shared.buffers.reserve_nothing();
        if !reserved.resize_for_payload(bytes) {
            self.reject(NO_MEMORY);
            return Ok(true);
        }
        match waiting {
            WaitingCall::One(waiting) => self.wait_for_key(waiting).await,
            WaitingCall::All(waiting, repeated) => self.wait_for_all(waiting, &repeated).await,
        }
    }

    async fn wait_for_key(&mut self, waiting: WaitingTake) -> io::Result<bool> {
        let shared = self.session.shared;
        let stopping = self.stopping.clone();
        let watch = self.worker.stats().sampler.active();
        let watched = watch.map(|watch| {
            let policy = waiting.policy.policy().clone();
            (watch, waiting.key.clone(), policy)
        });
        let answer = tokio::select! {
            // Most are answered immediately, without a read.
            biased;
            answer = wait::wait(&shared.decider, waiting, stopping) => answer,
            left = self.left() => return left.map(|()| false),
        };
        if let (Some((watch, key, policy)), Ok(answer)) = (watched, &answer) {
            watch.decided(&key, answer, Cause::policy(&policy));
        }
        let writer = &mut Writer::new(&mut self.out, self.session.version);
        match answer {
            Ok(Answer { decision, source, .. }) => {
                self.worker.stats().decided(source, &decision);
                writer.integers(&decision.to_integers());
            }
            Err(failure) => {
                self.worker.stats().errors.add();
                writer.error(failure.to_string());
            }
        }
        Ok(true)
    }

    async fn wait_for_all(
        &mut self,
        mut waiting: WaitingTakes,
        repeated: &RepeatedKeys,
    ) -> io::Result<bool> {
        let shared = self.session.shared;
        let stopping = self.stopping.clone();
        let answer = tokio::select! {
            biased;
            answer = wait::wait_all(&shared.decider, &mut waiting, stopping) => answer,
            left = self.left() => return left.map(|()| false),
        };
        let writer = &mut Writer::new(&mut self.out, self.session.version);
        match answer {
            Ok(taken) => answer_all(&waiting.keyed(), (&taken, repeated), self.worker, writer),
            Err(failure) => {
                self.worker.stats().errors.add();
                writer.error(failure.to_string());
            }
        }
        Ok(true)
    }
}
