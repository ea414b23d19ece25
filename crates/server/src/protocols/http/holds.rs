//! Holds, and operations on several keys: from the body of a request to its response.

use std::{borrow::Cow, time::Duration};

use futures_util::future::join_all;
use serde::{Deserialize, Deserializer};
use sluicegate_commands::{MAX_SPAN, RepeatedKeys};
use sluicegate_core::{
    KeyedOperation, MAX_KEYS_PER_TAKE, Operation, Request, StoreError, Timestamp,
};

use super::{
    decide::find_policy,
    key_request::{
        self, KeyRequest, List, Number, Str, check_place, cost, decode_base64, deserialize_time,
        headers, key, key_base64, key_bytes, list, policy, policy_text, wait, wait_of,
    },
    problem::{Problem, Reply},
    reply::{self, DecisionReply, visible_source},
    route::{HoldOperationKind, KeyOperationKind},
    worker::HttpWorker,
};
use crate::{
    HeaderStyle,
    net::web::RequestBody,
    stats::Cause,
    wait::{self, WaitingRequest},
};

/// One operation on one hold. A settle or renew of a hold that is not open is an answer, and not a denial by a limit.
pub(super) async fn one(
    worker: &HttpWorker,
    kind: HoldOperationKind,
    (text, body): (&[u8], &RequestBody),
    now: Timestamp,
) -> Result<Reply, Problem> {
    let context = &worker.context;
    let request: HoldRequest<'_> = key_request::read(text)?;
    let (key, id) = (request.key()?, request.id()?);
    let operation = request.operation(kind, &id)?;
    let timeout = request.wait()?;
    let now = key_request::time(request.at_us, context.test_clock)?.unwrap_or(now);
    let style = request.headers.unwrap_or(context.settings.headers);
    let found = find_policy(worker, request.policy()?)?;
    let (policy, headers) = worker.policies.borrow_mut().pin(found);
    let keyed = KeyedOperation { key: &key, policy: &policy, operation };
    let (answer, now, waited) = match timeout {
        Some(timeout) => {
            let mut waiting = WaitingRequest::one(keyed, timeout);
            let bytes = waiting.reserved_bytes();
            let waited = wait::wait(&context.decider, &mut waiting, worker.stopping());
            (worker.wait(body, bytes, waited).await?, waiting.decided_at(), Some(waiting.waited()))
        }
        None => (context.decider.decide(keyed.into(), now).await?, now, None),
    };
    if kind == HoldOperationKind::Hold {
        let cause = Cause::policy(policy.policy());
        worker.record(&key, answer.source, &answer.decision, cause);
        context.decider.note(&keyed, answer.source, &answer.decision, now, waited);
    }
    let mut data = DecisionReply::new(worker, &answer.decision, answer.source, &headers, style);
    data.is_query = kind != HoldOperationKind::Hold;
    Ok(reply::decision(&data))
}

/// Takes from several keys, from all or from none, or holds.
pub(super) async fn take_all(
    worker: &HttpWorker,
    (text, body): (&[u8], &RequestBody),
    now: Timestamp,
) -> Result<Reply, Problem> {
    let context = &worker.context;
    let request: TakeAllRequest<'_> = key_request::read(text)?;
    let given = request.takes()?;
    let id = request.id()?;
    let operation = request.operation(id.as_deref())?;
    let timeout = request.wait()?;
    let now = key_request::time(request.at_us, context.test_clock)?.unwrap_or(now);
    let style = request.headers.unwrap_or(context.settings.headers);
    let mut parsed = Vec::with_capacity(given.len());
    for (index, take) in given.iter().enumerate() {
        let one = || {
            take.one_of_many()?;
            take.operation(KeyOperationKind::Take)?;
            Ok(((take.key()?, take.cost()), find_policy(worker, take.policy()?)?))
        };
        parsed.push(one().map_err(|problem: Problem| problem.in_item("takes", index))?);
    }
    // Stores answer once for each distinct key.
    let repeated = RepeatedKeys::remove_from(&mut parsed, |((key, _), _)| key);
    let (keys, found): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
    let policies = worker.policies.borrow_mut().pin_all(found);
    let operations = keys.iter().zip(&policies).map(|((key, cost), (policy, _))| KeyedOperation {
        key,
        policy,
        operation: operation.with_cost(*cost),
    });
    let operations: Vec<_> = operations.collect();
    let (answer, now, waited) = match timeout {
        None => {
            let request = Request::all(&operations).map_err(StoreError::from)?;
            (context.decider.decide(request, now).await?, now, None)
        }
        Some(timeout) => {
            let mut waiting = WaitingRequest::all(&operations, timeout);
            let bytes = waiting.reserved_bytes();
            let waited = wait::wait(&context.decider, &mut waiting, worker.stopping());
            (worker.wait(body, bytes, waited).await?, waiting.decided_at(), Some(waiting.waited()))
        }
    };
    for (it, decision) in operations.iter().zip(answer.each()) {
        let cause = Cause::policy(it.policy.policy());
        worker.stats().record(it.key, answer.source, decision, cause);
    }
    context.decider.note_all(&operations, &answer, now, waited);
    // The headers are those of the key that binds.
    let headers = &policies[answer.key].1;
    let mut data = DecisionReply::new(worker, &answer.decision, answer.source, headers, style);
    data.bound = &answer.each()[answer.key];
    Ok(reply::all(&data, &answer, &repeated))
}

