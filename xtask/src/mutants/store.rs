//! Bugs of the store on Redis: its caches, leases, connections and fallbacks.

use super::mutant::{Mutant, mutant};

const CACHE: &str = "crates/redis/src/local/denial_cache.rs";
const LEASE: &str = "crates/redis/src/local/lease.rs";
const STORE: &str = "crates/redis/src/store.rs";
const FALLBACK: &str = "crates/redis/src/local/fallback.rs";
const BREAKER: &str = "crates/redis/src/net/breaker.rs";
const NODE: &str = "crates/redis/src/net/node_connection.rs";
const INNER: &str = "crates/redis/src/inner.rs";

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
        "applies.map_or(self.max_age, |span| span.min(self.max_age))",
        "applies.map_or(self.max_age, |_| self.max_age)",
    ),
    mutant(
        "a cached denial for held units outlasts a window",
        CACHE,
        "wait.map(|wait| period.map_or(wait, |period| wait.min(period)))",
        "wait.filter(|_| period.is_some() || period.is_none())",
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
        "if shard.epoch != token.epoch || ",
        "if ",
    ),
    mutant(
        "the denial cache keeps denials over a refund",
        INNER,
        "        self.denials.forget(key);\n",
        "        if !matches!(operation, Operation::Refund(_)) {\n            self.denials.forget(key);\n        }\n",
    ),
    mutant(
        "the denial cache keeps denials over a settle",
        INNER,
        "            Operation::Hold { .. } | Operation::Settle { .. } | Operation::Renew { .. } => {}\n",
        "",
    ),
    mutant(
        "the denial cache keeps denials over a settle whose reply is lost",
        INNER,
        "                let _forget = self.begin(key, operation);\n                self.call(planned, None, deadline).await\n",
        "                let reply = self.call(planned, None, deadline).await;\n                if reply.is_ok() {\n                    self.denials.forget(key);\n                }\n                reply\n",
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
        STORE,
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
        "store.apply_numbered(key, &local, now, operation)?",
        "store.apply_numbered(key, &local, now, operation).inspect(|_| _ = store.reset(key, now))?",
    ),
    mutant(
        "a breaker never closes",
        BREAKER,
        "self.open.swap(false, Ordering::Relaxed)",
        "self.open.load(Ordering::Relaxed)",
    ),
    mutant(
        "a probe that succeeds does not close the breaker",
        NODE,
        "                node.decided();\n                node.works();\n",
        "                node.decided();\n",
    ),
    mutant(
        "a connection that vanished is never replaced",
        NODE,
        "                self.lost(Some(number), &why);\n                ProbeResult::Fails(why)",
        "                let _ = number;\n                ProbeResult::Fails(why)",
    ),
    mutant(
        "commands have no deadline",
        NODE,
        "timeout_at(self.at, future).await.map_err(|_| StoreError::Timeout(self.span))",
        "timeout_at(self.at + self.span * 20, future).await.map_err(|_| StoreError::Timeout(self.span))",
    ),
    mutant(
        "an unknown script is an error",
        INNER,
        "                    whole = true;\n",
        "                    return Err(StoreError::Unavailable(String::new()));\n",
    ),
    mutant(
        "a command without a reply is sent again",
        INNER,
        "                node.command(&built, deadline).await\n",
        "                match node.command(&built, Deadline::after(self.context.options.deadline / 3)).await {\n                    Ok(reply) => Ok(reply),\n                    Err(_) => node.command(&built, deadline).await,\n                }\n",
    ),
    mutant(
        "answers of a pipeline are swapped",
        INNER,
        "open.iter().zip(&replies).map(parse).collect()",
        "open.iter().zip(replies.iter().rev()).map(parse).collect()",
    ),
    mutant(
        "an operation of a pipeline that was not applied is not sent again",
        INNER,
        ") => self.request(planned, deadline).await,",
        ") => self.fall_back(planned, StoreError::Unavailable(String::new())),",
    ),
    mutant(
        "answers from the cache are not counted",
        INNER,
        "self.context.counts.cache.one();\n        Some(answer)",
        "Some(answer)",
    ),
    mutant(
        "processes decide by their own clocks",
        INNER,
        "policy.plan.arguments(operation, around, at, &requested.calendars)?",
        "policy.plan.arguments(operation, around, at.or(Some(context.now())), &requested.calendars)?",
    ),
    mutant(
        "answers from leases are not counted",
        STORE,
        "                    inner.context.counts.lease.one();\n",
        "",
    ),
    mutant(
        "denials of the fallback are not counted",
        FALLBACK,
        "            counts.fallback_deny.one();\n",
        "",
    ),
    mutant(
        "a lease keeps more units than it may",
        LEASE,
        "clamp(1, policy.settings.lease)",
        "clamp(1, policy.settings.lease.saturating_mul(20))",
    ),
    mutant(
        "a reset leaves denials in the cache",
        INNER,
        "        self.denials.forget(key);\n",
        "        if operation != Operation::Reset {\n            self.denials.forget(key);\n        }\n",
    ),
    mutant(
        "a chunk that was denied is taken from the lease",
        STORE,
        "Ok(decision) if decision.allowed() => {",
        "Ok(decision) if decision.allowed() || chunk > 2 => {",
    ),
    mutant(
        "chunks grow however few units remain, and their units are lost",
        LEASE,
        "        lease.left = lease.left.saturating_add(chunk - cost);\n        lease.next =\n            chunk.saturating_mul(2).min(decision.remaining / 2).clamp(1, policy.settings.lease);\n",
        "        lease.next = chunk.saturating_mul(2).clamp(1, policy.settings.lease);\n",
    ),
];
