//! A request that waits without a queue: carries out the steps of a [`Waiter`] on a store.

use std::{fmt, sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, Applied, BoxFuture, KeyedOperation, Limit, Operation, PreparedPolicy, Request, Source,
    Store, Timestamp, reached,
    wait::{Event, Step, Waiter},
};
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::{HoldGuard, WaitOptions, stored_hold::KEY_BYTES};

/// A request that waits until it passes: a take of one key, or holds under one id of one key or of several. Its times begin
/// with [`Timestamp::EPOCH`] when the request arrives.
///
/// When it is dropped, units that are reserved for a time to come are refunded, also those of an operation whose answer is
/// not there yet, and holds that the store may have made are cancelled.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use sluicegate_core::{Answer, PreparedPolicy, Store};
/// use sluicegate_holds::{PendingRequest, WaitOptions};
///
/// async fn wait<S: Store + 'static>(store: &Arc<S>, policy: &PreparedPolicy) -> Result<Answer, S::Error> {
///     let options = WaitOptions::up_to(Duration::from_secs(60));
///     PendingRequest::take(store, b"user7", policy, 1, options).wait().await.map(|(answer, _)| answer)
/// }
/// ```
pub struct PendingRequest<S: Store + ?Sized + 'static> {
    store: Arc<S>,
    keys: SmallVec<[PendingKey; 1]>,
    /// Those of a hold.
    guards: Guards<S>,
    waiter: Waiter,
    options: WaitOptions,
    /// The next event.
    event: Option<Event>,
    /// The answer to the first operation, if the caller has it.
    first: Option<Answer>,
    /// A drop may run outside of the runtime.
    runtime: Option<Handle>,
}

struct PendingKey {
    key: SmallVec<[u8; KEY_BYTES]>,
    policy: PreparedPolicy,
}

/// The guards of a hold, one for each key.
pub type Guards<S> = SmallVec<[HoldGuard<S>; 1]>;

/// The progress of a request.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It sleeps until then. Jitter is included: a sleep ends at the deadline at the latest, and never before the time of a
    /// reservation.
    SleepUntil(Timestamp),
    /// It is answered.
    Done(Answer),
}

impl<S: Store + ?Sized> PendingRequest<S> {
    /// A request that takes `cost` units, at least 1.
    #[must_use]
    pub fn take(
        store: &Arc<S>,
        key: &[u8],
        policy: &PreparedPolicy,
        cost: u32,
        options: WaitOptions,
    ) -> Self {
        let take = (policy.policy().clone(), Operation::Take(cost));
        let waiter = Waiter::alone([take], options.timeout(), false);
        Self::new(store, waiter, options, [PendingKey::new(key, policy)])
    }

    /// A request that takes once, and waits only for the delay of a `leaky-queue`, without jitter.
    #[must_use]
    pub fn take_once(store: &Arc<S>, key: &[u8], policy: &PreparedPolicy, cost: u32) -> Self {
        let waiter = Waiter::once(policy.policy().clone(), cost);
        let options = WaitOptions::up_to(Duration::ZERO);
        Self::new(store, waiter, options, [PendingKey::new(key, policy)])
    }

    /// A request that opens the holds of `guards`, which have one id, with the cost of each. `may_be_open`: whether another
    /// request may have opened them.
    #[must_use]
    pub fn hold(
        store: &Arc<S>,
        guards: Guards<S>,
        costs: impl IntoIterator<Item = u32>,
        options: WaitOptions,
        may_be_open: bool,
    ) -> Self {
        let holds = guards.iter().zip(costs);
        let holds = holds.map(|(guard, cost)| (guard.policy().policy().clone(), guard.hold(cost)));
        let waiter = Waiter::alone(holds, options.timeout(), may_be_open);
        let keys = guards.iter().map(|guard| PendingKey::new(guard.key(), guard.policy()));
        let mut pending = Self::new(store, waiter, options, keys);
        debug_assert_eq!(guards.len(), pending.keys.len(), "one guard for each key");
        debug_assert_eq!(guards.len(), pending.waiter.key_count(), "one cost for each key");
        debug_assert!(guards.windows(2).all(|two| two[0].id() == two[1].id()), "holds of two ids");
        pending.guards = guards;
        pending
    }

