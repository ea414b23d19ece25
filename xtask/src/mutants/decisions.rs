//! Bugs in decisions as a whole: several limits, holds, changes of policy.

use super::mutant::{Mutant, mutant};

const MIGRATE: &str = "crates/core/src/migrate.rs";
const APPLY: &str = "crates/core/src/apply.rs";
const AHEAD: &str = "crates/core/src/look_ahead.rs";
const ENTRY: &str = "crates/core/src/entry.rs";
const LEDGER: &str = "crates/core/src/ledger.rs";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "a settle charges what was held",
        APPLY,
        "            let units = used.unwrap_or(units);\n            if metered",
        "            let _ = used;\n            if metered",
    ),
    mutant(
        "a renewed hold ends when it did before",
        APPLY,
        "entry.change_ledger(|ledger| ledger.set_expires(at, expires))",
        "entry.change_ledger(|_| ())",
    ),
    mutant(
        "a change of policy forgets",
        MIGRATE,
        "        states.push(limit.migrate(&old.policy.limits()[index], state, now));\n",
        "        let _ = (limit, state);\n        states.push(State::None);\n",
    ),
    mutant(
        "a denial charges the limits that would allow",
        APPLY,
        "            self.record_denial(cost);\n            return self.denial(cost);\n",
        "            let denial = self.denial(cost);\n            self.charge(cost);\n            return denial;\n",
    ),
    mutant(
        "a denial under another policy forgets the time of the change",
        APPLY,
        "} else if !self.migrated.is_empty() || self.expired.is_some() {",
        "} else if self.expired.is_some() {",
    ),
    mutant(
        "several limits allow as soon as one does",
        APPLY,
        "self.limits().all(|(limit, state)| holds.passes(",
        "self.limits().any(|(limit, state)| holds.passes(",
    ),
    mutant(
        "the remaining units are those of the widest limit",
        APPLY,
        "holds.remaining(limit, state, now)).min();",
        "holds.remaining(limit, state, now)).max();",
    ),
    mutant(
        "a reservation waits longer than it may",
        APPLY,
        "Retry::After(delay) if as_micros(delay) <= max_wait => {",
        "Retry::After(delay) if as_micros(delay) <= max_wait.saturating_mul(2) => {",
    ),
    mutant(
        "held units are not in use",
        AHEAD,
        "let units = u64::from(limit.needed(cost)) + self.held(limit);",
        "let units = u64::from(limit.needed(cost));",
    ),
    mutant(
        "held units count as remaining",
        AHEAD,
        "limit.remaining(state, now).saturating_sub(held)",
        "limit.remaining(state, now).saturating_sub(held / 2)",
    ),
    mutant(
        "an expired hold is not charged",
        ENTRY,
        "            limit.charge_all(state, &expired);\n",
        "            let _ = (limit, state, &expired);\n",
    ),
    mutant(
        "an expired hold is charged when it is noticed",
        ENTRY,
        "            limit.charge_all(state, &expired);\n",
        "            expired.iter().for_each(|it| limit.charge(state, now, it.units));\n",
    ),
    mutant(
        "holds never expire",
        LEDGER,
        "self.count > 0 && self.first_expiry <= now.as_micros()",
        "self.count > MAX_HOLDS && self.first_expiry <= now.as_micros()",
    ),
    mutant(
        "a renewed hold expires in its old place",
        LEDGER,
        "        self.drain.take();\n        self.count_times();\n",
        "        self.drain.take();\n",
    ),
    mutant(
        "a hold that is open is opened again",
        APPLY,
        "Operation::Hold { id, cost, .. } if cost == 0 || key.find(id).is_some() => key.answer(),",
        "Operation::Hold { cost: 0, .. } => key.answer(),",
    ),
    mutant(
        "a settle charges at most what was held",
        APPLY,
        "            let units = used.unwrap_or(units);\n            if units > 0 {",
        "            let units = used.unwrap_or(units).min(units);\n            if units > 0 {",
    ),
    mutant(
        "limits of a new policy continue the first ones of the old",
        MIGRATE,
        "    pass(&|old, new| old.is_same_algorithm(new) && old.has_period_of(new, now));\n",
        "    pass(&|_, _| true);\n",
    ),
    mutant(
        "open holds are lost with a change of policy",
        MIGRATE,
        "    if let Some(holds @ State::Holds(_)) = old.states.pop() {\n        states.push(holds);\n    }\n",
        "    let _ = old.states.pop();\n",
    ),
    mutant(
        "keys are kept for whole seconds",
        ENTRY,
        "Duration::from_micros(micros.max(holds.all_expired(now)))",
        "Duration::from_secs(micros.max(holds.all_expired(now)) / 1_000_000)",
    ),
];
