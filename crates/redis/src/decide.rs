//! Operations on one key: from the caches, from the store, or by the fallback.

use sluicegate_core::{
    Answer, Applied, Decision, HoldOperation, KeyedOperation, KeyedTake, MultiKeyAnswer,
    MultiKeyOperation, Operation, PreparedPolicy, ReadEntry, Source, StateFault, Store, StoreError,
    StoreStatus, Timestamp,
};

use crate::{
    PlannedOperation, PlannedPolicy, RedisStore, call::ResetCommand, counters::CounterValues,
    local::denial_cache::QueryToken, net::node_connection::Deadline, slot::slot, store::Inner,
};

/// While the store is unavailable, the [`OnError`](sluicegate_core::OnError) of the policy decides takes, peeks,
/// reserves and holds. A charge, a refund, a reset, a settle and a renew have no fallback: they return [`StoreError::Unavailable`] or
/// [`StoreError::Timeout`]. A refund with an unknown outcome is not sent again, and the caller should not send it again
/// either.
impl Store for RedisStore {
    type Error = StoreError;

    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        let inner = self.inner();
        let (key, policy) = match inner.key_of(key, operation) {
            Ok(key) => (key, inner.planned(policy)),
            Err(error) => return Applied::Now(Err(error)),
        };
        let planned = PlannedOperation { key: &key, policy: &policy, operation };
        let given = inner.given_time();
        if given.is_none()
            && let Some(answer) = inner.cached_denial(planned, inner.context.now())
        {
            return Applied::Now(Ok(answer));
        }
        Applied::later(async move {
            let planned = PlannedOperation { key: &key, policy: &policy, operation };
            let deadline = Deadline::after(inner.context.options.deadline);
            if given.is_some() {
                return Ok(inner.call(planned, given, deadline).await?.into());
            }
            if let Operation::Take(cost @ 1..) = operation
                && policy.settings.lease > 1
                && cost <= policy.settings.lease
            {
                return self.take_leased(planned, cost, deadline).await;
            }
            let _forget = inner.begin(&key, operation);
            let answer = inner.request(planned, deadline).await;
            inner.finish(&key, operation, answer.is_ok());
            answer
        })
    }

    /// Sends one pipeline per cluster slot (one without a cluster), all at the same time. Each operation is atomic, the
    /// batch is not. Operations on one key are applied in order, unless the server has flushed its scripts. Uses no
    /// leases.
    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        let inner = self.inner();
        let Some(now) = inner.given_time() else {
            return Applied::later(inner.send_many(operations));
        };
        Applied::later(async move {
            let mut answers = Vec::with_capacity(operations.len());
            for &KeyedOperation { key, policy, operation } in operations {
                let decide = async {
                    let (key, policy) = (inner.key_of(key, operation)?, inner.planned(policy));
                    let planned = PlannedOperation { key: &key, policy: &policy, operation };
                    let deadline = Deadline::after(inner.context.options.deadline);
                    inner.call(planned, Some(now), deadline).await
                };
                answers.push(decide.await.map(Answer::from));
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
        Applied::later(self.inner().apply_hold(key, policy, operation))
    }

    /// In a cluster, keys with one hash tag (`{acme}:user7`, `{acme}`) are decided atomically; others in the order
    /// given, and charged units are refunded on a denial, once. Of those, a policy with `count=all` keeps the charge,
    /// as the record of the denial. Uses no leases. With a test clock, one server must have all keys.
    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, StoreError>> {
        let inner = self.inner();
        let at = inner.given_time();
        Applied::later(inner.apply_multi_key(operation, takes, at))
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        let given = self.inner().given_time();
        Applied::later(async move {
            let (entry, by_server) = self.entry(key).await?;
            let now = given.unwrap_or(by_server);
            read(entry.as_ref().filter(|entry| !entry.lifetime(now).is_zero()), now);
            Ok(())
        })
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        let reset = self.apply(key, &self.inner().any_policy, Operation::Reset);
        Applied::later(async move {
            let mut is_live = false;
            match self.read(key, &mut |entry, _| is_live = entry.is_some()).await {
                // A reset also removes state that cannot be read.
                Err(StoreError::Corrupt(StateFault::Version | StateFault::Damaged, _)) => {
                    is_live = true;
                }
                Err(StoreError::Unavailable(why)) if why.contains("unknown command 'GET'") => {
                    return self.inner().reset_by_command(key).await;
                }
                read => read?,
            }
            let _ = reset.await?;
            Ok(is_live)
        })
    }

    fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        self.inner().key(key).map(|_| ())
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::Remote(Box::new(self.remote_status()))
    }

    /// Refunds the unspent units of all leases. A store that is dropped without this call forfeits them.
    fn close(&self) -> Applied<'_, ()> {
        Applied::later(self.return_leases())
    }
}

impl Inner {
    /// The cached denial of a take that still applies.
    pub(crate) fn cached_denial(
        &self,
        PlannedOperation { key, policy, operation }: PlannedOperation<'_>,
        now: Timestamp,
    ) -> Option<Answer> {
        let Operation::Take(cost @ 1..) = operation else { return None };
        let answer = self.denials.denied(key, policy, cost, now)?;
        self.context.counts.cache.one();
        Some(answer)
    }

