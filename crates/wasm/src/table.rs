//! Decisions in the memory of the instance.

use std::cell::RefCell;

use sluicegate_core::{Decision, KeyedOperation, Request, Retry};
use sluicegate_memory::{MemoryStore, TABLE_FULL_RETRY, WhenFull};

use crate::{
    exchange::{Exchange, OPERATION_ERROR, Status, exported, from_usize, time, to_micros},
    operations::{Keyed, operation, several},
    policies::{self, Policies},
};

thread_local! {
    /// The table, once it is open.
    static TABLE: RefCell<Option<MemoryStore>> = const { RefCell::new(None) };
}

/// Calls `with` with the buffers, the policies and the table.
fn with<R>(with: impl FnOnce(&mut Exchange, &Policies, &MemoryStore) -> R) -> R {
    TABLE.with_borrow(|table| {
        let table = table.as_ref().expect(OPEN);
        policies::with(|exchange, policies| with(exchange, policies, table))
    })
}

const OPEN: &str = "the host opens the table first";

exported! {
    /// Opens the table, of up to `max_bytes`. When they are in use, new keys are denied.
    pub fn open(max_bytes: f64) {
        let max_bytes = usize::try_from(to_micros(max_bytes)).unwrap_or(usize::MAX);
        TABLE.set(Some(MemoryStore::bounded(max_bytes, WhenFull::default())));
    }

    /// Applies an operation to the key at the start of the input, which is followed by the id of a hold.
    pub fn apply(code: u32, key_length: usize, id_length: usize, policy: usize, cost: u32, span: f64, now: f64) -> Status {
        with(|exchange, policies, table| {
            let (key, rest) = exchange.input.split_at(key_length);
            let (now, policy) = (time(now), &policies[policy]);
            let policy = policy.numbered.get_or_init(|| table.prepare(policy.prepared.policy(), now));
            let operation = operation(code, &rest[..id_length], cost, span);
            let before = table.usage().table_full;
            let decided = table.apply_numbered(key, policy, now, operation);
            let status = exchange.decided(&decided);
            if decided.is_ok_and(|it| is_for_table(table, before, &it)) {
                exchange.set_table_full();
            }
            status
        })
    }

    /// Applies takes, peeks or holds of several keys, all or none.
    pub fn apply_all(code: u32, count: usize, id_length: usize, span: f64, now: f64) -> Status {
        with(|exchange, policies, table| {
            let Some(keys) = several(&exchange.input, policies, (code, count, id_length, span)) else {
                return exchange.fail(OPERATION_ERROR, INVALID_KEYS);
            };
            let operations = keyed(&keys);
            let before = table.usage().table_full;
            let answer = Request::all(&operations).map_err(Into::into).and_then(|it| table.apply_all(it, time(now)));
            match answer {
                Ok(answer) => {
                    let status = exchange.answered(&answer);
                    if is_for_table(table, before, &answer) {
                        exchange.set_table_full();
                    }
                    status
                }
                Err(error) => exchange.fail(OPERATION_ERROR, error),
            }
        })
    }

    /// Resets a key. Whether it had state that had not recovered.
    pub fn reset(key_length: usize, now: f64) -> Status {
        with(|exchange, _, table| i32::from(table.reset(&exchange.input[..key_length], time(now))))
    }

    /// Puts the number of keys, the bytes in use, and their bound into the numbers.
    pub fn usage() {
        with(|exchange, _, table| {
            let usage = table.usage();
            let numbers = [usage.keys, usage.bytes, usage.max_bytes];
            for (number, usage) in exchange.numbers.iter_mut().zip(numbers) {
                *number = from_usize(usage);
            }
        });
    }
}

/// Whether a request was denied because the table is full. `before` is how many were, until this one.
fn is_for_table(table: &MemoryStore, before: u64, decision: &Decision) -> bool {
    decision.retry() == Some(Retry::After(TABLE_FULL_RETRY)) && table.usage().table_full > before
}

pub(crate) const INVALID_KEYS: &str = "invalid number of keys: expected 1 to 8";

/// The operations of a request for several keys.
pub(crate) fn keyed<'a>(keys: &[Keyed<'a>]) -> Vec<KeyedOperation<'a>> {
    let keyed = |&Keyed { key, policy, operation }: &Keyed<'a>| KeyedOperation {
        key,
        policy: &policy.prepared,
        operation,
    };
    keys.iter().map(keyed).collect()
}
