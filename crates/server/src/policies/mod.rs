//! Policies by their text or name, and the rules in force.

pub(crate) mod policy_cache;
pub(crate) mod rule_store;
