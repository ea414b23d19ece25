//! Commands that wait for their reply.

use std::{io, sync::Arc};

use sluicegate_core::Source;
use sluicegate_resp::Writer;

use super::Connection;
use crate::{
    protocols::resp::{call::WaitingCall, store_operation::answer_all},
    stats::Cause,
    wait::{self, Waiting, WaitingTakes},
};

impl Connection<'_> {
    /// Waits for a request, and replies. `false`: the client has disconnected, and leaves the queue.
    pub(super) async fn wait(&mut self, waiting: WaitingCall) -> io::Result<bool> {
        match waiting {
            WaitingCall::One(waiting, is_of_session) => {
                self.wait_for_key(waiting, is_of_session).await
            }
            WaitingCall::All(waiting) => self.wait_for_all(waiting).await,
        }
    }

    /// `is_of_session`: whether the hold is new among those of the session.
    async fn wait_for_key(&mut self, waiting: Waiting, is_of_session: bool) -> io::Result<bool> {
        let shared = self.session.shared;
        let stopping = self.stopping.clone();
        let watch = self.worker.stats().sampler.active();
        let watched = watch.map(|watch| {
            let policy = waiting.rule.policy().clone();
            (watch, waiting.key.clone(), policy)
        });
        let name = waiting.hold.as_ref().filter(|_| is_of_session);
        let name = name.map(|hold| (Arc::clone(&waiting.key), hold.id.clone()));
        let answer = tokio::select! {
            // Most are answered immediately, without a read.
            biased;
            answer = wait::wait(&shared.decider, waiting, stopping) => answer.map(|it| it.decision),
            left = self.left() => return left.map(|()| false),
        };
        if let (Some((watch, key, policy)), Ok(decision)) = (watched, &answer) {
            watch.decided(&key, decision, Cause::policy(&policy));
        }
        if let (Some((key, id)), Ok(decision)) = (name, &answer)
            && !decision.allowed()
        {
            self.session.holds.remove(&key, &id);
        }
        let writer = &mut Writer::new(&mut self.out, self.session.version);
        match answer {
            Ok(decision) => {
                self.worker.stats().decided(Source::Store, &decision);
                writer.integers(&decision.to_integers());
            }
            Err(failure) => {
                self.worker.stats().errors.add();
                writer.error(failure.to_string());
            }
        }
        Ok(true)
    }

    async fn wait_for_all(&mut self, waiting: WaitingTakes) -> io::Result<bool> {
        let shared = self.session.shared;
        let stopping = self.stopping.clone();
        let answer = tokio::select! {
            biased;
            answer = wait::wait_all(&shared.decider, &waiting, stopping) => answer,
            left = self.left() => return left.map(|()| false),
        };
        let writer = &mut Writer::new(&mut self.out, self.session.version);
        match answer {
            Ok(taken) => answer_all(&waiting.keyed(), &taken, self.worker, writer),
            Err(failure) => {
                self.worker.stats().errors.add();
                writer.error(failure.to_string());
            }
        }
        Ok(true)
    }
}
