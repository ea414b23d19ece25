//! A limiter whose store is elsewhere: its denial cache, and its decisions while the store is unavailable.

use std::{cell::RefCell, time::Duration};

use ahash::RandomState;
use slab::Slab;
use sluicegate_core::{Answer, Source, StoreError};
use sluicegate_fallback::{DenialCache, FallbackOperation, LocalFallback, QueryToken};

use crate::{
    exchange::{
        ALLOWED, DENIED, Exchange, NO_FALLBACK, OPERATION_ERROR, Status, exported, time, to_micros,
    },
    operations::{operation, several},
    policies::{self, Policies},
    table::INVALID_KEYS,
};

/// What a limiter has beside its store.
#[derive(Debug)]
struct Remote {
    denials: DenialCache,
    local: LocalFallback,
    /// Commands in flight.
    queries: Slab<QueryToken>,
}

thread_local! {
    /// It, once it is connected.
    static REMOTE: RefCell<Option<Remote>> = const { RefCell::new(None) };
}

/// Calls `with` with the buffers, the policies and what is beside the store.
fn with<R>(with: impl FnOnce(&mut Exchange, &Policies, &mut Remote) -> R) -> R {
    REMOTE.with_borrow_mut(|remote| {
        let remote = remote.as_mut().expect(CONNECTED);
        policies::with(|exchange, policies| with(exchange, policies, remote))
    })
}

const CONNECTED: &str = "the host connects first";

exported! {
    /// Prepares for a store elsewhere: the number of keys whose replies are remembered, how long a denial is repeated at most in
    /// microseconds, and the bytes of local states.
    pub fn connect(max_known_keys: usize, max_denial_cache: f64, max_local_bytes: usize) {
        REMOTE.with_borrow_mut(|remote| {
            let hashers = [RandomState::new(), RandomState::new()];
            let max_age = Duration::from_micros(to_micros(max_denial_cache));
            *remote = Some(Remote {
                denials: DenialCache::new(max_known_keys, max_age, hashers),
                local: LocalFallback::new(max_local_bytes),
                queries: Slab::new(),
            });
        });
    }

    /// The denial of a take that still applies: 1 if there is one, in the numbers.
    pub fn denied(key_length: usize, policy: usize, cost: u32, now: f64) -> Status {
        with(|exchange, policies, remote| {
            let denials = &remote.denials;
            let denied = denials.denied(&exchange.input[..key_length], &policies[policy].fallback, cost, time(now));
            let Some(answer) = denied else { return DENIED };
            exchange.answered(&answer);
            ALLOWED
        })
    }

    /// Registers a command that is about to be sent. Returns its handle, which [`record`] frees.
    pub fn begin_query(key_length: usize, now: f64) -> usize {
        with(|exchange, _, remote| {
            let token = remote.denials.begin_query(&exchange.input[..key_length], time(now));
            remote.queries.insert(token)
        })
    }

    /// Records the decision in the numbers, of a take of `cost` units or of another operation (0). `replied`: whether there is one.
    pub fn record(query: usize, key_length: usize, policy: usize, cost: u32, replied: u32, now: f64) {
        with(|exchange, policies, remote| {
            let Remote { denials, queries, .. } = remote;
            let token = queries.remove(query);
            if let (true, Some(decision)) = (replied != 0, exchange.decision()) {
                let key = &exchange.input[..key_length];
                denials.record(key, &policies[policy].fallback, cost, token, time(now), &decision);
            }
        });
    }

    /// Forgets the denials of a key, because an operation may let it pass.
    pub fn forget(key_length: usize) {
        with(|exchange, _, remote| remote.denials.forget(&exchange.input[..key_length]));
    }

    /// Forgets a key that was reset.
    pub fn reset_remote(key_length: usize, now: f64) {
        with(|exchange, _, Remote { denials, local, .. }| {
            let key = &exchange.input[..key_length];
            denials.reset(key);
            local.reset(key, time(now));
        });
    }

    /// Settles or renews a hold that was decided here.
    pub fn follow_hold(code: u32, key_length: usize, id_length: usize, policy: usize, cost: u32, span: f64, now: f64) {
        with(|exchange, policies, remote| {
            let (key, rest) = exchange.input.split_at(key_length);
            let operation = operation(code, &rest[..id_length], cost, span);
            let planned = FallbackOperation { key, policy: &policies[policy].fallback, operation };
            remote.local.follow_hold(planned, time(now));
        });
    }

    /// The fallback decision on one key.
    pub fn fall_back(code: u32, key_length: usize, id_length: usize, policy: usize, cost: u32, span: f64, now: f64) -> Status {
        with(|exchange, policies, remote| {
            let Remote { denials, local, .. } = remote;
            let (key, rest) = exchange.input.split_at(key_length);
            let operation = operation(code, &rest[..id_length], cost, span);
            let planned = FallbackOperation { key, policy: &policies[policy].fallback, operation };
            match local.decide(planned, denials, time(now), unavailable()) {
                Ok(answer) => exchange.answered(&answer),
                Err(StoreError::Unavailable(_)) => NO_FALLBACK,
                Err(error) => exchange.fail(OPERATION_ERROR, error),
            }
        })
    }

    /// The fallback decision on several keys.
    pub fn fall_back_all(code: u32, count: usize, id_length: usize, span: f64, now: f64) -> Status {
        with(|exchange, policies, remote| {
            let Remote { denials, local, .. } = remote;
            let Some(keys) = several(&exchange.input, policies, (code, count, id_length, span)) else {
                return exchange.fail(OPERATION_ERROR, INVALID_KEYS);
            };
            let planned: Vec<_> = keys
                .iter()
                .map(|it| FallbackOperation { key: it.key, policy: &it.policy.fallback, operation: it.operation })
                .collect();
            let each = local.decide_all(&planned, denials, time(now), &unavailable());
            match each.map(|each| Answer::of_all(each, Source::Fallback)) {
                Ok(Some(answer)) => exchange.answered(&answer),
                Ok(None) => exchange.fail(OPERATION_ERROR, INVALID_KEYS),
                Err(StoreError::Unavailable(_)) => NO_FALLBACK,
                Err(error) => exchange.fail(OPERATION_ERROR, error),
            }
        })
    }
}

/// The host has the error of the store.
const fn unavailable() -> StoreError {
    StoreError::Unavailable(String::new())
}
