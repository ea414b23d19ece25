//! The descriptors and rules of a plan, and their text.

use std::fmt;

use anyhow::{Result, bail, ensure};

use crate::words::{Words, parse};

/// The domain of all calls.
pub(super) const DOMAIN: &str = "shop";
/// The names of the entries that descriptors may have.
pub(super) const ENTRIES: [&str; 2] = ["user", "plan"];

/// A rule that counts descriptors by one of their entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RulePlan {
    /// The entry: its place among [`ENTRIES`].
    pub(crate) entry: usize,
    pub(crate) cost: u32,
    pub(crate) is_shadow: bool,
    pub(crate) policy: String,
}

/// The values of the entries of a descriptor.
pub(crate) type DescriptorPlan = [Option<u8>; ENTRIES.len()];

impl RulePlan {
    /// Reads the rest of the line `rule`.
    pub(crate) fn read(words: &mut Words<'_>) -> Result<Self> {
        let (entry, cost) = (words.number()?, words.number()?);
        ensure!(entry < ENTRIES.len(), "a rule has one of {} entries", ENTRIES.len());
        let is_shadow = match words.word()? {
            "shadow" => true,
            "enforced" => false,
            other => bail!("invalid `{other}`: expected `shadow` or `enforced`"),
        };
        Ok(Self { entry, cost, is_shadow, policy: words.word()?.to_owned() })
    }
}

impl fmt::Display for RulePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, cost, is_shadow, policy } = self;
        let word = if *is_shadow { "shadow" } else { "enforced" };
        write!(formatter, "rule {entry} {cost} {word} {policy}")
    }
}

/// Writes descriptors: the values of their entries, or `-`.
pub(crate) fn write(
    formatter: &mut fmt::Formatter<'_>,
    descriptors: &[DescriptorPlan],
) -> fmt::Result {
    descriptors.iter().flatten().try_for_each(|value| match value {
        Some(value) => write!(formatter, " {value}"),
        None => write!(formatter, " -"),
    })
}

/// Reads descriptors up to the end of the line.
pub(crate) fn read(words: &mut Words<'_>) -> Result<Vec<DescriptorPlan>> {
    let mut descriptors = Vec::new();
    while let Some(first) = words.next() {
        let value = |word| if word == "-" { Ok(None) } else { parse(word).map(Some) };
        let descriptor = [value(first)?, value(words.word()?)?];
        ensure!(descriptor != [None, None], "a descriptor has an entry");
        descriptors.push(descriptor);
    }
    ensure!(!descriptors.is_empty(), "a call has a descriptor");
    Ok(descriptors)
}

/// The name of a rule.
pub(super) fn rule_name(index: usize) -> String {
    format!("rule{index}")
}

/// The text of the rules.
pub(crate) fn rules_text(rules: &[RulePlan]) -> String {
    let rule = |(index, it): (usize, &RulePlan)| {
        let RulePlan { entry, cost, is_shadow, policy } = it;
        let (name, entry) = (rule_name(index), ENTRIES[*entry]);
        format!(
            "  - {{name: {name}, match: {{domain: {DOMAIN}}}, key: descriptor.{entry}, policy: '{policy}', cost: {cost}, \
             shadow: {is_shadow}}}\n"
        )
    };
    let rules: String = rules.iter().enumerate().map(rule).collect();
    if rules.is_empty() { rules } else { format!("rules:\n{rules}") }
}