    fn new(
        store: &Arc<S>,
        waiter: Waiter,
        options: WaitOptions,
        keys: impl IntoIterator<Item = PendingKey>,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            keys: keys.into_iter().collect(),
            guards: Guards::new(),
            waiter,
            options,
            event: Some(Event::Start),
            first: None,
            runtime: Handle::try_current().ok(),
        }
    }

    /// The same with the answer to its first operation, which the caller has applied.
    #[must_use]
    pub fn answered(mut self, first: Answer) -> Self {
        self.first = Some(first);
        self
    }

    /// Whether units are reserved for it, which a drop refunds.
    #[must_use]
    pub fn has_reservation(&self) -> bool {
        self.waiter.cancel().is_some()
    }

    /// Sends operations until the request sleeps or is answered. `now` is the time since the request has arrived.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub async fn advance(
        &mut self,
        now: impl Fn() -> Timestamp + Send,
    ) -> Result<Progress, S::Error> {
        let mut event = self.event.take().unwrap_or(Event::Woken);
        loop {
            event = match self.waiter.poll(now(), event) {
                Step::SleepUntil(until) => {
                    let latest = self.waiter.deadline().max(until);
                    let until = (until + self.options.random_delay()).min(latest);
                    return Ok(Progress::SleepUntil(until));
                }
                Step::Done(answer) => {
                    debug_assert!(self.first.is_none(), "the first answer is not used");
                    return Ok(Progress::Done(answer));
                }
                _ => Event::Answered(match self.first.take() {
                    Some(answer) => answer,
                    None => self.apply().await?,
                }),
            };
        }
    }

    /// Waits on the timers of tokio. Returns the answer, and the guards of a hold.
    ///
    /// # Errors
    /// As [`Store::apply`].
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn wait(mut self) -> Result<(Answer, Guards<S>), S::Error> {
        let start = Instant::now();
        let now = || Timestamp::EPOCH + start.elapsed();
        loop {
            match self.advance(now).await? {
                Progress::SleepUntil(until) => sleep(until.since(now())).await,
                Progress::Done(answer) => return Ok((answer, self.into_guards())),
            }
        }
    }

    /// The guards of a hold.
    #[must_use]
    pub fn into_guards(mut self) -> Guards<S> {
        std::mem::take(&mut self.guards)
    }

    /// Sends the operations of the present step.
    async fn apply(&mut self) -> Result<Answer, S::Error> {
        let Self { store, keys, guards, waiter, runtime, .. } = self;
        let keyed = keys.iter().enumerate().map(|(index, it)| KeyedOperation {
            key: &it.key,
            policy: &it.policy,
            operation: waiter.operation(index),
        });
        let operations: SmallVec<[_; 1]> = keyed.collect();
        let opens = operations[0].operation.id().is_some();
        let applied = match operations[..] {
            [one] => apply_cancellable(store, one, runtime.as_ref()),
            _ => {
                let all = Request::all(&operations);
                store.apply(all.expect("they are peeks, or holds under one id"))
            }
        };
        if opens {
            // The store may make the hold from now on.
            let is_later = matches!(applied, Applied::Later(_));
            guards.iter_mut().for_each(|guard| guard.sent(is_later));
        }
        let answer = applied.await?;
        if opens {
            guards.iter_mut().for_each(|guard| _ = guard.decide(&answer));
        }
        Ok(answer)
    }
}

impl PendingKey {
    fn new(key: &[u8], policy: &PreparedPolicy) -> Self {
        Self { key: key.into(), policy: policy.clone() }
    }
}

impl<S: Store + ?Sized + 'static> Drop for PendingRequest<S> {
    fn drop(&mut self) {
        if let Some(answer) = self.first.take() {
            for event in [Event::Start, Event::Answered(answer)] {
                let _ = self.waiter.poll(Timestamp::EPOCH, event);
            }
        }
        if let (Some(refund), Some(it)) = (self.waiter.cancel(), self.keys.first()) {
            reached!(ReservationIsDropped);
            return_units(&self.store, &it.key, &it.policy, refund, self.runtime.as_ref());
        }
    }
}

