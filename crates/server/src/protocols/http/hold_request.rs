//! The body of a request about holds.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Deserializer};
use sluicegate_commands::MAX_SPAN;
use sluicegate_core::{HoldOperation, MAX_KEYS_PER_TAKE, MultiKeyOperation};

use super::{
    key_request::{
        KeyRequest, List, Number, Str, at, check_place, cost, headers, key, key_base64, key_bytes,
        list, policy, policy_text,
    },
    problem::Problem,
    route::HoldVerb,
};
use crate::HttpHeaders;

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
    #[serde(default, deserialize_with = "cost")]
    cost: Option<u32>,
    #[serde(default, deserialize_with = "used")]
    used: Option<u32>,
    #[serde(default, deserialize_with = "ttl")]
    ttl_us: Option<u64>,
    #[serde(default, deserialize_with = "at")]
    pub(super) at_us: Option<u64>,
    /// The rate limit headers of the response, if the request chooses.
    #[serde(default, deserialize_with = "headers")]
    pub(super) headers: Option<HttpHeaders>,
}

/// Takes from several keys, from all or from none; with an id, holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeAllRequest<'a> {
    #[serde(borrow, deserialize_with = "takes")]
    pub(super) takes: Vec<KeyRequest<'a>>,
    #[serde(borrow, default, deserialize_with = "id")]
    id: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "ttl")]
    ttl_us: Option<u64>,
    #[serde(default, deserialize_with = "at")]
    pub(super) at_us: Option<u64>,
    /// The rate limit headers of the response, if the request chooses.
    #[serde(default, deserialize_with = "headers")]
    pub(super) headers: Option<HttpHeaders>,
}

/// Settles the hold with one id in several keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleAllRequest<'a> {
    #[serde(borrow, deserialize_with = "settles")]
    pub(super) settles: Vec<HoldRequest<'a>>,
    #[serde(borrow, default, deserialize_with = "id")]
    id: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "at")]
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

    /// The operation, of the members that are valid at `verb`.
    pub(super) fn operation(&self, verb: HoldVerb) -> Result<HoldOperation<'_>, Problem> {
        let misplaced = self.cost.is_some() && verb != HoldVerb::Hold;
        check_place(&[("cost", misplaced)], "/v1/hold")?;
        let misplaced = self.used.is_some() && verb != HoldVerb::Settle;
        check_place(&[("used", misplaced)], "/v1/settle")?;
        let misplaced = self.ttl_us.is_some() && verb == HoldVerb::Settle;
        check_place(&[("ttl_us", misplaced)], "/v1/hold and /v1/renew")?;
        let (id, ttl) = (id_bytes(self.id.as_deref())?, self.ttl_us.map(Duration::from_micros));
        Ok(match verb {
            HoldVerb::Hold => HoldOperation::Hold { id, cost: self.cost.unwrap_or(1), ttl },
            HoldVerb::Settle => HoldOperation::Settle { id, used: self.used },
            HoldVerb::Renew => HoldOperation::Renew { id, ttl },
        })
    }

    /// Units that were used, if it is one of several settles.
    pub(super) fn used_of_one(&self) -> Result<Option<u32>, Problem> {
        check_place(&[("cost", self.cost.is_some())], "/v1/hold")?;
        check_place(&[("ttl_us", self.ttl_us.is_some())], "/v1/hold and /v1/renew")?;
        let others = [("at_us", self.at_us.is_some()), ("headers", self.headers.is_some())];
        check_place(&others, "a single request")?;
        check_place(&[("id", self.id.is_some())], "all `settles` together")?;
        Ok(self.used)
    }
}

impl TakeAllRequest<'_> {
    /// The operation on all keys.
    pub(super) fn operation(&self) -> Result<MultiKeyOperation<'_>, Problem> {
        let ttl = self.ttl_us.map(Duration::from_micros);
        match &self.id {
            Some(id) => Ok(MultiKeyOperation::Hold { id: id.as_bytes(), ttl }),
            None if ttl.is_some() => {
                Err(Problem::unprocessable("`ttl_us` is given without `id`: expected both"))
            }
            None => Ok(MultiKeyOperation::Take),
        }
    }
}

impl SettleAllRequest<'_> {
    /// The id of the hold.
    pub(super) fn id(&self) -> Result<&[u8], Problem> {
        id_bytes(self.id.as_deref())
    }
}

/// The id that the member has. The store checks its length.
fn id_bytes(id: Option<&str>) -> Result<&[u8], Problem> {
    id.map(str::as_bytes)
        .ok_or_else(|| Problem::unprocessable("missing `id`: expected a string of 1 to 64 bytes"))
}

// A member must have a value; null is rejected.

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    from.deserialize_str(Str { expected: "`id`, a string" }).map(Some)
}

fn used<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let used = from.deserialize_u64(Number { name: "used", most: u32::MAX.into() })?;
    u32::try_from(used).map(Some).map_err(serde::de::Error::custom)
}

fn ttl<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from.deserialize_u64(Number { name: "ttl_us", most: MAX_SPAN }).map(Some)
}

fn takes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<KeyRequest<'de>>, D::Error> {
    list(from, List { name: "takes", most: MAX_KEYS_PER_TAKE, items: "takes" })
}

fn settles<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HoldRequest<'de>>, D::Error> {
    list(from, List { name: "settles", most: MAX_KEYS_PER_TAKE, items: "settles" })
}
