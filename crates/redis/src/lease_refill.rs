//! Takes from leases: refills them from the store one request at a time, and refunds unspent units.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use sluicegate_core::{Answer, Decision, Operation, Source, StoreError, Timestamp};

use crate::{
    PlannedOperation, PlannedPolicy, RedisStore,
    local::{
        lease::{LeaseOutcome, RefillToken, UnspentLease},
        sync::Ordering,
    },
    net::node_connection::Deadline,
    store::Inner,
};

impl RedisStore {
    /// Takes from a lease, or takes the next chunk, one request at a time.
    pub(crate) async fn take_leased(
        &self,
        take: PlannedOperation<'_>,
        cost: u32,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let (inner, PlannedOperation { key, policy, .. }) = (self.inner(), take);
        let (mut over, mut turn) = (None, None);
        loop {
            let now = inner.context.now();
            let outcome = inner.leases.take(key, policy, cost, now, &mut over);
            if let Some(unspent) = over.take() {
                self.give_back(unspent);
            }
            let (lock, chunk, token) = match outcome {
                LeaseOutcome::Taken(answer) => {
                    inner.context.counts.lease.one();
                    return Ok(answer);
                }
                LeaseOutcome::Full => return inner.request(take, deadline).await,
                LeaseOutcome::Refill(lock, chunk, token) => (lock, chunk, token),
            };
            if turn.is_none() {
                self.keep_leases();
                match deadline.within(lock.lock_owned()).await {
                    Ok(guard) => turn = Some(guard),
                    Err(late) => return inner.fall_back(take, late),
                }
                // The previous holder of the lock may have refilled the lease, or been denied.
                if let Some(answer) = inner.cached_denial(take, inner.context.now()) {
                    return Ok(answer);
                }
                continue;
            }
            let known = inner.denials.begin_query(key, now);
            if chunk > cost {
                let refill = PlannedOperation { operation: Operation::Take(chunk), ..take };
                match inner.decide(refill, deadline).await {
                    Ok(decision) if decision.allowed() => {
                        let now = inner.context.now();
                        inner.granted(key, policy, (chunk, cost), (token, now), &decision);
                        inner.record(refill, known, &decision);
                        inner.context.counts.store.one();
                        return Ok(decision.into());
                    }
                    // Less units may be allowed.
                    Ok(_) => inner.leases.denied(key),
                    Err(error) if error.is_unavailable() => {
                        return inner.fall_back(take, error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let answer = inner.request(take, deadline).await?;
            if answer.allowed() && answer.source == Source::Store {
                let now = inner.context.now();
                inner.granted(key, policy, (cost, cost), (token, now), &answer.decision);
            }
            return Ok(answer);
        }
    }

    /// Refunds unspent units, once, in the background.
    fn give_back(&self, unspent: UnspentLease) {
        let store = self.clone();
        self.inner().context.spawn(async move { store.return_now(unspent).await });
    }

    async fn return_now(&self, unspent: UnspentLease) {
        let inner = self.inner();
        let span = inner.context.options.deadline;
        let owed = unspent.owed(inner.context.now(), span);
        let counts = &inner.context.counts;
        let mut returned = 0;
        if owed > 0 {
            inner.denials.forget(&unspent.key);
            let _forget = inner.denials.forget_on_drop(&unspent.key);
            let UnspentLease { key, policy, .. } = &unspent;
            let refund = PlannedOperation { key, policy, operation: Operation::Refund(owed) };
            if inner.decide(refund, Deadline::after(span)).await.is_ok() {
                returned = owed;
            }
        }
        counts.lease_returned.add(returned.into());
        counts.lease_forfeited.add((unspent.left - returned).into());
    }

    /// Starts the task that refunds expired leases, unless it runs.
    fn keep_leases(&self) {
        if self.inner().leases.has_keeper.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::downgrade(&self.0);
        let every = (self.inner().leases.lifetime / 2).max(Duration::from_millis(1));
        self.inner().context.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(store) = Weak::upgrade(&store).map(Self) else { return };
                for unspent in store.inner().leases.expired(Some(store.inner().context.now())) {
                    store.return_now(unspent).await;
                }
            }
        });
    }

    /// Refunds the unspent units of all leases.
    pub(crate) async fn return_leases(&self) {
        for unspent in self.inner().leases.expired(None) {
            self.return_now(unspent).await;
        }
    }
}

impl Inner {
    fn granted(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        units: (u32, u32),
        times: (RefillToken, Timestamp),
        decision: &Decision,
    ) {
        let lost = self.leases.granted(key, policy, units, times, decision);
        if lost > 0 {
            self.context.counts.lease_forfeited.add(lost.into());
        }
    }
}
