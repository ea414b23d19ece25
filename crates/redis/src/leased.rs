//! Takes from leases: whose turn it is to ask for a chunk, and what becomes of what is left.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use sluicegate_core::{Decision, Operation, Timestamp};

use crate::{
    Answer, RedisStore, Rule, Source, StoreError,
    front::{
        lease::{Handed, Leftover},
        sync::Ordering,
    },
    net::link::Deadline,
    store::Inner,
};

impl RedisStore {
    /// Takes from a lease, or asks for the next chunk, one after the other.
    pub(crate) async fn take_leased(
        &self,
        key: &[u8],
        rule: &Rule,
        cost: u32,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let inner = self.inner();
        let (mut over, mut turn) = (None, None);
        loop {
            let now = inner.context.now();
            let handed = inner.leases.hand_out(key, rule, cost, now, &mut over);
            if let Some(leftover) = over.take() {
                self.give_back(leftover);
            }
            let (lock, chunk) = match handed {
                Handed::Out(answer) => {
                    inner.context.counts.lease.one();
                    return Ok(answer);
                }
                Handed::Full => {
                    return inner.question(key, rule, Operation::Take(cost), deadline).await;
                }
                Handed::Ask(lock, chunk) => (lock, chunk),
            };
            if turn.is_none() {
                self.keep_leases();
                match deadline.within(lock.lock_owned()).await {
                    Ok(guard) => turn = Some(guard),
                    Err(late) => return inner.fall_back(key, rule, Operation::Take(cost), late),
                }
                // Whoever had the turn before may have got enough for all, or none.
                let now = inner.context.now();
                if let Some(answer) = inner.known.denied(key, rule, cost, now) {
                    inner.context.counts.cache.one();
                    return Ok(answer);
                }
                continue;
            }
            let sent = inner.context.now();
            let known = inner.known.asked(key, sent);
            if chunk > cost {
                let asked = inner.decide(key, rule, Operation::Take(chunk), deadline).await;
                match asked {
                    Ok(decision) if decision.allowed() => {
                        let now = inner.context.now();
                        inner.granted(key, rule, (chunk, cost), (sent, now), &decision);
                        if rule.is_remembered() {
                            inner.learn(key, rule, Operation::Take(chunk), known, &decision);
                        }
                        inner.context.counts.store.one();
                        return Ok(Answer { decision, source: Source::Store });
                    }
                    // Less may fit.
                    Ok(_) => inner.leases.denied(key),
                    Err(error) if error.is_absence() => {
                        return inner.fall_back(key, rule, Operation::Take(cost), error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let answer = inner.question(key, rule, Operation::Take(cost), deadline).await?;
            if answer.allowed() && answer.source == Source::Store {
                let now = inner.context.now();
                inner.granted(key, rule, (cost, cost), (sent, now), &answer.decision);
            }
            return Ok(answer);
        }
    }

    /// Gives back what is left of a lease, once.
    fn give_back(&self, leftover: Leftover) {
        let store = self.clone();
        self.inner().context.spawn(async move { store.return_now(leftover).await });
    }

    async fn return_now(&self, leftover: Leftover) {
        let inner = self.inner();
        let span = inner.context.options.deadline;
        let owed = leftover.owed(inner.context.now(), span);
        let counts = &inner.context.counts;
        let mut returned = 0;
        if owed > 0 {
            inner.known.forget(&leftover.key);
            let refund = Operation::Refund(owed);
            let deadline = Deadline::after(span);
            if inner.decide(&leftover.key, &leftover.rule, refund, deadline).await.is_ok() {
                returned = owed;
            }
            inner.known.forget(&leftover.key);
        }
        counts.lease_returned.add(returned.into());
        counts.lease_forfeited.add((leftover.left - returned).into());
    }

    /// Begins to look after leases that are over, if nobody does.
    fn keep_leases(&self) {
        if self.inner().leases.kept.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::downgrade(self.shared());
        let every = (self.inner().leases.lifetime() / 2).max(Duration::from_millis(1));
        self.inner().context.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(store) = Weak::upgrade(&store).map(Self::from_shared) else { return };
                for leftover in store.inner().leases.over(Some(store.inner().context.now())) {
                    store.return_now(leftover).await;
                }
            }
        });
    }

    /// Gives back what is left of all leases. A store that is dropped without forfeits it.
    pub async fn close(&self) {
        for leftover in self.inner().leases.over(None) {
            self.return_now(leftover).await;
        }
    }
}

impl Inner {
    fn granted(
        &self,
        key: &[u8],
        rule: &Rule,
        units: (u32, u32),
        times: (Timestamp, Timestamp),
        decision: &Decision,
    ) {
        let lost = self.leases.granted(key, rule, units, times, decision);
        if lost > 0 {
            self.context.counts.lease_forfeited.add(lost.into());
        }
    }
}
