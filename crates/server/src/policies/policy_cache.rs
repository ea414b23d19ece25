//! Rules by the texts that say them, so that a policy is parsed once and not with every request.
//! Each worker has a table of its own.
//!
//! Requests that were gathered hold a [`Known`] rather than a [`PreparedPolicy`], whose count of holders is
//! shared by all workers. What is replaced meanwhile is kept until [`Rules::settle`].

use std::{cell::OnceCell, rc::Rc, sync::Arc};

use arc_swap::Guard;
use sluicegate_commands::{CommandError, PolicyText, PolicyTextCache, PolicyTextKey};
use sluicegate_core::{Policy, PreparedPolicy};
use sluicegate_headers::Fields;

use crate::policies::ruleset::{Live, Version};

/// What a policy is called that a request brings with it.
const NAME: &str = "default";

/// A rule that was looked up, until [`Rules::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known(
    /// Twice its place; and one more where a decision may take long, since it grows with what is stored.
    usize,
);

impl Known {
    /// Whether a decision under the rule may take long.
    #[inline]
    pub(crate) const fn is_heavy(self) -> bool {
        self.0 & 1 == 1
    }

    #[inline]
    const fn place(self) -> usize {
        self.0 >> 1
    }
}

/// The rules of one worker.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    cache: PolicyTextCache<Known>,
    rules: Vec<Option<Held>>,
    /// Where there is room in `rules`.
    free: Vec<usize>,
    /// What nobody will look up any more, but gathered requests may hold.
    replaced: Vec<usize>,
    /// The version of the server's rules that names stand for, the same for all that is gathered.
    version: Option<Guard<Arc<Version>>>,
    /// How often something that was looked up has ceased to hold.
    generation: u64,
}

/// A rule, and what responses of HTTP say of it, once one has.
#[derive(Debug)]
struct Held {
    rule: PreparedPolicy,
    /// What it is called, where the rules of the server give it a name.
    name: Option<Box<str>>,
    fields: OnceCell<Rc<Fields>>,
}

impl Rules {
    /// The rule that `text` says, or that the rules in force (`live`) call so (`@name`). `prepare` makes
    /// it of a policy that is not known.
    #[inline]
    pub(crate) fn known(
        &mut self,
        text: PolicyText<'_>,
        live: &Live,
        prepare: impl Fn(&Policy) -> PreparedPolicy,
    ) -> Result<Known, CommandError> {
        match text.name() {
            None => self.find(text, |text| Ok(prepare(&text.parse()?))),
            Some(name) => {
                let version = self.version.take().unwrap_or_else(|| live.now());
                let known = self.find_named(name, version.number(), |name| {
                    let policy = version.policy(name);
                    policy
                        .map(&prepare)
                        .ok_or_else(|| CommandError::no_policy(name, version.similar_policy(name)))
                });
                self.version = Some(version);
                known
            }
        }
    }

    /// The rule that `text` says; `make` makes it of one that is not known.
    #[inline]
    pub(crate) fn find(
        &mut self,
        text: PolicyText<'_>,
        make: impl FnOnce(PolicyText<'_>) -> Result<PreparedPolicy, CommandError>,
    ) -> Result<Known, CommandError> {
        self.find_key(text.into(), None, || make(text))
    }

    /// The rule of the policy that a version of the server's rules calls `name`: what it stood for in
    /// another version is not what it stands for now.
    fn find_named(
        &mut self,
        name: &[u8],
        version: u64,
        make: impl FnOnce(&[u8]) -> Result<PreparedPolicy, CommandError>,
    ) -> Result<Known, CommandError> {
        let version = version.to_le_bytes();
        let key = PolicyTextKey::parts([b"@", name, &version]);
        self.find_key(key, Some(name), || make(name))
    }

    #[inline]
    fn find_key(
        &mut self,
        key: PolicyTextKey<'_>,
        name: Option<&[u8]>,
        make: impl FnOnce() -> Result<PreparedPolicy, CommandError>,
    ) -> Result<Known, CommandError> {
        self.cache.get(key).or_else(|miss| {
            let known = self.add(make()?, name);
            let gone = self.cache.insert(miss, key, known);
            self.replaced.extend(gone.map(Known::place));
            Ok(known)
        })
    }

    #[cold]
    fn add(&mut self, rule: PreparedPolicy, name: Option<&[u8]>) -> Known {
        let at = self.free.pop().unwrap_or(self.rules.len());
        if at == self.rules.len() {
            self.rules.push(None);
        }
        let name = name.map(|name| String::from_utf8_lossy(name).into());
        let heavy = usize::from(rule.policy().grows());
        self.rules[at] = Some(Held { rule, name, fields: OnceCell::new() });
        Known(at << 1 | heavy)
    }

    /// The rule that was looked up.
    #[inline]
    pub(crate) fn get(&self, known: Known) -> &PreparedPolicy {
        &self.held(known).rule
    }

    /// What responses of HTTP say of the rule that was looked up.
    #[inline]
    pub(crate) fn fields(&self, known: Known) -> &Rc<Fields> {
        let held = self.held(known);
        let name = held.name.as_deref().unwrap_or(NAME);
        held.fields.get_or_init(|| Rc::new(Fields::new(name, held.rule.policy())))
    }

    #[inline]
    fn held(&self, known: Known) -> &Held {
        self.rules[known.place()].as_ref().expect("what was looked up is kept until all is settled")
    }

    /// What was looked up holds on for as long as this stays as it is.
    #[inline]
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Nothing that was looked up is held any more, but for what keeps to the
    /// [`generation`](Self::generation).
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.version.is_none() && self.replaced.is_empty() {
            return;
        }
        // A name may stand for another rule from now on.
        self.version = None;
        self.generation += 1;
        for at in self.replaced.drain(..) {
            self.rules[at] = None;
            self.free.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks `text` up. Whether it was known, and what it says.
    fn look(rules: &mut Rules, text: PolicyText<'_>) -> (bool, Known) {
        let mut known = true;
        let found = rules.find(text, |text| {
            known = false;
            Ok(PreparedPolicy::from(text.parse()?))
        });
        let found = found.unwrap();
        assert_eq!(rules.get(found).policy(), &text.parse().unwrap());
        (known, found)
    }

    #[test]
    fn find_repeated_text_is_parsed_once() {
        let rules = &mut Rules::default();
        for text in [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ] {
            let first = look(rules, text);
            rules.settle();
            assert_eq!((first.0, look(rules, text)), (false, (true, first.1)), "{text:?}");
        }
        let wrong = rules.find(PolicyText::Text(b"x"), |text| Err(text.parse().unwrap_err()));
        assert!(wrong.is_err());
    }

    #[test]
    fn find_invented_texts_are_evicted() {
        let rules = &mut Rules::default();
        let first = look(rules, PolicyText::Text(b"gcra:1/1h")).1;
        for round in 0..20 {
            for invented in 0..500 {
                let text = format!("gcra:{}/1m", 1 + round * 500 + invented);
                look(rules, PolicyText::Text(text.as_bytes()));
            }
            // What was looked up first is still held, whatever came since.
            if round == 0 {
                assert_eq!(rules.get(first).policy(), &"gcra:1/1h".parse::<Policy>().unwrap());
            }
            rules.settle();
        }
        assert!(rules.rules.len() <= 1024 + 501, "{}", rules.rules.len());
    }
}
