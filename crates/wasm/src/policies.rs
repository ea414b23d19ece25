//! Policies by handle.

use slab::Slab;
use sluicegate_core::{OnError, Operation, PreparedPolicy};
use sluicegate_fallback::FallbackPolicy;
use sluicegate_memory::NumberedPolicy;

use std::cell::{OnceCell, RefCell};

use crate::exchange::{self, Exchange, POLICY_ERROR, Status, exported, from_micros};

/// The policies that the host has parsed and not freed.
pub(crate) type Policies = Slab<Policy>;

/// A policy as each part needs it.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) prepared: PreparedPolicy,
    pub(crate) fallback: FallbackPolicy,
    /// Its number in the table, once it has one.
    pub(crate) numbered: OnceCell<NumberedPolicy>,
}

thread_local! {
    static POLICIES: RefCell<Policies> = RefCell::default();
}

/// Calls `with` with the buffers and the policies.
pub(crate) fn with<R>(with: impl FnOnce(&mut Exchange, &Policies) -> R) -> R {
    POLICIES.with_borrow(|policies| exchange::with(|exchange| with(exchange, policies)))
}

exported! {
    /// Parses a policy from the input: its text, and behind it `on_error`, unless that is empty. Returns its handle.
    pub fn policy(text_length: usize, on_error_length: usize) -> Status {
        exchange::with(|exchange| {
            let (text, rest) = exchange.input.split_at(text_length);
            match prepared(&utf8(text), &utf8(&rest[..on_error_length])) {
                Ok(prepared) => {
                    let fallback = FallbackPolicy::new(&prepared);
                    let policy = Policy { prepared, fallback, numbered: OnceCell::new() };
                    let handle = POLICIES.with_borrow_mut(|policies| policies.insert(policy));
                    i32::try_from(handle).expect("there is no memory for 2^31 policies")
                }
                Err(error) => exchange.fail(POLICY_ERROR, error),
            }
        })
    }

    /// Frees a policy.
    pub fn free_policy(policy: usize) {
        POLICIES.with_borrow_mut(|policies| drop(policies.remove(policy)));
    }

    /// Sets the text to that of a policy, in its normal form.
    pub fn policy_text(policy: usize) {
        with(|exchange, policies| exchange.say(policies[policy].prepared.policy()));
    }

    /// Sets the text to the description of a policy in words, a line for each limit.
    pub fn explain(policy: usize) {
        with(|exchange, policies| {
            let limits = policies[policy].prepared.policy().limits().iter();
            let words = limits.map(|limit| {
                let it = limit.describe();
                format!("{limit}: at once {}; sustained {}; {}", it.at_once, it.sustained, it.denied)
            });
            exchange.say(words.collect::<Vec<_>>().join("\n"));
        });
    }

    /// The longest and default lifetime of a hold under the `concurrency` limits of a policy, in microseconds; -1 without such
    /// limits.
    pub fn hold_ttl(policy: usize) -> f64 {
        with(|_, policies| {
            let hold = Operation::Hold { id: b"id", cost: 1, ttl: None };
            let policy = policies[policy].prepared.policy();
            policy.check_operation(hold).map_or(-1.0, from_micros)
        })
    }
}

/// The policy of a text, with its `on_error` unless that is empty.
fn prepared(text: &str, on_error: &str) -> Result<PreparedPolicy, String> {
    let prepared = text.parse::<PreparedPolicy>().map_err(|error| error.to_string())?;
    if on_error.is_empty() {
        return Ok(prepared);
    }
    let on_error = on_error.parse::<OnError>().map_err(|error| error.to_string())?;
    Ok(prepared.on_error(on_error))
}

/// Text of the host, which is always UTF-8.
pub(crate) fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
