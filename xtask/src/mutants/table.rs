//! Bugs of the table in memory and its state file.

use super::mutant::{Mutant, mutant};

const SNAPSHOT: &str = "crates/memory/src/snapshot.rs";
const SHARD: &str = "crates/memory/src/shard.rs";
const RESTORE: &str = "crates/memory/src/restore.rs";
const STORE: &str = "crates/memory/src/store.rs";
const OVERFLOW_TABLE: &str = "crates/memory/src/overflow.rs";
const CODEC: &str = "crates/memory/src/slot_codec.rs";
const SLOT: &str = "crates/memory/src/slot.rs";
const CORE_MULTI: &str = "crates/core/src/multi_key.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a snapshot drops keys that recover soon",
        SNAPSHOT,
        ".filter(|entry| !entry.is_over(now)) else {",
        ".filter(|entry| entry.lifetime(now).as_secs() > 1) else {",
    ),
    mutant(
        "the walk of a snapshot skips segments of a shard that was split",
        SHARD,
        "depth => start.checked_add(1 << (64 - depth)),",
        "depth => start.checked_add(1 << (65 - depth).min(63)),",
    ),
    mutant(
        "the walk of a snapshot ends with the first segment",
        SHARD,
        "depth => start.checked_add(1 << (64 - depth)),",
        "1 => start.checked_add(1 << 63),\n            _ => None,",
    ),
    mutant(
        "a changed state file is read",
        SNAPSHOT,
        "if self.input.array()? != expected {",
        "if self.input.array()? != expected && expected[0] % 2 == 0 {",
    ),
    mutant(
        "a full table does not keep its layout at a restart",
        RESTORE,
        "if let Layout::AsSaved = layout {",
        "if false && matches!(layout, Layout::AsSaved) {",
    ),
    mutant(
        "a full table allows new keys",
        STORE,
        "if self.when_full == WhenFull::Deny && !has_happened {",
        "if self.when_full == WhenFull::Deny && has_happened {",
    ),
    mutant(
        "a table has no bound",
        STORE,
        "self.budget.fits(max_growth(data, slot, policy))",
        "max_growth(data, slot, policy) > 0",
    ),
    mutant(
        "a full table denies keys that it has",
        STORE,
        "growth == 0 || self.budget.fits(growth)",
        "self.budget.fits(growth + 4096)",
    ),
    mutant(
        "a live key in a slot gives way to another",
        STORE,
        "slot.tat().has_come(as_micros(now.since(self.base())))",
        "slot.tat().has_come(as_micros(now.since(self.base())) + 3_600_000_000)",
    ),
    mutant(
        "a live key beside the table gives way to another",
        STORE,
        "is_none_or(|entry| entry.is_over(now))",
        "is_none_or(|entry| entry.lifetime(now).as_secs() < 3600)",
    ),
    mutant(
        "a full table flushes keys for new ones",
        STORE,
        "            self.sweep(locked, now);\n            return false;",
        "            let gone = locked.drain_where(|_, slot| slot.policy_number() != OVERFLOW).len();\n            self.budget.count_keys(gone, 0);\n            return gone > 0;",
    ),
    mutant(
        "an entry is not found after its segment was split",
        OVERFLOW_TABLE,
        "*slot = slot.moved(other.put(entry, budget));",
        "let _ = other.put(entry, budget);",
    ),
    mutant(
        "keys of a segment that was split are not moved",
        SHARD,
        "let half = whole.start.midpoint(whole.end)..whole.end;",
        "let half = whole.start.midpoint(whole.end)..whole.start.midpoint(whole.end) + 1;",
    ),
    mutant(
        "units of a window count in the next one",
        CODEC,
        "Ordering::Less => Some(PackedWindow { end, used: 0 }),",
        "Ordering::Less => Some(PackedWindow { end, used }),",
    ),
    mutant(
        "a window in a slot lasts a microsecond longer",
        CODEC,
        "Some((end, used)) if end > since => {",
        "Some((end, used)) if end >= since => {",
    ),
    mutant(
        "a slot loses parts of microseconds",
        SLOT,
        "Some(whole) => whole * u64::from(scale) + part,",
        "Some(whole) => whole * u64::from(scale) + part / 2 * 2,",
    ),
    mutant(
        "a debt beyond the burst is cut in a slot",
        CODEC,
        "entry.debt(now).filter(|&debt| gcra.is_within_burst(debt))?;",
        "entry.debt(now)?;",
    ),
    mutant(
        "a key that occurs twice in a batch is charged twice",
        STORE,
        "if hashed.iter().all(|it| it.hash != hash) {",
        "if hashed.len() < 99 {",
    ),
    mutant(
        "a batch that one key denies charges the others",
        CORE_MULTI,
        "            operation if delays.is_none() => part.key.record_denial(operation.cost()),\n",
        "",
    ),
];
