//! The bugs that are planted.

use anyhow::{Result, ensure};

/// A bug: in a file, some text in place of other text.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    /// Occurs once in the file.
    from: &'static str,
    to: &'static str,
}

impl Mutant {
    /// The text of its file with the bug.
    pub(super) fn applied_to(&self, text: &str) -> Result<String> {
        let count = text.matches(self.from).count();
        ensure!(count == 1, "mutant `{}`: {} has its text {count} times", self.name, self.file);
        Ok(text.replacen(self.from, self.to, 1))
    }
}

const fn mutant(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { name, file, from, to }
}

const CACHE: &str = "crates/redis/src/local/denial_cache.rs";
const LEASE: &str = "crates/redis/src/local/lease.rs";
const REFILL: &str = "crates/redis/src/lease_refill.rs";
const FALLBACK: &str = "crates/redis/src/local/fallback.rs";
const BREAKER: &str = "crates/redis/src/net/breaker.rs";
const KEEPER: &str = "crates/redis/src/net/keeper.rs";
const NODE: &str = "crates/redis/src/net/node_connection.rs";
const DECIDE: &str = "crates/redis/src/decide.rs";
const CALL: &str = "crates/redis/src/call.rs";
const PIPELINE: &str = "crates/redis/src/pipeline.rs";
const HOLDS: &str = "crates/redis/src/holds.rs";
const GCRA: &str = "crates/core/src/algorithm/gcra.rs";
const LOG: &str = "crates/core/src/algorithm/sliding_log.rs";
const COUNTER: &str = "crates/core/src/algorithm/sliding_counter.rs";
const WINDOW: &str = "crates/core/src/algorithm/fixed_window.rs";
const BUCKET: &str = "crates/core/src/algorithm/interval_bucket.rs";
const CORE_HOLDS: &str = "crates/core/src/holds.rs";
const MIGRATE: &str = "crates/core/src/migrate.rs";