/// Settles a hold of several keys, each by itself.
pub(super) async fn settle_all(
    worker: &HttpWorker,
    body: &[u8],
    now: Timestamp,
) -> Result<Reply, Problem> {
    let decider = &worker.context.decider;
    let request: SettleAllRequest<'_> = key_request::read(body)?;
    let given = request.settles()?;
    let id = &*request.id()?;
    let now = key_request::time(request.at_us, worker.context.test_clock)?.unwrap_or(now);
    let mut parsed = Vec::with_capacity(given.len());
    // All are validated before any is settled.
    for (index, settle) in given.iter().enumerate() {
        let one = || {
            let operation = Operation::Settle { id, used: settle.used_of_one()? };
            let (key, found) = (settle.key()?, find_policy(worker, settle.policy()?)?);
            decider.check_key(&key)?;
            let policies = worker.policies.borrow();
            policies.get(found).policy().check_operation(operation).map_err(StoreError::from)?;
            Ok(((key, operation), found))
        };
        parsed.push(one().map_err(|problem: Problem| problem.in_item("settles", index))?);
    }
    let (operations, found): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
    let policies = worker.policies.borrow_mut().pin_all(found);
    let settles = operations.iter().zip(&policies);
    let settles = settles.map(|((key, operation), (policy, _))| {
        decider.decide(Request::one(key, policy, *operation), now).into_future()
    });
    let answers = join_all(settles).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let decisions =
        answers.iter().map(|answer| (&answer.decision, visible_source(worker, answer.source)));
    Ok(reply::decisions(decisions))
}

/// A request about one hold of one key. The operation decides which members are valid.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldRequest<'a> {
    #[serde(borrow, default, deserialize_with = "key")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "key_base64")]
    key_base64: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "policy")]
    policy: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "id")]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "id_base64")]
    id_base64: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "cost")]
    cost: Option<u32>,
    #[serde(default, deserialize_with = "used")]
    used: Option<u32>,
    #[serde(default, deserialize_with = "ttl")]
    ttl_us: Option<u64>,
    #[serde(default, deserialize_with = "wait")]
    wait_us: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_time")]
    pub(super) at_us: Option<u64>,
    /// The rate limit headers of the response, if the request chooses.
    #[serde(default, deserialize_with = "headers")]
    pub(super) headers: Option<HeaderStyle>,
}

/// Takes from several keys, from all or from none; with an id, holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeAllRequest<'a> {
    #[serde(borrow, default, deserialize_with = "takes")]
    takes: Vec<KeyRequest<'a>>,
    #[serde(borrow, default, deserialize_with = "id")]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "id_base64")]
    id_base64: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "ttl")]
    ttl_us: Option<u64>,
    #[serde(default, deserialize_with = "wait")]
    wait_us: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_time")]
    pub(super) at_us: Option<u64>,
    /// The rate limit headers of the response, if the request chooses.
    #[serde(default, deserialize_with = "headers")]
    pub(super) headers: Option<HeaderStyle>,
}

/// Settles the hold with one id in several keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleAllRequest<'a> {
    #[serde(borrow, default, deserialize_with = "settles")]
    settles: Vec<HoldRequest<'a>>,
    #[serde(borrow, default, deserialize_with = "id")]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "id_base64")]
    id_base64: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "deserialize_time")]
    pub(super) at_us: Option<u64>,
}

