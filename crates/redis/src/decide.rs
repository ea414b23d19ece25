//! Operations on one key: from the caches, from the store, or by the fallback.

use sluicegate_core::{
    Answer, Applied, Decision, KeyedOperation, Operation, ReadEntry, Request, StateFault, Store,
    StoreError, StoreStatus, Timestamp,
};

use crate::{
    PlannedOperation, PlannedPolicy, RedisStore, counters::CounterValues,
    local::denial_cache::QueryToken, net::node_connection::Deadline, store::Inner,
};

/// Maximum number of times that an operation on a hold is sent.
pub(crate) const MAX_ATTEMPTS: usize = 3;

/// While the store is unavailable, the [`OnError`](sluicegate_core::OnError) of the policy decides takes, peeks,
/// reserves and holds. A charge, a refund, a reset, a settle and a renew have no fallback: they return [`StoreError::Unavailable`] or
/// [`StoreError::Timeout`]. A refund with an unknown outcome is not sent again, and the caller should not send it again
/// either.
impl Store for RedisStore {
    type Error = StoreError;

    /// In a cluster, keys with one hash tag (`{acme}:user7`, `{acme}`) are decided atomically; others in the order
    /// given, and charged units are refunded on a denial, once. Of those, a policy with `count=all` keeps the charge,
    /// as the record of the denial. Several keys use no leases. With a test clock, one server must have all of them.
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        let inner = self.inner();
        let given = inner.given_time();
        let Some(KeyedOperation { key, policy, operation }) = request.single() else {
            return Applied::later(inner.apply_all(request, given));
        };
        let (key, policy) = match inner.key_of(key, operation) {
            Ok(key) => (key, inner.planned(policy)),
            Err(error) => return Applied::Now(Err(error)),
        };
        let planned = PlannedOperation { key: &key, policy: &policy, operation };
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
            if operation.id().is_some() {
                return inner.apply_hold(planned, deadline).await;
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
        let reset = Request::one(key, &self.inner().any_policy, Operation::Reset);
        Applied::later(async move {
            let mut is_live = false;
            match self.read(key, &mut |entry, _| is_live = entry.is_some()).await {
                // A reset also removes state that cannot be read.
                Err(StoreError::Corrupt(StateFault::Version | StateFault::Damaged, _)) => {
                    is_live = true;
                }
                read => read?,
            }
            let _ = self.apply(reset).await?;
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
        match operation {
            Operation::Refund(_) | Operation::Reset => self.forget(key, operation),
            Operation::Hold { .. } | Operation::Settle { .. } | Operation::Renew { .. } => {}
            _ => return None,
        }
        let operation = operation.with_id(&[]);
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

    /// Applies an operation on a hold. It may be repeated: a hold whose id is open changes nothing, and a settle of an id
    /// that is not open charges nothing. Therefore one whose reply was lost is sent again, until its deadline.
    pub(crate) async fn apply_hold(
        &self,
        planned: PlannedOperation<'_>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let PlannedOperation { key, policy, operation } = planned;
        policy.policy.check_operation(operation)?;
        let opens = matches!(operation, Operation::Hold { .. });
        self.local.follow_hold(planned, self.context.now());
        let mut attempt = 1;
        loop {
            let decided = {
                // A settle may have freed units, even if its reply was lost.
                let _forget = self.begin(key, operation);
                self.call(planned, None, deadline).await
            };
            match decided {
                Ok(decision) => {
                    self.context.counts.store.one();
                    self.record_usage(key, policy, &decision);
                    return Ok(Answer::from(decision));
                }
                Err(error) if !error.is_unavailable() => return Err(error),
                Err(error) if attempt == MAX_ATTEMPTS || deadline.is_over() => {
                    return if opens { self.fall_back(planned, error) } else { Err(error) };
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Records the usage of a key in a reply about a hold, for the local fallback.
    pub(crate) fn record_usage(&self, key: &[u8], policy: &PlannedPolicy, decision: &Decision) {
        if policy.local.is_some() {
            let now = self.context.now();
            let token = self.denials.begin_query(key, now);
            self.denials.record(key, policy, 0, token, now, decision);
        }
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
        decision.into()
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

    /// The fallback decision on each of several keys.
    pub(crate) fn fall_back_all(
        &self,
        operations: &[PlannedOperation<'_>],
        error: &StoreError,
    ) -> Result<Vec<Decision>, StoreError> {
        let reports = (&self.denials, self.count_unavailable(error));
        self.local.decide_all(operations, reports, self.context.now(), error)
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
    operation: Operation<'static>,
}

impl Drop for ForgetGuard<'_> {
    fn drop(&mut self) {
        self.inner.forget(&self.key, self.operation);
    }
}

#[cfg(test)]
mod tests;
