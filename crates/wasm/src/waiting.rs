//! Requests that wait. The host has the timers and asks the store.

use std::cell::RefCell;

use slab::Slab;
use sluicegate_core::wait::{Event, Step, Waiter};

use crate::{
    exchange::{
        self, Exchange, OPERATION_ERROR, Status, exported, from_micros, from_usize, time, to_micros,
    },
    operations::{encoded, several},
    policies::{self, Policies},
    table::INVALID_KEYS,
};

thread_local! {
    /// The requests that wait, by handle.
    static WAITING: RefCell<Slab<Waiter>> = const { RefCell::new(Slab::new()) };
}

/// Calls `with` with the buffers, the policies and the requests that wait.
fn with<R>(with: impl FnOnce(&mut Exchange, &Policies, &mut Slab<Waiter>) -> R) -> R {
    WAITING.with_borrow_mut(|waiting| {
        policies::with(|exchange, policies| with(exchange, policies, waiting))
    })
}

/// Steps of the host: apply the operation to every key;
const APPLY: Status = 0;
/// sleep until the time in the numbers, which are followed by the deadline;
const SLEEP: Status = 1;
/// done: the answer is in the numbers.
const DONE: Status = 2;

exported! {
    /// A request for the keys in the input, as of `apply_all`, which waits for up to `timeout` microseconds: a take of one key, or
    /// holds. `may_be_open`: whether a hold of this id may be open. Returns its handle.
    pub fn wait(code: u32, count: usize, id_length: usize, span: f64, timeout: f64, may_be_open: u32) -> Status {
        with(|exchange, policies, waiting| {
            let Some(keys) = several(&exchange.input, policies, (code, count, id_length, span)) else {
                return exchange.fail(OPERATION_ERROR, INVALID_KEYS);
            };
            for key in &keys {
                if let Err(error) = key.policy.prepared.policy().check_operation(key.operation) {
                    return exchange.fail(OPERATION_ERROR, error);
                }
            }
            let operations = keys.iter().map(|it| (it.policy.prepared.policy().clone(), it.operation));
            let timeout = std::time::Duration::from_micros(to_micros(timeout));
            let waiter = Waiter::alone(operations, timeout, may_be_open != 0);
            let handle = waiting.insert(waiter);
            i32::try_from(handle).expect("there is no memory for 2^31 requests")
        })
    }

    /// The next step after an event: 0 starts the request, 1 ends its sleep, 2 is the answer of the store, which the host has put
    /// into the numbers.
    pub fn poll(waiter: usize, event: u32, now: f64) -> Status {
        with(|exchange, _, waiting| {
            let Some(waiter) = waiting.get_mut(waiter) else { return OPERATION_ERROR };
            let event = match event {
                0 => Event::Start,
                1 => Event::Woken,
                _ => match exchange.answer(waiter.key_count()) {
                    Some(answer) => Event::Answered(answer),
                    None => return exchange.fail(OPERATION_ERROR, "invalid answer: expected decisions"),
                },
            };
            match waiter.poll(time(now), event) {
                Step::SleepUntil(until) => {
                    exchange.numbers[0] = from_micros(until.as_micros());
                    exchange.numbers[1] = from_micros(waiter.deadline().as_micros());
                    SLEEP
                }
                Step::Done(answer) => {
                    exchange.answered(&answer);
                    DONE
                }
                _ => APPLY,
            }
        })
    }

    /// The code of the operation to apply to a key, with its cost and its span in the numbers.
    pub fn waiting_operation(waiter: usize, index: usize) -> u32 {
        with(|exchange, _, waiting| {
            let (code, numbers) = encoded(waiting[waiter].operation(index));
            exchange.numbers[..2].copy_from_slice(&numbers);
            code
        })
    }

    /// Puts the answer on `count` keys into the numbers, from the decisions on each there.
    pub fn combine(count: usize) -> Status {
        exchange::with(|it| match it.answer(count) {
            Some(answer) => it.answered(&answer),
            None => it.fail(OPERATION_ERROR, "invalid answer: expected decisions"),
        })
    }

    /// Frees a request. Returns the units to refund, which were reserved for it and are not used.
    pub fn cancel(waiter: usize) -> f64 {
        with(|_, _, waiting| {
            let waiter = waiting.remove(waiter);
            waiter.cancel().map_or(0.0, |refund| from_usize(refund.cost() as usize))
        })
    }
}
