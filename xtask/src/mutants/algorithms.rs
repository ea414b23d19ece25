//! Bugs in one algorithm.

use super::mutant::{Mutant, mutant};

const GCRA: &str = "crates/core/src/algorithm/gcra.rs";
const LOG: &str = "crates/core/src/algorithm/sliding_log.rs";
const COUNTER: &str = "crates/core/src/algorithm/sliding_counter.rs";
const WINDOW: &str = "crates/core/src/algorithm/fixed_window.rs";
const BUCKET: &str = "crates/core/src/algorithm/interval_bucket.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "gcra admits one unit more",
        GCRA,
        "let allowed = needed <= self.narrow_depth;",
        "let allowed = needed <= self.narrow_depth + self.interval;",
    ),
    mutant(
        "a key ends by a clock that stepped back",
        "crates/core/src/algorithm/api.rs",
        "state.map_or(0, Self::latest).max(now.as_micros());",
        "state.map_or(0, |_| 0).max(now.as_micros());",
    ),
    mutant(
        "the delay of a queue is that after the request",
        GCRA,
        "if self.is_queue() { self.micros(self.debt(state, now)) } else { 0 }",
        "if self.is_queue() { self.micros(self.debt(state, now) + 1) } else { 0 }",
    ),
    mutant(
        "a refund gives a burst back",
        GCRA,
        "self.debt(state.as_ref(), now).saturating_sub(self.span(cost))",
        "self.debt(state.as_ref(), now).saturating_sub(self.span(cost.max(self.burst)))",
    ),
    mutant(
        "a window opens again with each denial",
        WINDOW,
        "(now.as_micros() < self.end(start)).then_some(State { start, used })",
        "(now.as_micros() <= self.end(start)).then_some(State { start, used })",
    ),
    mutant(
        "an aligned window begins with its first request",
        WINDOW,
        "WindowKind::Span { period, align: Align::Clock } => now - now % period,",
        "WindowKind::Span { period: _, align: Align::Clock } => now,",
    ),
    mutant(
        "a log keeps an event that has expired",
        LOG,
        "state.first_after(at.as_micros().checked_sub(self.reach))",
        "state.first_after(at.as_micros().checked_sub(self.reach + 1))",
    ),
    mutant(
        "a counter weighs the last window in full",
        COUNTER,
        "product(state.prev, weight) + product",
        "product(state.prev, self.period.max(weight)) + product",
    ),
    mutant(
        "a counter forgets the last window",
        COUNTER,
        "State { start, prev: state.cur, cur: 0 }",
        "State { start, prev: 0, cur: 0 }",
    ),
    mutant(
        "an interval bucket refills at the time of the request",
        BUCKET,
        "State { used, last: last + steps * self.interval }",
        "State { used, last: if steps > 0 { now } else { last } }",
    ),
    mutant(
        "retry times are rounded down",
        GCRA,
        "if self.scale == 1 { ticks } else { ticks.div_ceil(self.scale as u64) }",
        "if self.scale == 1 { ticks } else { ticks / self.scale as u64 }",
    ),
    mutant(
        "retry times are a microsecond late",
        GCRA,
        "Retry::after_micros(self.micros_of(needed - self.narrow_depth))",
        "Retry::after_micros(self.micros_of(needed - self.narrow_depth) + 1)",
    ),
    mutant(
        "a request that uses up the burst is denied",
        GCRA,
        "let allowed = needed <= self.narrow_depth;",
        "let allowed = needed < self.narrow_depth;",
    ),
    mutant(
        "a cost beyond the burst may be tried again",
        GCRA,
        "            return Retry::Never;\n        }\n        let over",
        "            return Retry::after_micros(self.period);\n        }\n        let over",
    ),
    mutant(
        "the remaining units are rounded up",
        GCRA,
        "if free < self.interval { 0 } else { units(free / self.interval) }",
        "units(free.div_ceil(self.interval))",
    ),
    mutant(
        "a change of the rate keeps the debt in time",
        GCRA,
        "if (self.scale, self.interval) == (old.scale, old.interval) {",
        "if self.scale == old.scale {",
    ),
    mutant(
        "a window is full only once it was exceeded",
        WINDOW,
        "let allowed = after <= u64::from(self.limit);",
        "let allowed = used < u64::from(self.limit);",
    ),
    mutant(
        "denied requests are counted by a window",
        WINDOW,
        "let counts = allowed || self.count_all;",
        "let counts = true || self.count_all;",
    ),
    mutant(
        "a straggler just before the edge of a window opens a second one",
        "crates/core/src/algorithm/api.rs",
        "if time <= now || time - now < self.period_from(time) { time } else { now }",
        "if time <= now { time } else { now }",
    ),
    mutant(
        "a window resets although nothing is used",
        WINDOW,
        "if used > 0 { left } else { 0 }",
        "left.max(used)",
    ),
    mutant(
        "a cost beyond the limit of a log is allowed",
        LOG,
        "let Some(left) = self.limit.checked_sub(cost) else { return Retry::Never };",
        "let left = self.limit.saturating_sub(cost);",
    ),
    mutant(
        "a log says that a request passes when one event is gone",
        LOG,
        "let last = state.events_below(target);",
        "let last = live.max(state.events_below(0));",
    ),
    mutant(
        "a log says that a request passes when one hold less has expired",
        LOG,
        "            held -= u64::from(it.units);\n            held <= left",
        "            let before = held;\n            held -= u64::from(it.units);\n            before <= left + 1",
    ),
    mutant(
        "a refund moves the refill of a bucket",
        BUCKET,
        "*state = self.state(used.saturating_sub(u128::from(cost)), last);",
        "*state = self.state(used.saturating_sub(u128::from(cost)), last.max(now.as_micros()));",
    ),
    mutant(
        "a bucket refills in parts of its interval",
        BUCKET,
        "let steps = now.saturating_sub(last) / self.interval;",
        "let steps = now.saturating_sub(last) / (self.interval / 2).max(1);",
    ),
    mutant(
        "the retry time of a counter is rounded down",
        COUNTER,
        "left - narrow(product(free - state.cur, self.period) / u128::from(state.prev))",
        "left - narrow(product(free - state.cur, self.period).div_ceil(u128::from(state.prev)))",
    ),
    mutant(
        "a counter keeps a window that is long over",
        COUNTER,
        "Some(state) if state.start + self.period == start =>",
        "Some(state) if state.start + self.period <= start =>",
    ),
    mutant(
        "the interval of a rate is rounded to microseconds",
        GCRA,
        "        let scale = units(u64::from(limit) / divisor);\n        let interval = period / divisor;\n",
        "        let scale = units(divisor / divisor);\n        let interval = (period / u64::from(limit)).max(1);\n",
    ),
    mutant(
        "a retry time ignores the burst",
        GCRA,
        "Retry::after_micros(self.micros_of(needed - self.narrow_depth))",
        "Retry::after_micros(self.micros_of(needed - self.interval))",
    ),
    mutant(
        "a change of the rate drops parts of a unit",
        GCRA,
        "let debt = (used * u128::from(self.interval)).div_ceil(1_000_000);",
        "let debt = used / 1_000_000 * u128::from(self.interval);",
    ),
    mutant(
        "the rest of a window wraps at 32 bits",
        WINDOW,
        "Outcome::Deny { retry: Retry::after_micros(left) }",
        "Outcome::Deny { retry: Retry::after_micros(u64::from(left as u32)) }",
    ),
    mutant(
        "the remaining units of a window wrap below zero",
        WINDOW,
        "let remaining = units(u64::from(self.limit).saturating_sub(used));",
        "let remaining = units(u64::from(self.limit).wrapping_sub(used));",
    ),
    mutant(
        "a month has 31 days",
        "crates/core/src/calendar.rs",
        "Self::Month => Span::new().months(1),",
        "Self::Month => Span::new().days(31),",
    ),
];
