//! What all clones of a store share, and how it decides: by the module if the node has it, otherwise by script.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};
use parking_lot::RwLock;
use redis::{Cmd, Pipeline, Value};
use sluicegate_core::{
    Answer, Chunk, Decision, KeyLengthError, KeyedOperation, MAX_KEYS_PER_TAKE, OnError, Operation,
    Outcome, PolicySettings, PreparedPolicy, RefillToken, Request, RequestError, Source,
    StoreError, StoreId, Timestamp, reached,
};
use sluicegate_fallback::{DenialCache, FallbackOperation, LocalFallback, QueryToken};

use crate::{
    Options, PlannedOperation, PlannedPolicy,
    lease::Leases,
    native,
    net::{
        context::Context,
        node_connection::{Deadline, NodeConnection, rejects_writes},
        topology::Topology,
    },
    planned_policy::{PlannedKey, leased_cost},
    reply::{
        MissingPermission, ReplyKind, one_decision, parse_general, parse_script_reply,
        policy_error, too_many_redirects,
    },
    script::{Calendar, Script, TEST_PREFIX, begin_call, boundaries, call_one},
    slot::slot,
};

/// Maximum number of planned policies that the store itself keeps.
const MAX_PLANNED: usize = 1024;

pub(crate) struct Inner {
    pub(crate) context: Arc<Context>,
    pub(crate) topology: Topology,
    pub(crate) denials: DenialCache,
    pub(crate) leases: Leases,
    pub(crate) local: LocalFallback,
    pub(crate) id: StoreId,
    /// Any policy, for resets: all policies reset alike.
    pub(crate) any_policy: PreparedPolicy,
    /// Planned policies by text and settings.
    pub(crate) planned: RwLock<HashMap<(String, PolicySettings), PlannedPolicy>>,
}

impl Inner {
    /// The key of an operation on units, as it is in the store.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Result<Cow<'a, [u8]>, StoreError> {
        if key.is_empty() {
            return Err(StoreError::Key(KeyLengthError(0).to_string()));
        }
        self.key_or_empty(key)
    }

    /// The same for a key that is only read or reset.
    pub(crate) fn key_or_empty<'a>(&self, key: &'a [u8]) -> Result<Cow<'a, [u8]>, StoreError> {
        let Options { prefix, test_clock, .. } = &self.context.options;
        if let Err(error) = KeyLengthError::check_or_empty(prefix.len() + key.len()) {
            let with = if prefix.is_empty() { "" } else { " with the prefix of the store" };
            return Err(StoreError::Key(format!("{error}{with}")));
        }
        let prefix = if test_clock.is_some() { TEST_PREFIX } else { prefix };
        Ok(if prefix.is_empty() { key.into() } else { [prefix, key].concat().into() })
    }

    /// The key of `operation`, as it is in the store.
    pub(crate) fn key_of<'a>(
        &self,
        key: &'a [u8],
        operation: Operation,
    ) -> Result<Cow<'a, [u8]>, StoreError> {
        if operation == Operation::Reset { self.key_or_empty(key) } else { self.key(key) }
    }

    /// The time to send with operations, for a store with a test clock.
    pub(crate) fn given_time(&self) -> Option<Timestamp> {
        self.context.options.test_clock.as_ref().map(|clock| clock.now())
    }

    /// The store's data for `policy`. Policies with the same text and settings share it, and thereby their cached
    /// denials.
    pub(crate) fn planned<'a>(&self, policy: &'a PreparedPolicy) -> Cow<'a, PlannedPolicy> {
        let find = || self.find_planned(policy);
        policy.attached(&self.id, find).map_or_else(|| Cow::Owned(find()), Cow::Borrowed)
    }

    fn find_planned(&self, policy: &PreparedPolicy) -> PlannedPolicy {
        let by = (policy.policy().to_string(), policy.settings());
        if let Some(planned) = self.planned.read().get(&by) {
            return planned.clone();
        }
        let mut planned = self.planned.write();
        if planned.len() >= MAX_PLANNED {
            // Bounded, because clients may send a new policy with each request.
            planned.clear();
        }
        planned.entry(by).or_insert_with(|| PlannedPolicy::new(policy)).clone()
    }
}

// Operations on one key: from the caches, from the store, or by the fallback.

/// Maximum number of times that an operation on a hold is sent.
const MAX_ATTEMPTS: usize = 3;