impl<S: Store + ?Sized> fmt::Debug for PendingRequest<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PendingRequest")
            .field("waiter", &self.waiter)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

// Units that were taken for a request that is cancelled.

/// Applies an operation for a request that may be dropped. If the future of one that reserves units is dropped before the
/// answer of the store is there, a task of `runtime` waits for the answer, and returns the units if their time is to come:
/// until then, none of them has drained, and a refund gives back no unit of another request. Other units stay charged.
///
/// # Errors
/// As [`Store::apply`].
pub fn apply_cancellable<'a, S: Store + ?Sized + 'static>(
    store: &'a Arc<S>,
    one: KeyedOperation<'a>,
    runtime: Option<&Handle>,
) -> Applied<'a, Result<Answer, S::Error>> {
    let applied = store.apply(one.into());
    let (Applied::Later(_), Some((operation, cost))) = (&applied, reservation(one)) else {
        return applied;
    };
    // It has not begun.
    drop(applied);
    let (store, key) = (Arc::clone(store), PendingKey::new(one.key, one.policy));
    let sent: Sent<S> = Box::pin(async move {
        let result = store.apply(Request::one(&key.key, &key.policy, operation)).await;
        (result, store, key)
    });
    let runtime = runtime.cloned();
    let mut unanswered = Unanswered { answer: Some(sent), cost, sent: Instant::now(), runtime };
    Applied::later(async move {
        let (result, ..) = unanswered.answer.as_mut().expect("it is taken below").await;
        drop(unanswered.answer.take());
        result
    })
}

/// An operation that may reserve units for a time to come, and its cost.
fn reservation(one: KeyedOperation<'_>) -> Option<(Operation<'static>, u32)> {
    let policy = one.policy.policy();
    let reserved = match one.operation {
        Operation::Reserve { cost, max_wait } => (Operation::Reserve { cost, max_wait }, cost),
        Operation::Take(cost) if policy.limits().iter().any(Limit::is_queue) => {
            (Operation::Take(cost), cost)
        }
        _ => return None,
    };
    policy.can_reserve().then_some(reserved)
}

/// An answer with what returns its units.
type Sent<S> = BoxFuture<'static, (Result<Answer, <S as Store>::Error>, Arc<S>, PendingKey)>;

struct Unanswered<S: Store + ?Sized + 'static> {
    /// `None` once it is there.
    answer: Option<Sent<S>>,
    cost: u32,
    sent: Instant,
    runtime: Option<Handle>,
}

impl<S: Store + ?Sized + 'static> Drop for Unanswered<S> {
    fn drop(&mut self) {
        let (Some(answer), Some(runtime)) = (self.answer.take(), &self.runtime) else { return };
        let (cost, sent) = (self.cost, self.sent);
        runtime.spawn(async move {
            let (Ok(answer), store, PendingKey { key, policy }) = answer.await else { return };
            // The refund takes about as long as the operation did.
            if answer.source != Source::Fallback && 2 * sent.elapsed() < answer.delay() {
                reached!(ReservationIsDroppedUnanswered);
                let _ = store.apply(Request::one(&key, &policy, Operation::Refund(cost))).await;
            }
        });
    }
}

/// Applies `refund`, which is that of a request of `key` that was cancelled: at once,
/// or by a task of `runtime` in a store that answers later. It is for the drop of a request, which cannot wait. If the
/// refund fails, the units recover in time.
fn return_units<S: Store + ?Sized + 'static>(
    store: &Arc<S>,
    key: &[u8],
    policy: &PreparedPolicy,
    refund: Operation<'static>,
    runtime: Option<&Handle>,
) {
    if store.apply(Request::one(key, policy, refund)).now().is_some() {
        return;
    }
    let Some(runtime) = runtime else { return };
    let (store, key, policy) = (Arc::clone(store), key.to_vec(), policy.clone());
    runtime.spawn(async move { drop(store.apply(Request::one(&key, &policy, refund)).await) });
}