impl HoldRequest<'_> {
    /// The key, as bytes.
    pub(super) fn key(&self) -> Result<Cow<'_, [u8]>, Problem> {
        key_bytes(self.key.as_deref(), self.key_base64.as_deref())
    }

    /// The policy, as text.
    pub(super) fn policy(&self) -> Result<&[u8], Problem> {
        policy_text(self.policy.as_deref())
    }

    /// The id of the hold.
    pub(super) fn id(&self) -> Result<Cow<'_, [u8]>, Problem> {
        required_id(self.id.as_deref(), self.id_base64.as_deref())
    }

    /// How long a hold may wait, if it may.
    pub(super) fn wait(&self) -> Result<Option<Duration>, Problem> {
        wait_of(self.wait_us, self.at_us)
    }

    /// The operation on the hold `id`, of the members that are valid for `kind`.
    pub(super) fn operation<'a>(
        &self,
        kind: HoldOperationKind,
        id: &'a [u8],
    ) -> Result<Operation<'a>, Problem> {
        let is_other = kind != HoldOperationKind::Hold;
        let misplaced = [
            ("cost", self.cost.is_some() && is_other),
            ("wait_us", self.wait_us.is_some() && is_other),
        ];
        check_place(&misplaced, "/v1/hold")?;
        let misplaced = self.used.is_some() && kind != HoldOperationKind::Settle;
        check_place(&[("used", misplaced)], "/v1/settle")?;
        let misplaced = self.ttl_us.is_some() && kind == HoldOperationKind::Settle;
        check_place(&[("ttl_us", misplaced)], "/v1/hold and /v1/renew")?;
        let ttl = self.ttl_us.map(Duration::from_micros);
        Ok(match kind {
            HoldOperationKind::Hold => Operation::Hold { id, cost: self.cost.unwrap_or(1), ttl },
            HoldOperationKind::Settle => Operation::Settle { id, used: self.used },
            HoldOperationKind::Renew => Operation::Renew { id, ttl },
        })
    }

    /// Units that were used, if it is one of several settles.
    pub(super) fn used_of_one(&self) -> Result<Option<u32>, Problem> {
        let misplaced = [("cost", self.cost.is_some()), ("wait_us", self.wait_us.is_some())];
        check_place(&misplaced, "/v1/hold")?;
        check_place(&[("ttl_us", self.ttl_us.is_some())], "/v1/hold and /v1/renew")?;
        let others = [("at_us", self.at_us.is_some()), ("headers", self.headers.is_some())];
        check_place(&others, "a single request")?;
        let ids = [("id", self.id.is_some()), ("id_base64", self.id_base64.is_some())];
        check_place(&ids, "all `settles` together")?;
        Ok(self.used)
    }
}

impl<'a> TakeAllRequest<'a> {
    /// The takes, at least one.
    pub(super) fn takes(&self) -> Result<&[KeyRequest<'a>], Problem> {
        TAKES.required(&self.takes)
    }

    /// The id of the hold; `None` to take.
    pub(super) fn id(&self) -> Result<Option<Cow<'_, [u8]>>, Problem> {
        id_bytes(self.id.as_deref(), self.id_base64.as_deref())
    }

    /// How long the request may wait, if it may.
    pub(super) fn wait(&self) -> Result<Option<Duration>, Problem> {
        wait_of(self.wait_us, self.at_us)
    }

    /// The operation on all keys, without the cost of each.
    pub(super) fn operation<'i>(&self, id: Option<&'i [u8]>) -> Result<Operation<'i>, Problem> {
        let ttl = self.ttl_us.map(Duration::from_micros);
        match id {
            Some(id) => Ok(Operation::Hold { id, cost: 0, ttl }),
            None if ttl.is_some() => {
                Err(Problem::unprocessable("`ttl_us` is given without `id`: expected both"))
            }
            None => Ok(Operation::Take(0)),
        }
    }
}

impl<'a> SettleAllRequest<'a> {
    /// The settles, at least one.
    pub(super) fn settles(&self) -> Result<&[HoldRequest<'a>], Problem> {
        SETTLES.required(&self.settles)
    }

    /// The id of the hold.
    pub(super) fn id(&self) -> Result<Cow<'_, [u8]>, Problem> {
        required_id(self.id.as_deref(), self.id_base64.as_deref())
    }
}

/// The id that one of the two members has, as bytes. The store checks its length.
fn id_bytes<'a>(
    id: Option<&'a str>,
    base64: Option<&str>,
) -> Result<Option<Cow<'a, [u8]>>, Problem> {
    match (id, base64) {
        (Some(_), Some(_)) => {
            Err(Problem::unprocessable("both `id` and `id_base64` are given: expected one of them"))
        }
        (Some(id), None) => Ok(Some(Cow::Borrowed(id.as_bytes()))),
        (None, Some(text)) => decode_base64("id_base64", text).map(|id| Some(Cow::Owned(id))),
        (None, None) => Ok(None),
    }
}

fn required_id<'a>(id: Option<&'a str>, base64: Option<&str>) -> Result<Cow<'a, [u8]>, Problem> {
    id_bytes(id, base64)?.ok_or_else(|| {
        Problem::unprocessable(
            "missing `id`: expected a string of 1 to 64 bytes, or bytes in Base64 as `id_base64`",
        )
    })
}

// A member must have a value; null is rejected.

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    from.deserialize_str(Str { expected: "`id`, a string" }).map(Some)
}

fn id_base64<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    from.deserialize_str(Str { expected: "`id_base64`, a string" }).map(Some)
}

fn used<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let used = from.deserialize_u64(Number { name: "used", most: u32::MAX.into() })?;
    u32::try_from(used).map(Some).map_err(serde::de::Error::custom)
}

fn ttl<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_u64(Number { name: "ttl_us", most: MAX_SPAN }).map(Some)
}

fn takes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KeyRequest<'de>>, D::Error> {
    list(from, TAKES)
}

fn settles<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HoldRequest<'de>>, D::Error> {
    list(from, SETTLES)
}

const TAKES: List = List { name: "takes", most: MAX_KEYS_PER_TAKE, items: "takes" };
const SETTLES: List = List { name: "settles", most: MAX_KEYS_PER_TAKE, items: "settles" };