impl Inner {
    /// The answer to a take that the process can give by itself. A store with a test clock asks for all.
    pub(crate) fn known_take(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Option<Answer> {
        if self.context.options.test_clock.is_some() {
            return None;
        }
        let (key, policy) = (self.key(key).ok()?, self.planned(policy));
        let take =
            PlannedOperation { key: &key, policy: &policy, operation: Operation::Take(cost) };
        self.known_answer(take, self.context.now())
    }

    /// The answer that the process can give by itself: from a lease, or a denial from the cache.
    pub(crate) fn known_answer(
        &self,
        planned: PlannedOperation<'_>,
        now: Timestamp,
    ) -> Option<Answer> {
        let PlannedOperation { key, policy, operation } = planned;
        if let Some(cost) = leased_cost(policy.settings, operation)
            && let Some(answer) = self.leases.spend(key, policy, cost, now)
        {
            self.context.counts.lease.one();
            return Some(answer);
        }
        self.cached_denial(planned, now)
    }

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

    /// Updates the caches after the reply to `operation`.
    pub(crate) fn replied(
        &self,
        key: &[u8],
        operation: Operation,
        reply: &Result<Answer, StoreError>,
    ) {
        self.finish(key, operation, reply.is_ok());
        if let (Operation::Refund(_), Ok(Answer { decision, source: Source::Store, .. })) =
            (operation, reply)
        {
            let used = decision.limit.saturating_sub(decision.remaining);
            let returned = self.leases.refund_replied(key, used);
            self.context.counts.lease_forfeited.add(returned.into());
        }
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
        self.local.follow_hold(planned.into(), self.context.now());
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
                    reached!(HoldHasUnknownOutcome);
                    return if opens { self.fall_back(planned, error) } else { Err(error) };
                }
                Err(_) => {
                    reached!(HoldIsSentAgain);
                    attempt += 1;
                }
            }
        }
    }

    /// Records the usage of a key in a reply about a hold, for the local fallback.
    fn record_usage(&self, key: &[u8], policy: &PlannedPolicy, decision: &Decision) {
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
            Err(error) if error.is_unavailable() => {
                reached!(OperationIsNotRepeated if matches!(error, StoreError::Timeout(_)));
                self.fall_back(planned, error)
            }
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
        self.count_unavailable(&error);
        let now = self.context.now();
        let answer = self.local.decide(planned.into(), &self.denials, now, error)?;
        self.count_fallback(planned.policy);
        Ok(answer)
    }

    /// The fallback decision on each of several keys.
    fn fall_back_all(
        &self,
        operations: &[PlannedOperation<'_>],
        error: &StoreError,
    ) -> Result<Vec<Decision>, StoreError> {
        self.count_unavailable(error);
        let all: Vec<FallbackOperation<'_>> = operations.iter().map(|&it| it.into()).collect();
        let each = self.local.decide_all(&all, &self.denials, self.context.now(), error)?;
        operations.iter().for_each(|it| self.count_fallback(it.policy));
        Ok(each)
    }

    /// Counts a fallback decision under `policy`.
    fn count_fallback(&self, policy: &PlannedPolicy) {
        let counts = &self.context.counts;
        match policy.settings.on_error {
            OnError::Allow => counts.fallback_allow.one(),
            OnError::Local(_) => counts.fallback_local.one(),
            _ => counts.fallback_deny.one(),
        }
    }

    fn count_unavailable(&self, error: &StoreError) {
        let counts = &self.context.counts;
        match error {
            StoreError::Timeout(_) => counts.timeouts.one(),
            _ => counts.unavailable.one(),
        }
        tracing::debug!(%error, "decided without the store");
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

// One decision on several keys, all or nothing.
//
// If one server has all keys (without a cluster, or in one slot), it is one command of the module, or one script call.
// Otherwise the keys are taken one after the other, and if one denies, the previous charges are refunded: until then,
// those keys admit less than they could.

fn combined(each: Vec<Decision>, source: Source) -> Result<Answer, StoreError> {
    Answer::of_all(each, source).ok_or_else(|| RequestError::MissingKey.into())
}

impl Inner {
    /// Decides a request on several keys. `at` is the time to send, if it is given; uses no cache and no fallback then.
    pub(crate) async fn apply_all(
        &self,
        request: Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Answer, StoreError> {
        let deadline = Deadline::of(request.operations(), &self.context.options);
        let keys = self.distinct(request.operations())?;
        let Some(PlannedKey { operation: first, .. }) = keys.first() else {
            return Err(RequestError::MissingKey.into());
        };
        let stores = matches!(first, Operation::Take(_));
        for PlannedKey { policy, operation, .. } in &keys {
            policy.policy.check_operation(*operation)?;
        }
        if at.is_some() {
            return self.apply_in_one_call(&keys, at, deadline).await;
        }
        let slots = keys.iter().map(|it| slot(&it.key));
        let one = matches!(self.topology, Topology::One(_))
            || slots.clone().all(|it| Some(it) == slots.clone().next());
        if first.id().is_some() {
            if !one {
                return Err(StoreError::Arguments(
                    "invalid keys for a hold: expected keys in one slot of the cluster, such as `{acme}:requests` and \
                     `{acme}:tokens`"
                        .to_owned(),
                ));
            }
            return self.hold_in_one_call(&keys, deadline).await;
        }
        if let Some(answer) = self.cached_denial_of_all(&keys) {
            self.context.counts.cache.one();
            return Ok(answer);
        }
        if !one {
            return self.take_in_turn(&keys, stores, deadline).await;
        }
        let now = self.context.now();
        let begun: Vec<_> = keys.iter().map(|it| self.denials.begin_query(&it.key, now)).collect();
        match self.apply_in_one_call(&keys, None, deadline).await {
            Ok(answer) => {
                self.context.counts.store.one();
                let now = self.context.now();
                for ((it, begun), decision) in keys.iter().zip(begun).zip(answer.each()) {
                    let PlannedKey { key, policy, operation } = it;
                    // An allowed key of a denied take was not charged.
                    let tells = answer.allowed() || !decision.allowed();
                    if stores && operation.cost() > 0 && tells {
                        self.denials.record(key, policy, operation.cost(), begun, now, decision);
                    }
                }
                Ok(answer)
            }
            Err(error) if error.is_unavailable() => self.fallback_answer(&keys, &error),
            Err(error) => Err(error),
        }
    }

    /// A hold may be sent again, as that of one key.
    async fn hold_in_one_call(
        &self,
        keys: &[PlannedKey<'_>],
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut attempt = 1;
        loop {
            match self.apply_in_one_call(keys, None, deadline).await {
                Ok(answer) => {
                    self.context.counts.store.one();
                    for (it, decision) in keys.iter().zip(answer.each()) {
                        // An allowed key of a denied hold was not charged.
                        if answer.allowed() || !decision.allowed() {
                            self.record_usage(&it.key, &it.policy, decision);
                        }
                    }
                    return Ok(answer);
                }
                Err(error) if !error.is_unavailable() => return Err(error),
                Err(error) if attempt == MAX_ATTEMPTS || deadline.is_over() => {
                    return self.fallback_answer(keys, &error);
                }
                Err(_) => {
                    reached!(MultiKeyHoldIsSentAgain);
                    attempt += 1;
                }
            }
        }
    }

    /// Each key once, as it is in the store.
    fn distinct<'a>(
        &self,
        operations: &[KeyedOperation<'a>],
    ) -> Result<Vec<PlannedKey<'a>>, StoreError> {
        let mut distinct: Vec<PlannedKey<'a>> = Vec::with_capacity(operations.len());
        for &KeyedOperation { key, policy, operation } in operations {
            let key = self.key(key)?;
            if distinct.iter().all(|it| it.key != key) {
                distinct.push(PlannedKey { key, policy: self.planned(policy), operation });
            }
        }
        Ok(distinct)
    }

    /// One command or script call.
    async fn apply_in_one_call(
        &self,
        keys: &[PlannedKey<'_>],
        at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let Some(first) = keys.first() else { return combined(Vec::new(), Source::Store) };
        let peeks = matches!(first.operation, Operation::Peek(_));
        // Rules may charge more keys than a command has.
        let is_long = keys.len() > MAX_KEYS_PER_TAKE;
        let command = MultiKeyCommand {
            context: &self.context,
            keys,
            script: Script::multi_key(keys.iter().map(|it| &it.policy.policy)),
            at,
            module: ModuleUse::new(at.is_some() || peeks || is_long),
        };
        let slot = slot(&first.key);
        let node = self.topology.node(slot, deadline).await?;
        if is_long && node.has_commands_alone() {
            return Err(RequestError::TooManyKeys(keys.len()).into());
        }
        // No command of the module peeks at several keys, and the server or the user may have no scripts. Whether there is
        // a module is known when the node is connected.
        let peeks_at_each = || at.is_none() && peeks && node.has_module();
        if !peeks_at_each() {
            let each = self.send(slot, command, deadline).await;
            if each.is_ok() || !peeks_at_each() {
                return combined(each?, Source::Store);
            }
        }
        let peeks = keys.iter().map(|it| self.call(it.planned(), None, deadline));
        combined(try_join_all(peeks).await?, Source::Store)
    }

    /// The denial of all keys if a cached denial of one still applies, unless a policy records denials.
    fn cached_denial_of_all(&self, keys: &[PlannedKey<'_>]) -> Option<Answer> {
        if !keys.iter().all(|it| it.policy.is_cached) {
            return None;
        }
        let now = self.context.now();
        let denied = |it: &PlannedKey<'_>| {
            self.denials.denied(&it.key, &it.policy, it.operation.cost(), now)
        };
        let known: Vec<_> = keys.iter().map(denied).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        reached!(MultiKeyDenialIsFromCache);
        // The others count as unused.
        let each = keys.iter().zip(known).map(|(it, known)| {
            known.map_or_else(|| it.policy.plan.unused_decision, |answer| answer.decision)
        });
        Answer::of_all(each.collect(), Source::Cache)
    }

    /// The fallback decision.
    fn fallback_answer(
        &self,
        keys: &[PlannedKey<'_>],
        error: &StoreError,
    ) -> Result<Answer, StoreError> {
        let operations: Vec<_> = keys.iter().map(PlannedKey::planned).collect();
        combined(self.fall_back_all(&operations, error)?, Source::Fallback)
    }

    /// Keys of several slots: in order, until one denies.
    async fn take_in_turn(
        &self,
        takes: &[PlannedKey<'_>],
        stores: bool,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut answers: Vec<Answer> = Vec::with_capacity(takes.len());
        if stores {
            for take in takes {
                match self.request(take.planned(), deadline).await {
                    Ok(answer) => answers.push(answer),
                    Err(error) => {
                        reached!(KeysInTurnFail if !answers.is_empty());
                        self.refund_all(takes, &answers).await;
                        return Err(error);
                    }
                }
                if answers.last().is_some_and(|answer| !answer.allowed()) {
                    break;
                }
            }
        }
        let denied = answers.last().is_some_and(|answer| !answer.allowed());
        if denied {
            let before = answers.len() - 1;
            reached!(KeysInTurnAreRefunded if before > 0);
            let back = self.refund_all(takes, &answers[..before]).await;
            for (answer, back) in answers.iter_mut().zip(back) {
                *answer = back;
            }
        }
        // Peeks at the remaining keys; takes where the policy records denials.
        let rest = takes[answers.len()..].iter().map(async |take| {
            let peek = Operation::Peek(take.operation.cost());
            let records = stores && take.policy.records_denials;
            self.request(if records { take.planned() } else { take.with(peek) }, deadline).await
        });
        for answer in join_all(rest).await {
            answers.push(answer?);
        }
        debug_assert_eq!(answers.len(), takes.len(), "one answer for each key");
        let each = answers.iter().map(|answer| match answer.decision {
            // A take that was not applied has no delay.
            Decision { outcome: Outcome::Allow { .. }, .. } if denied => {
                Decision { outcome: Outcome::Allow { delay: Duration::ZERO }, ..answer.decision }
            }
            decision => decision,
        });
        let mut answer = combined(each.collect(), Source::Store)?;
        answer.source = answers.get(answer.key).map_or(Source::Store, |it| it.source);
        Ok(answer)
    }

    /// Refunds charges, once, and returns the state of each key. Fallback decisions and policies that record denials
    /// are not refunded.
    async fn refund_all(&self, takes: &[PlannedKey<'_>], answers: &[Answer]) -> Vec<Answer> {
        let back = takes.iter().zip(answers).map(async |(take, answer)| {
            let cost = take.operation.cost();
            if answer.source != Source::Store || cost == 0 || take.policy.records_denials {
                return answer.clone();
            }
            let refund = Operation::Refund(cost);
            let _forget = self.begin(&take.key, refund);
            let deadline = Deadline::after(self.context.options.deadline);
            match self.decide(take.with(refund), deadline).await {
                Ok(decision) => decision.into(),
                Err(error) => {
                    tracing::debug!(%error, "could not return charged units");
                    answer.clone()
                }
            }
        });
        join_all(back).await
    }
}

/// A request on several keys of one slot.
struct MultiKeyCommand<'a> {
    context: &'a Context,
    keys: &'a [PlannedKey<'a>],
    script: &'static Script,
    at: Option<Timestamp>,
    module: ModuleUse,
}

impl StoreCommand for MultiKeyCommand<'_> {
    type Answer = Vec<Decision>;
    // The state of each key may use other calendars.
    const CALENDARS: usize = MAX_KEYS_PER_TAKE * 2;

    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError> {
        if self.module.choose(node) {
            return Ok(native::command_for_all(self.keys));
        }
        let around = self.at.or(requested.now).unwrap_or_else(|| self.context.now());
        let mut command = begin_call(self.script, whole);
        command.arg(self.keys.len());
        self.keys.iter().for_each(|it| {
            command.arg(&*it.key);
        });
        let own = self.keys.iter().flat_map(|it| &it.policy.plan.calendars);
        let (word, id) = match self.keys.first().map(|it| it.operation) {
            Some(Operation::Peek(_)) => ("peek", &b""[..]),
            Some(Operation::Hold { id, .. }) => ("hold", id),
            _ => ("take", &b""[..]),
        };
        command.arg(word).arg(boundaries(own.chain(&requested.calendars), around));
        command.arg(self.at.map(|at| at.as_micros().to_string()).unwrap_or_default());
        command.arg(id);
        for PlannedKey { policy, operation, .. } in self.keys {
            let ttl = policy.policy.check_operation(*operation)?;
            command.arg(operation.cost()).arg(&policy.plan.initial_state).arg(ttl);
        }
        Ok(command)
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind<Vec<Decision>> {
        if self.module.is_native() {
            return self
                .module
                .follow(native::parse_decided(reply, native::decisions), self.context);
        }
        parse_general(reply, |elements| {
            if elements.len() != 7 * self.keys.len() {
                return None;
            }
            elements.chunks(7).map(one_decision).collect()
        })
    }
}

// Independent operations in one round trip per cluster slot.

/// An operation for the store, with its index in the batch.
struct PendingOperation<'a> {
    place: usize,
    pub(crate) planned: PlannedKey<'a>,
    token: QueryToken,
    _forget: Option<ForgetGuard<'a>>,
}

impl Inner {
    /// Applies several operations independently, and returns their answers in the same order.
    pub(crate) async fn send_many(
        &self,
        operations: &[KeyedOperation<'_>],
        deadline: Deadline,
    ) -> Vec<Result<Answer, StoreError>> {
        let now = self.context.now();
        let mut answers: Vec<Option<Result<Answer, StoreError>>> = vec![None; operations.len()];
        let mut slots: BTreeMap<u16, Vec<PendingOperation<'_>>> = BTreeMap::new();
        let alone = matches!(self.topology, Topology::One(_));
        for (place, &KeyedOperation { key, policy, operation }) in operations.iter().enumerate() {
            let planned = match self.key_of(key, operation) {
                Ok(key) => PlannedKey { key, policy: self.planned(policy), operation },
                Err(error) => {
                    answers[place] = Some(Err(error));
                    continue;
                }
            };
            if let Err(error) = planned.policy.policy.check_operation(operation) {
                answers[place] = Some(Err(error.into()));
                continue;
            }
            if let Some(answer) = self.cached_denial(planned.planned(), now) {
                answers[place] = Some(Ok(answer));
                continue;
            }
            self.local.follow_hold(planned.planned().into(), now);
            let forget = self.begin(&planned.key, operation);
            let token = self.denials.begin_query(&planned.key, now);
            let slot = if alone { 0 } else { slot(&planned.key) };
            let pending = PendingOperation { place, planned, token, _forget: forget };
            slots.entry(slot).or_default().push(pending);
        }
        let slots = slots.iter().map(|(slot, open)| self.apply_slot(*slot, open, deadline));
        for (place, answer) in join_all(slots).await.into_iter().flatten() {
            debug_assert!(answers[place].is_none(), "an operation of a batch has two answers");
            answers[place] = Some(answer);
        }
        debug_assert!(answers.iter().all(Option::is_some), "an operation of a batch has no answer");
        let none = || Err(StoreError::Unavailable("the store did not reply".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(none)).collect()
    }

    /// Applies the operations of one slot.
    async fn apply_slot(
        &self,
        slot: u16,
        open: &[PendingOperation<'_>],
        deadline: Deadline,
    ) -> Vec<(usize, Result<Answer, StoreError>)> {
        let all: Vec<_> = open.iter().collect();
        debug_assert!(open.is_sorted_by(|a, b| a.place < b.place), "a batch is out of order");
        let mut parsed = self.send_slot(slot, &all, false, deadline).await;
        debug_assert_eq!(parsed.len(), open.len(), "one reply for each operation");
        // Sends commands again that the server did not have, in the same order.
        let (again, unknown): (Vec<_>, Vec<_>) = open
            .iter()
            .zip(&mut parsed)
            .filter(|(_, parsed)| {
                matches!(parsed, Ok(ReplyKind::NoScript | ReplyKind::NoModule { at_all: true }))
            })
            .unzip();
        if !again.is_empty() {
            reached!(PipelineIsSentAgain);
            reached!(PipelineIsPartlySentAgain if again.len() < open.len());
            let answers = self.send_slot(slot, &again, true, deadline).await;
            debug_assert_eq!(answers.len(), unknown.len(), "one reply for each operation");
            unknown.into_iter().zip(answers).for_each(|(parsed, answer)| *parsed = answer);
        }
        let answers = open.iter().zip(parsed).map(async |(open, parsed)| {
            (open.place, self.resolve_redirects(open, parsed, deadline).await)
        });
        join_all(answers).await
    }

    /// Sends one pipeline, and parses the reply to each of `open`. With `texts`, the first call of each script has
    /// its whole text.
    async fn send_slot(
        &self,
        slot: u16,
        open: &[&PendingOperation<'_>],
        texts: bool,
        deadline: Deadline,
    ) -> Vec<Result<ReplyKind, StoreError>> {
        let exchange = async {
            let node = self.topology.node(slot, deadline).await?;
            let native = !texts && node.has_module();
            let around = self.context.now();
            let mut pipeline = Pipeline::with_capacity(open.len());
            let mut sent = Vec::new();
            for PendingOperation { planned: PlannedKey { key, policy, operation }, .. } in open {
                let plan = &policy.plan;
                if native {
                    pipeline.add_command(native::command(plan, key, *operation)?);
                    continue;
                }
                let arguments = plan.arguments(*operation, around, None, &[])?;
                let sha1 = plan.script().sha1();
                let whole = texts && !sent.contains(&sha1);
                if whole {
                    self.context.counts.scripts_sent.one();
                    sent.push(sha1);
                }
                pipeline.add_command(call_one(plan, key, &arguments, whole));
            }
            let replies = node.commands(&pipeline, deadline).await;
            // Another node may hold the slot by now.
            let replies = replies.inspect_err(|_| self.topology.refresh())?;
            if replies.len() != open.len() {
                let (expected, found) = (open.len(), replies.len());
                let text = format!("unexpected replies: expected {expected}, found {found}");
                return Err(StoreError::Unavailable(text));
            }
            Ok((node, native, replies))
        };
        match exchange.await {
            Ok((node, native, replies)) => {
                let parse = |(open, reply): (&&PendingOperation<'_>, _)| {
                    let parsed = if native::is_without_scripts(reply) && node.without_scripts() {
                        ReplyKind::NoModule { at_all: false }
                    } else if native {
                        native::parse_reply(
                            &open.planned.policy.plan,
                            open.planned.operation,
                            reply,
                        )
                    } else {
                        parse_script_reply(&open.planned.policy.plan, open.planned.operation, reply)
                    };
                    self.follow(&node, &parsed, reply);
                    let decided = native && matches!(parsed, ReplyKind::Decided(_));
                    self.context.counts.module.add(decided.into());
                    Ok(parsed)
                };
                open.iter().zip(&replies).map(parse).collect()
            }
            Err(error) => open.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The answer to one operation. Sends it again, alone, if it was not applied.
    async fn resolve_redirects(
        &self,
        open: &PendingOperation<'_>,
        parsed: Result<ReplyKind, StoreError>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let planned = open.planned.planned();
        let PlannedOperation { key, policy, operation } = planned;
        let is_hold = operation.id().is_some();
        let answer = match parsed {
            Ok(ReplyKind::Decided(decision)) if is_hold => {
                self.context.counts.store.one();
                self.record_usage(key, policy, &decision);
                Ok(decision.into())
            }
            Ok(ReplyKind::Decided(decision)) => Ok(self.decided(planned, open.token, decision)),
            Ok(ReplyKind::Failed(error)) | Err(error) if !error.is_unavailable() => Err(error),
            // It may be repeated.
            _ if is_hold => self.apply_hold(planned, deadline).await,
            Ok(ReplyKind::Failed(error)) | Err(error) => self.fall_back(planned, error),
            Ok(
                ReplyKind::NoScript
                | ReplyKind::NoModule { .. }
                | ReplyKind::Redirect { .. }
                | ReplyKind::Calendars { .. },
            ) => {
                reached!(PipelinedOperationIsSentAlone);
                self.request(planned, deadline).await
            }
        };
        self.replied(key, operation, &answer);
        answer
    }
}

impl Inner {
    pub(crate) fn granted(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        chunk: Chunk,
        times: (RefillToken, Timestamp),
    ) {
        let lost = self.leases.granted(key, policy, chunk, times);
        if lost > 0 {
            self.context.counts.lease_forfeited.add(lost.into());
        }
    }
}

// One command to the node that has a key, with its redirects and retries.

/// Maximum number of redirects of one command.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// A command to a node, and the meaning of its reply.
pub(crate) trait StoreCommand {
    type Answer;

    /// Maximum number of times that the script may request calendars.
    const CALENDARS: usize;

    /// The command for this node, with the `whole` text of a script that the node does not have, and with the
    /// calendars that the script has requested.
    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError>;

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind<Self::Answer>;
}

/// Calendars that a script needs beyond those of its policies.
#[derive(Default)]
pub(crate) struct RequestedCalendars {
    /// The time of the server, if a reply had it.
    pub(crate) now: Option<Timestamp>,
    pub(crate) calendars: Vec<Calendar>,
}

impl Inner {
    /// Sends a command to the node that holds `slot`. It is sent again only if a node replies that it has not applied
    /// it.
    pub(crate) async fn send<C: StoreCommand>(
        &self,
        slot: u16,
        mut command: C,
        deadline: Deadline,
    ) -> Result<C::Answer, StoreError> {
        let mut node = self.topology.node(slot, deadline).await?;
        let (mut whole, mut asking, mut requests) = (false, false, 0);
        let mut requested = RequestedCalendars::default();
        let mut tried_commands = false;
        // The commands of the node do not support a policy; scripts may.
        let mut rejected = None;
        // Each node may also lack the script and the module, and calendars may be requested.
        for _ in 0..MAX_REDIRECTS * 3 + 1 + C::CALENDARS {
            let built = command.command(&node, whole, &requested)?;
            let reply = if asking {
                let mut both = Pipeline::with_capacity(2);
                both.cmd("ASKING").add_command(built);
                let replies = node.commands(&both, deadline).await;
                replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
            } else {
                node.command(&built, deadline).await
            };
            // Another node may hold the slot by now.
            let reply = reply.inspect_err(|_| self.topology.refresh())?;
            if native::is_without_scripts(&reply) {
                if let Some(error) = rejected {
                    return Err(error);
                }
                if node.without_scripts() && !tried_commands {
                    tried_commands = true;
                    continue;
                }
            }
            rejected = policy_error(&reply).or(rejected);
            let parsed = command.parse_reply(&reply);
            self.follow(&node, &parsed, &reply);
            match parsed {
                ReplyKind::Decided(answer) => return Ok(answer),
                ReplyKind::Failed(error) => return Err(error),
                ReplyKind::NoModule { .. } => {}
                ReplyKind::NoScript => {
                    reached!(ScriptIsSent);
                    self.context.counts.scripts_sent.one();
                    whole = true;
                }
                ReplyKind::Redirect { to, moved } => {
                    self.context.counts.redirects.one();
                    reached!(SlotHasMoved if moved);
                    reached!(SlotIsAskedFor if !moved);
                    node = self.topology.redirected(slot, &to, &node, moved)?;
                    (asking, whole) = (!moved, false);
                }
                ReplyKind::Calendars { .. } if requests == C::CALENDARS => {
                    return Err(StoreError::Unavailable(
                        "the script requests calendars repeatedly".to_owned(),
                    ));
                }
                ReplyKind::Calendars { now, calendars } => {
                    requests += 1;
                    reached!(ScriptRequestsCalendars);
                    requested.now = Some(now);
                    requested.calendars.extend(calendars);
                }
            }
        }
        Err(too_many_redirects(slot))
    }

    /// Applies an operation to one key, at the time `at` if it is given: by the module if the node has it, else by script.
    pub(crate) async fn call(
        &self,
        planned: PlannedOperation<'_>,
        at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        let (context, module) = (&*self.context, ModuleUse::new(at.is_some()));
        let command = SingleKeyCommand { context, planned, at, module };
        self.send(slot(planned.key), command, deadline).await
    }

    /// Updates the state of the connection after a reply.
    pub(crate) fn follow<T>(
        &self,
        node: &Arc<NodeConnection>,
        parsed: &ReplyKind<T>,
        reply: &Value,
    ) {
        match (parsed, reply) {
            (ReplyKind::Decided(_), _) => node.decided(),
            (ReplyKind::NoModule { at_all: true }, _) => node.lost_module(),
            (ReplyKind::Failed(error), Value::ServerError(error_reply)) => {
                if let StoreError::Corrupt(..) = error {
                    self.context.counts.corrupt.one();
                }
                let is_rejected = rejects_writes(reply);
                if is_rejected {
                    reached!(NodeRejectsWrites);
                    node.suspect();
                } else if MissingPermission::of(reply).is_some() {
                    node.forbidden();
                }
                reached!(ClusterIsDown if error_reply.code() == "CLUSTERDOWN");
                reached!(ClusterSaysTryAgain if error_reply.code() == "TRYAGAIN");
                if is_rejected || error_reply.code() == "CLUSTERDOWN" {
                    self.topology.refresh();
                }
            }
            // Later replies on this connection may be those to other commands.
            (ReplyKind::Failed(error), _) => node.lost(None, &error.to_string()),
            _ => {}
        }
    }
}

/// Whether an operation is sent as a command of the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleUse {
    /// Whether the last command was one of the module.
    is_native: bool,
    /// Set if no command has the operation, the user may not run it, or the module does not support a policy.
    by_script: bool,
}

impl ModuleUse {
    /// With `by_script`, it is always a script.
    pub(crate) const fn new(by_script: bool) -> Self {
        Self { is_native: false, by_script }
    }

    /// Whether the next command is one of the module, because `node` has it.
    pub(crate) fn choose(&mut self, node: &Arc<NodeConnection>) -> bool {
        self.is_native = !self.by_script && node.has_module();
        self.is_native
    }

    /// Whether the last command was one of the module.
    pub(crate) const fn is_native(self) -> bool {
        self.is_native
    }

    /// Counts a decision of the module, and notes that it does not support a policy.
    pub(crate) fn follow<T>(&mut self, parsed: ReplyKind<T>, context: &Context) -> ReplyKind<T> {
        match parsed {
            ReplyKind::Decided(_) => context.counts.module.one(),
            ReplyKind::NoModule { at_all: false } => self.by_script = true,
            _ => {}
        }
        parsed
    }
}

/// An operation on one key.
struct SingleKeyCommand<'a> {
    context: &'a Context,
    pub(crate) planned: PlannedOperation<'a>,
    at: Option<Timestamp>,
    module: ModuleUse,
}

impl StoreCommand for SingleKeyCommand<'_> {
    type Answer = Decision;
    // Those of the stored state; those of other policies, if other processes change it between two commands.
    const CALENDARS: usize = 4;

    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError> {
        let &mut Self { context, planned: PlannedOperation { key, policy, operation }, at, .. } =
            self;
        if self.module.choose(node) {
            return Ok(native::command(&policy.plan, key, operation)?);
        }
        let around = requested.now.or(at).unwrap_or_else(|| context.now());
        let arguments = policy.plan.arguments(operation, around, at, &requested.calendars)?;
        Ok(call_one(&policy.plan, key, &arguments, whole))
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind {
        let PlannedOperation { policy, operation, .. } = self.planned;
        if !self.module.is_native() {
            return parse_script_reply(&policy.plan, operation, reply);
        }
        self.module.follow(native::parse_reply(&policy.plan, operation, reply), self.context)
    }
}