    /// Drops cached data of a key that `operation` makes obsolete. The guard drops data that other requests cache until the
    /// operation ends.
    pub(crate) fn begin<'a>(&'a self, key: &[u8], operation: Operation) -> Option<ForgetGuard<'a>> {
        if !matches!(operation, Operation::Refund(_) | Operation::Reset) {
            return None;
        }
        self.forget(key, operation);
        Some(ForgetGuard { inner: self, key: key.into(), operation })
    }

    /// Drops the denials of a key, and the debt of its lease that `operation` removes.
    fn forget(&self, key: &[u8], operation: Operation) {
        match operation {
            Operation::Refund(units) => self.leases.refunded(key, units),
            Operation::Reset => {
                self.context.counts.lease_forfeited.add(self.leases.forget(key).into());
            }
            _ => {}
        }
        self.denials.forget(key);
    }

    /// Updates the caches after `operation` has succeeded or failed.
    pub(crate) fn finish(&self, key: &[u8], operation: Operation, is_done: bool) {
        if operation == Operation::Reset && is_done {
            self.denials.reset(key);
            self.local.reset(key, self.context.now());
        }
    }

    /// Resets a key of a Sluicegate server, whose reply tells whether there was state.
    async fn reset_by_command(&self, key: &[u8]) -> Result<bool, StoreError> {
        let (key, deadline) =
            (self.key_or_empty(key)?, Deadline::after(self.context.options.deadline));
        let _forget = self.begin(&key, Operation::Reset);
        let is_live = self.send(slot(&key), ResetCommand(&key), deadline).await?;
        self.context.counts.store.one();
        self.context.counts.module.one();
        self.finish(&key, Operation::Reset, true);
        Ok(is_live)
    }

    /// Applies an operation in the store, or by the fallback while the store is unavailable.
    pub(crate) async fn request(
        &self,
        planned: PlannedOperation<'_>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let token = self.denials.begin_query(planned.key, self.context.now());
        match self.decide(planned, deadline).await {
            Ok(decision) => Ok(self.decided(planned, token, decision)),
            Err(error) if error.is_unavailable() => self.fall_back(planned, error),
            Err(error) => Err(error),
        }
    }

    /// The answer with a decision of the store, which is counted and cached.
    pub(crate) fn decided(
        &self,
        planned: PlannedOperation<'_>,
        token: QueryToken,
        decision: Decision,
    ) -> Answer {
        self.context.counts.store.one();
        self.record(planned, token, &decision);
        Answer { decision, source: Source::Store }
    }

    /// Caches the denial or usage in a reply.
    pub(crate) fn record(
        &self,
        PlannedOperation { key, policy, operation }: PlannedOperation<'_>,
        token: QueryToken,
        decision: &Decision,
    ) {
        let cost = match operation {
            Operation::Take(cost @ 1..) => cost,
            // They deny nothing to be cached, but may end denials under another policy.
            Operation::Take(0) | Operation::Charge(_) | Operation::Reserve { .. } => 0,
            // Only the fallback uses its reply.
            Operation::Peek(_) if policy.local.is_some() => 0,
            _ => return,
        };
        self.denials.record(key, policy, cost, token, self.context.now(), decision);
    }

    /// Applies an operation in the store, without cache or fallback.
    pub(crate) async fn decide(
        &self,
        planned: PlannedOperation<'_>,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        self.call(planned, None, deadline).await
    }

    pub(crate) fn fall_back(
        &self,
        planned: PlannedOperation<'_>,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        let counts = self.count_unavailable(&error);
        self.local.decide(planned, (&self.denials, counts), self.context.now(), error)
    }

    /// The fallback decision on a hold.
    pub(crate) fn fall_back_hold(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        hold: HoldOperation<'_>,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        let reports = (&self.denials, self.count_unavailable(&error));
        self.local.decide_hold((key, policy), hold, reports, self.context.now(), error)
    }

    /// The fallback decision on each of several keys.
    pub(crate) fn fall_back_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[(&[u8], &PlannedPolicy, u32)],
        error: &StoreError,
    ) -> Result<Vec<Decision>, StoreError> {
        let reports = (&self.denials, self.count_unavailable(error));
        self.local.decide_multi_key(operation, takes, reports, self.context.now(), error)
    }

    fn count_unavailable(&self, error: &StoreError) -> &CounterValues {
        let counts = &self.context.counts;
        match error {
            StoreError::Timeout(_) => counts.timeouts.one(),
            _ => counts.unavailable.one(),
        }
        tracing::debug!(%error, "decided without the store");
        counts
    }
}

/// Drops data of a key that other requests have cached during an operation. The future of an operation may be dropped after
/// the command was sent, and the operation is applied nevertheless.
#[must_use = "the data is dropped when this is"]
pub(crate) struct ForgetGuard<'a> {
    inner: &'a Inner,
    key: Box<[u8]>,
    operation: Operation,
}

impl Drop for ForgetGuard<'_> {
    fn drop(&mut self) {
        self.inner.forget(&self.key, self.operation);
    }
}

#[cfg(test)]
mod tests;
