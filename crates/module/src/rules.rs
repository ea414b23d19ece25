//! Rules by the texts that say them, so that a policy is parsed once and not with every request.

use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_commands::{CommandError, PolicyText, PolicyTextCache};
use sluicegate_core::Policy;

use crate::{gcra::Everyday, log::Plain, stats};

type Rules = PolicyTextCache<Arc<Rule>>;

/// A policy, and what is known of it beforehand.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) policy: Policy,
    pub(crate) fast: Fast,
}

/// How takes under it are decided in place.
#[derive(Debug)]
pub(crate) enum Fast {
    /// They are not.
    No,
    /// One limit of the gcra family.
    Gcra(Everyday),
    /// One log of events that count once.
    Log(Plain),
}

impl Rule {
    fn new(policy: Policy) -> Self {
        let fast = None
            .or_else(|| Everyday::of(&policy).map(Fast::Gcra))
            .or_else(|| Plain::of(&policy).map(Fast::Log));
        Self { policy, fast: fast.unwrap_or(Fast::No) }
    }
}

/// The rule that `text` says.
#[inline]
pub(crate) fn find(text: PolicyText<'_>) -> Result<Arc<Rule>, CommandError> {
    // The server runs one command at a time: nobody ever waits here.
    let mut rules = RULES.lock().unwrap_or_else(PoisonError::into_inner);
    look_up(rules.get_or_insert_default(), text)
}

/// Forgets all rules.
pub(crate) fn clear() {
    *RULES.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

static RULES: Mutex<Option<Rules>> = Mutex::new(None);

#[inline]
fn look_up(rules: &mut Rules, text: PolicyText<'_>) -> Result<Arc<Rule>, CommandError> {
    rules.get(text).or_else(|miss| {
        stats::PARSED.add();
        let rule = Arc::new(Rule::new(text.parse()?));
        rules.insert(miss, text, Arc::clone(&rule));
        Ok(rule)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_parsed_once() {
        let rules = &mut Rules::new();
        let texts = [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ];
        for text in texts {
            let first = look_up(rules, text).unwrap();
            assert_eq!(first.policy, text.parse().unwrap());
            assert!(Arc::ptr_eq(&first, &look_up(rules, text).unwrap()), "{text:?}");
        }
        assert!(look_up(rules, PolicyText::Text(b"x")).is_err());
    }
}
