//! Bugs of the library: waits, permits and shapers.

use super::mutant::{Mutant, mutant};

const WAITER: &str = "crates/core/src/wait/waiter.rs";
const KEY_WAITER: &str = "crates/core/src/wait/key_waiter.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a wait sleeps too short a time for its departure",
        KEY_WAITER,
        "let at = now + answer.delay();",
        "let at = now + answer.delay() / 2;",
    ),
    mutant(
        "a wait gives up when it is denied first",
        KEY_WAITER,
        ") if now + wait <= deadline => self.sleep_until(now + wait),",
        ") if now + wait * 4 <= deadline => self.sleep_until(now + wait),",
    ),
    mutant(
        "a wait whose queue has grown is answered after its timeout",
        KEY_WAITER,
        "&& !delay.is_zero() && sent + delay > deadline",
        "&& !delay.is_zero() && sent > deadline",
    ),
    mutant(
        "a dropped permit settles nothing",
        "crates/holds/src/guard.rs",
        "if !mem::take(&mut self.is_armed) ||",
        "if mem::take(&mut self.is_armed) ||",
    ),
    mutant(
        "a request for a permit that is dropped leaves the hold open",
        "crates/holds/src/guard.rs",
        "self.is_armed = matches!(self.hold.id, HoldId::Random(_));",
        "self.is_armed = matches!(self.hold.id, HoldId::Given(_));",
    ),
    mutant(
        "a permit is renewed too late",
        "crates/holds/src/stored_hold.rs",
        "let pause = lifetime / 3;",
        "let pause = lifetime + Duration::from_millis(1);",
    ),
    mutant(
        "a permit that is kept alive is renewed once",
        "crates/holds/src/stored_hold.rs",
        "if self.renew().await.is_ok_and(|answer| !answer.allowed()) {",
        "if self.renew().await.is_ok() {",
    ),
    mutant(
        "a settle in the background is sent once",
        "crates/holds/src/stored_hold.rs",
        "is_err() && repeats &&",
        "is_err() && !repeats &&",
    ),
    mutant(
        "a wait for a hold gives up after its first denial",
        WAITER,
        "Some(Retry::After(after)) if !left.is_zero() => {",
        "Some(Retry::After(after)) if self.timeout.is_zero() && !left.is_zero() => {",
    ),
    mutant(
        "a wait for a hold ignores its timeout",
        WAITER,
        "clamp(MIN_PAUSE, MAX_PAUSE).min(after).min(left);",
        "clamp(MIN_PAUSE, MAX_PAUSE).min(after);",
    ),
    mutant(
        "a shaper releases items as soon as their time is known",
        "crates/sluicegate/src/shaper.rs",
        "sleep_until(at).await;",
        "sleep_until(at.min(Instant::now())).await;",
    ),
    mutant(
        "a shaper uses the time of an item for the next one",
        "crates/sluicegate/src/shaper.rs",
        "first.send_time = None;",
        "first.send_time = Some(at);",
    ),
    mutant(
        "a shaper releases the last item first",
        "crates/sluicegate/src/shaper.rs",
        "Ok(self.queue.lock().items.pop_front())",
        "Ok(self.queue.lock().items.pop_back())",
    ),
    mutant(
        "a shaper sleeps through items that come while it is empty",
        "crates/sluicegate/src/shaper.rs",
        "queue.items.push_back(item);\n        drop(queue);\n        self.arrived.notify_one();",
        "queue.items.push_back(item);\n        drop(queue);",
    ),
];
