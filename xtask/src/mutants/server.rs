//! Bugs of the server: requests that wait, and what its protocols reply.

use super::mutant::{Mutant, mutant};

const QUEUES: &str = "crates/core/src/wait/queues.rs";
const WAITER: &str = "crates/core/src/wait/waiter.rs";
const KEY_WAITER: &str = "crates/core/src/wait/key_waiter.rs";
const CONNECTION: &str = "crates/server/src/protocols/resp/connection.rs";
const DECIDE: &str = "crates/server/src/decide/mod.rs";
const REPEAT: &str = "crates/server/src/protocols/resp/repeat.rs";
const BUFFERS: &str = "crates/server/src/budgets/buffers.rs";
const HTTP: &str = "crates/server/src/protocols/http/decide.rs";
const WEB: &str = "crates/server/src/net/web/mod.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a repeated hold waits behind others",
        WAITER,
        "(Mode::Queued, Some(_)) if has_queue || peeks_first(policy) => {",
        "(Mode::Queued, Some(_)) if false && (has_queue || peeks_first(policy)) => {",
    ),
    mutant(
        "a settle wakes no request",
        QUEUES,
        "Operation::Settle { .. } | Operation::Renew { .. } => self.changed(key),",
        "Operation::Settle { .. } | Operation::Renew { .. } => None,",
    ),
    mutant(
        "a hold that begins a window wakes no request",
        QUEUES,
        "let may_begin = is_recorded &&",
        "let may_begin = false && is_recorded &&",
    ),
    mutant(
        "a refund in a batch wakes no request",
        DECIDE,
        "see them.\n        if self.queues.waiting() > 0 {",
        "see them.\n        if false {",
    ),
    mutant(
        "a reset wakes no request",
        DECIDE,
        "        self.queues.changed(key);\n        existed\n",
        "        existed\n",
    ),
    mutant(
        "a refund of one request wakes no other",
        DECIDE,
        "if self.queues.waiting() > 0\n",
        "if self.queues.waiting() > usize::MAX - 1\n",
    ),
    mutant(
        "the last request of a queue passes first",
        QUEUES,
        "        queue.drop_projection(&mut self.projected_bytes);\n        queue.queued.front().copied()\n",
        "        queue.drop_projection(&mut self.projected_bytes);\n        queue.queued.back().copied()\n",
    ),
    mutant(
        "a request waits for twice its timeout",
        WAITER,
        "self.deadline = now + self.timeout;",
        "self.deadline = now + self.timeout * 2;",
    ),
    mutant(
        "a request gives up a little early",
        WAITER,
        "self.deadline = now + self.timeout;",
        "self.deadline = now + self.timeout * 9 / 10;",
    ),
    mutant(
        "a request that waits behind another ignores it",
        KEY_WAITER,
        "(State::New, KeyEvent::Start) if is_head => self.attempt(),",
        "(State::New, KeyEvent::Start) => self.attempt(),",
    ),
    mutant(
        "a request that waits outlives its client over HTTP",
        WEB,
        "if connection.is_waiting() && stream.has_left(context) {",
        "if false {",
    ),
    mutant(
        "a repeated command may have other arguments",
        REPEAT,
        "if !rest.get(digits + length..)?.starts_with(&self.suffix) {",
        "if rest.get(digits + length..)?.len() < self.suffix.len() {",
    ),
    mutant(
        "a denial over HTTP has the status of a query",
        HTTP,
        "data.is_query = kind == KeyOperationKind::Peek;",
        "data.is_query = kind != KeyOperationKind::Take;",
    ),
    mutant(
        "bytes that are read ahead lose their order",
        "crates/server/src/net/web/monitored_io.rs",
        "return true;\n            }\n            connection.unread = [&connection.unread, new]",
        "return true;\n            }\n            connection.unread = [new, &connection.unread]",
    ),
    mutant(
        "a recorded denial of a request that waits wakes no other",
        QUEUES,
        "Some(operation @ Operation::Take(_)) if waiter.request().policy.records_denials() => {",
        "Some(operation @ Operation::Take(_)) if false && waiter.request().policy.records_denials() => {",
    ),
    mutant(
        "a request for several keys that can never pass is not recorded",
        WAITER,
        "_ if !may_pass && is_applied => self.done(denial),",
        "_ if !may_pass && (is_applied || now < self.deadline) => self.done(denial),",
    ),
    mutant(
        "a change of a key does not wake a request for several",
        WAITER,
        "now < self.deadline => {\n                self.poll_queue(KeyEvent::Woken)\n",
        "now < self.deadline => {\n                self.state = State::Sleeping;\n                Move::Step(Step::SleepUntil(self.deadline))\n",
    ),
    mutant(
        "a request for several keys is denied without a last attempt",
        WAITER,
        "let may_pass = denial.retry() != Some(Retry::Never) && now < self.deadline;",
        "let may_pass = matches!(denial.retry(), Some(Retry::After(wait)) if now + wait <= self.deadline);",
    ),
    mutant(
        "metrics count several keys as one decision",
        "crates/server/src/protocols/resp/store_operation.rs",
        "        stats.decided(answer.source, decision);\n        stats.sampler",
        "        if std::ptr::eq(decision, &answer.each()[0]) {\n            stats.decided(answer.source, decision);\n        }\n        stats.sampler",
    ),
    mutant(
        "HTTP names the first key for the one that binds",
        "crates/server/src/protocols/http/reply.rs",
        "\",\\\"binding_key\\\":{}\", repeated.binding_key(answer))",
        "\",\\\"binding_key\\\":{}\", repeated.binding_key(answer) * 0)",
    ),
    mutant(
        "a hold that waits is opened without its lifetime",
        WAITER,
        "hold = Some(WaitingHold { id: id.into(), ttl, may_be_open: false });",
        "hold = Some(WaitingHold { id: id.into(), ttl: ttl.and(None), may_be_open: false });",
    ),
    mutant(
        "one client more than the limit is accepted",
        "crates/server/src/net/clients.rs",
        "let reserved = others >= self.max;",
        "let reserved = others > self.max;",
    ),
    mutant(
        "a client that has left still counts as connected",
        "crates/server/src/net/clients.rs",
        "connected.clients.remove(&client.id).is_some()",
        "connected.clients.contains_key(&client.id)",
    ),
    mutant(
        "buffered bytes have no bound for all clients together",
        BUFFERS,
        "used.checked_add(bytes).filter(|sum| *sum <= max)",
        "used.checked_add(bytes).filter(|sum| *sum <= max.max(MAX_PER_CONNECTION))",
    ),
    mutant(
        "bytes that are buffered no longer stay reserved",
        BUFFERS,
        "self.budget.used.fetch_sub(fewer, Ordering::Relaxed);",
        "self.budget.used.fetch_sub(fewer.min(1), Ordering::Relaxed);",
    ),
    mutant(
        "a turn of a connection ends only when its client has sent nothing more",
        CONNECTION,
        "            return self.turn >= CHUNK;",
        "            return self.turn > usize::MAX / 2;",
    ),
    mutant(
        "the time for which a client is not read from starts again with each command that waits",
        CONNECTION,
        "self.stalled_since.get_or_insert_with(Instant::now);",
        "self.stalled_since.insert(Instant::now());",
    ),
    mutant(
        "Retry-After is rounded down",
        "crates/headers/src/lib.rs",
        "Some(seconds(wait).max(1))",
        "Some(wait.as_secs().max(1))",
    ),
];