/// All of them.
pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "the denial cache denies every cost",
        CACHE,
        "find(|it| it.cost == cost && now < it.until)?",
        "find(|it| now < it.until)?",
    ),
    mutant(
        "a cached denial never ends",
        CACHE,
        "find(|it| it.cost == cost && now < it.until)?",
        "find(|it| it.cost == cost)?",
    ),
    mutant(
        "a cached denial lasts as long as the cache allows",
        CACHE,
        "wait.map_or(self.max_age, |wait| wait.min(self.max_age))",
        "wait.map_or(self.max_age, |_| self.max_age)",
    ),
    mutant(
        "a cached denial of another policy applies",
        CACHE,
        "shard.find(key).filter(|entry| entry.policy == policy.number)?",
        "shard.find(key)?",
    ),
    mutant(
        "a reply from before a refund is cached after it",
        CACHE,
        "if shard.epoch != token.epoch {",
        "if false && shard.epoch != token.epoch {",
    ),
    mutant(
        "the denial cache keeps denials over a refund",
        DECIDE,
        "if let Operation::Refund(_) | Operation::Reset = operation {",
        "if let Operation::Reset = operation {",
    ),
    mutant(
        "the denial cache keeps denials over a settle",
        HOLDS,
        "self.denials.forget(&key);\n            match reply {\n                Ok(decision) => {",
        "match reply {\n                Ok(decision) => {",
    ),
    mutant(
        "the denial cache keeps denials over a settle whose reply is lost",
        HOLDS,
        "self.denials.forget(&key);\n            match reply {\n                Ok(decision) => {",
        "match reply {\n                Ok(decision) => {\n                    self.denials.forget(&key);",
    ),
    mutant(
        "a lease never ends",
        LEASE,
        "if lease.policy.number != policy.number || now >= lease.until {",
        "if lease.policy.number != policy.number {",
    ),
    mutant(
        "units of a lease are used twice",
        LEASE,
        "                    lease.left = left;\n",
        "                    lease.left = left.max(1);\n",
    ),
    mutant(
        "a chunk is granted without its first units",
        LEASE,
        "lease.left = lease.left.saturating_add(chunk - cost);",
        "lease.left = lease.left.saturating_add(chunk);",
    ),
    mutant(
        "a lease of another policy is used",
        LEASE,
        "if lease.policy.number != policy.number {\n                *lease",
        "if false {\n                *lease",
    ),
    mutant(
        "a lease returns what has drained",
        LEASE,
        "u32::try_from(units).unwrap_or(u32::MAX).min(self.left)",
        "u32::try_from(units.max(u128::from(self.left))).unwrap_or(u32::MAX).min(self.left)",
    ),
    mutant(
        "units of a lease stay usable after they are returned",
        LEASE,
        "                lease.left = 0;\n                lease.next = 1;\n",
        "                lease.next = 1;\n",
    ),
    mutant(
        "a refund of a lease is sent twice",
        REFILL,
        "returned = owed;",
        "returned = owed;\n                let _ = inner.decide(refund, Deadline::after(span)).await;",
    ),
    mutant(
        "the fallback allows instead of denying",
        FALLBACK,
        "Outcome::Deny { retry: Retry::After(PROBE_EVERY) }",
        "Outcome::Allow { delay: Duration::ZERO }",
    ),
    mutant(
        "the local fallback forgets what it admitted",
        FALLBACK,
        "let decision = store.apply_numbered(key, &local, now, operation)?;",
        "let decision = store.apply_numbered(key, &local, now, operation)?;\n                store.reset(key, now);",
    ),
    mutant(
        "a breaker never closes",
        BREAKER,
        "self.open.swap(false, Ordering::Relaxed)",
        "self.open.load(Ordering::Relaxed)",
    ),
    mutant(
        "a probe that succeeds does not close the breaker",
        KEEPER,
        "                node.decided();\n                node.works();\n",
        "                node.decided();\n",
    ),
    mutant(
        "a connection that vanished is never replaced",
        KEEPER,
        "                self.lost(Some(number), &why);\n                Probe::Fails(why)",
        "                let _ = number;\n                Probe::Fails(why)",
    ),
    mutant(
        "commands have no deadline",
        NODE,
        "timeout_at(self.at, future).await.map_err(|_| StoreError::Timeout(self.span))",
        "timeout_at(self.at + self.span * 20, future).await.map_err(|_| StoreError::Timeout(self.span))",
    ),
    mutant(
        "an unknown script is an error",
        CALL,
        "                    whole = true;\n",
        "                    return Err(StoreError::Unavailable(String::new()));\n",
    ),
    mutant(
        "a command without a reply is sent again",
        CALL,
        "                node.command(&built, deadline).await\n",
        "                match node.command(&built, Deadline::after(self.context.options.deadline / 3)).await {\n                    Ok(reply) => Ok(reply),\n                    Err(_) => node.command(&built, deadline).await,\n                }\n",
    ),
    mutant(
        "answers of a pipeline are swapped",
        PIPELINE,
        "open.iter().zip(&replies).map(parse).collect()",
        "open.iter().zip(replies.iter().rev()).map(parse).collect()",
    ),
    mutant(
        "an unknown script in a pipeline is not sent",
        PIPELINE,
        "Ok(ReplyKind::NoScript | ReplyKind::NoModule { at_all: true })",
        "Ok(ReplyKind::NoModule { at_all: true })",
    ),
    mutant(
        "answers from the cache are not counted",
        DECIDE,
        "self.context.counts.cache.one();",
        "",
    ),
    mutant(
        "gcra admits one unit more",
        GCRA,
        "let allowed = needed <= self.narrow_depth;",
        "let allowed = needed <= self.narrow_depth + self.interval;",
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
        "(used > 0 && now < self.end(start)).then_some(State { start, used })",
        "(used > 0 && now <= self.end(start)).then_some(State { start, used })",
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
        "state.first_after(now.as_micros().checked_sub(self.reach))",
        "state.first_after(now.as_micros().checked_sub(self.reach + 1))",
    ),
    mutant(
        "a counter weighs the last window in full",
        COUNTER,
        "product(state.prev, self.left(now)) + product",
        "product(state.prev, self.period) + product",
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
        "a settle charges what was held",
        CORE_HOLDS,
        "            let units = used.unwrap_or(units);\n            if metered",
        "            let _ = used;\n            if metered",
    ),
    mutant(
        "a renewed hold ends when it did before",
        CORE_HOLDS,
        "entry.change_ledger(|ledger| ledger.set_expires(at, expires))",
        "entry.change_ledger(|_| ())",
    ),
    mutant(
        "a change of policy forgets",
        MIGRATE,
        "        states.push(limit.migrate(&old.policy.limits()[index], state, now));\n",
        "        let _ = (limit, state);\n        states.push(State::None);\n",
    ),
];
