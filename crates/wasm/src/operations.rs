//! Operations as the host gives them.

use std::time::Duration;

use sluicegate_core::Operation;

use crate::{
    exchange::{MAX_KEYS, from_micros, from_usize, to_micros},
    policies::{Policies, Policy},
};

/// Codes of operations.
const TAKE: u32 = 0;
const PEEK: u32 = 1;
const CHARGE: u32 = 2;
const REFUND: u32 = 3;
const RESERVE: u32 = 4;
const RESET: u32 = 5;
const HOLD: u32 = 6;
const SETTLE: u32 = 7;
const RENEW: u32 = 8;

/// The operation of a code. `span` is the longest wait of a reserve, or the lifetime of a hold, in microseconds; negative
/// if it is not given, and for a settle without `cost`.
#[inline]
pub(crate) fn operation(code: u32, id: &[u8], cost: u32, span: f64) -> Operation<'_> {
    let given = || (span >= 0.0).then(|| Duration::from_micros(to_micros(span)));
    match code {
        TAKE => Operation::Take(cost),
        PEEK => Operation::Peek(cost),
        CHARGE => Operation::Charge(cost),
        REFUND => Operation::Refund(cost),
        RESERVE => Operation::Reserve { cost, max_wait: given().unwrap_or_default() },
        HOLD => Operation::Hold { id, cost, ttl: given() },
        SETTLE => Operation::Settle { id, used: given().map(|_| cost) },
        RENEW => Operation::Renew { id, ttl: given() },
        _ => Operation::Reset,
    }
}

/// The code of an operation, with its cost and its span.
pub(crate) fn encoded(operation: Operation<'_>) -> (u32, [f64; 2]) {
    let span = |span: Option<Duration>| {
        span.map_or(-1.0, |it| from_micros(sluicegate_core::as_micros(it)))
    };
    let cost = from_usize(operation.cost() as usize);
    match operation {
        Operation::Take(_) => (TAKE, [cost, -1.0]),
        Operation::Peek(_) => (PEEK, [cost, -1.0]),
        Operation::Charge(_) => (CHARGE, [cost, -1.0]),
        Operation::Refund(_) => (REFUND, [cost, -1.0]),
        Operation::Reserve { max_wait, .. } => (RESERVE, [cost, span(Some(max_wait))]),
        Operation::Reset => (RESET, [cost, -1.0]),
        Operation::Hold { ttl, .. } => (HOLD, [cost, span(ttl)]),
        Operation::Settle { used, .. } => {
            (SETTLE, [from_usize(used.unwrap_or_default() as usize), used.map_or(-1.0, |_| 0.0)])
        }
        Operation::Renew { ttl, .. } => (RENEW, [cost, span(ttl)]),
    }
}

/// A key of a request for several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) operation: Operation<'a>,
}

/// The keys of a request for several: for each the length of its key, the handle of its policy and its cost, all in four bytes, and the
/// key; behind them the id of a hold. `None` if there are none or too many, or the bytes end early.
pub(crate) fn several<'a>(
    mut input: &'a [u8],
    policies: &'a Policies,
    (code, count, id_length, span): (u32, usize, usize, f64),
) -> Option<Vec<Keyed<'a>>> {
    if !(1..=MAX_KEYS).contains(&count) {
        return None;
    }
    let mut keys = Vec::with_capacity(count);
    for _ in 0..count {
        let length = usize::try_from(number(&mut input)?).ok()?;
        let policy = policies.get(usize::try_from(number(&mut input)?).ok()?)?;
        let cost = number(&mut input)?;
        let (key, rest) = input.split_at_checked(length)?;
        keys.push((key, policy, cost));
        input = rest;
    }
    let id = input.get(..id_length)?;
    let keyed =
        |(key, policy, cost)| Keyed { key, policy, operation: operation(code, id, cost, span) };
    Some(keys.into_iter().map(keyed).collect())
}

fn number(input: &mut &[u8]) -> Option<u32> {
    let (number, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(u32::from_le_bytes(*number))
}
