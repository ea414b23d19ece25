//! Rules by the bytes of the arguments that say them, so that a policy is parsed once and not with
//! every request.
//!
//! Each worker has a table of its own, direct-mapped by a keyed hash and compared in full. A client
//! that invents a text a request only ever replaces others' places: the table never grows.
//!
//! Requests that were gathered hold a [`Known`] rather than a [`Rule`], whose count of holders is
//! shared by all workers. What is replaced meanwhile is kept until [`Rules::settle`].

use std::{
    cell::OnceCell,
    hash::{BuildHasher, Hasher},
};

use ahash::RandomState;
use sluicegate_commands::{CommandError, PolicyText};
use sluicegate_headers::Fields;

use crate::home::HomeRule as Rule;

/// Texts that are known at a time.
const PLACES: usize = 1024;
/// A longer text is parsed each time. The longest policy that makes sense is shorter.
const LONGEST: usize = 512;
/// What a policy is called that a request brings with it.
const NAME: &str = "default";

/// A rule that was looked up, until [`Rules::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known(usize);

/// The rules of one worker.
#[derive(Debug)]
pub(crate) struct Rules {
    hasher: RandomState,
    places: Box<[Option<Place>]>,
    /// The place that was asked for last: most requests ask for the same one again.
    last: usize,
    rules: Vec<Option<Held>>,
    /// Where there is room in `rules`.
    free: Vec<usize>,
    /// What nobody will look up any more, but gathered requests may hold.
    replaced: Vec<usize>,
}

/// A rule, and what responses of HTTP say of it, once one has.
#[derive(Debug)]
struct Held {
    rule: Rule,
    fields: OnceCell<Fields>,
}

#[derive(Debug)]
struct Place {
    throttle: bool,
    /// The arguments one behind the other, and how long each is.
    bytes: Box<[u8]>,
    lengths: [usize; 3],
    rule: Known,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            places: (0..PLACES).map(|_| None).collect(),
            last: 0,
            rules: Vec::new(),
            free: Vec::new(),
            replaced: Vec::new(),
        }
    }
}

impl Rules {
    /// The rule that `text` says; `make` makes it of one that is not known.
    #[inline]
    pub(crate) fn find(
        &mut self,
        text: PolicyText<'_>,
        make: impl FnOnce(PolicyText<'_>) -> Result<Rule, CommandError>,
    ) -> Result<Known, CommandError> {
        let (throttle, parts) = parts(text);
        if let Some(known) = self.at(self.last, throttle, &parts) {
            return Ok(known);
        }
        let mut hasher = self.hasher.build_hasher();
        for part in parts {
            hasher.write(part);
        }
        let index = usize::try_from(hasher.finish() % PLACES as u64).unwrap_or_default();
        if let Some(known) = self.at(index, throttle, &parts) {
            self.last = index;
            return Ok(known);
        }
        let rule = make(text)?;
        Ok(self.learn(index, throttle, &parts, rule))
    }

    #[inline]
    fn at(&self, index: usize, throttle: bool, parts: &[&[u8]; 3]) -> Option<Known> {
        let place = self.places[index].as_ref()?;
        (place.throttle == throttle && place.says(parts)).then_some(place.rule)
    }

    #[cold]
    fn learn(&mut self, index: usize, throttle: bool, parts: &[&[u8]; 3], rule: Rule) -> Known {
        let at = self.free.pop().unwrap_or(self.rules.len());
        if at == self.rules.len() {
            self.rules.push(None);
        }
        self.rules[at] = Some(Held { rule, fields: OnceCell::new() });
        let lengths = parts.map(<[u8]>::len);
        if lengths.iter().sum::<usize>() > LONGEST {
            self.replaced.push(at);
            return Known(at);
        }
        let place = Place { throttle, bytes: parts.concat().into(), lengths, rule: Known(at) };
        if let Some(old) = self.places[index].replace(place) {
            self.replaced.push(old.rule.0);
        }
        self.last = index;
        Known(at)
    }

    /// The rule that was looked up.
    #[inline]
    pub(crate) fn get(&self, known: Known) -> &Rule {
        &self.held(known).rule
    }

    /// What responses of HTTP say of the rule that was looked up.
    #[inline]
    pub(crate) fn fields(&self, known: Known) -> &Fields {
        let held = self.held(known);
        held.fields.get_or_init(|| Fields::new(NAME, held.rule.policy()))
    }

    #[inline]
    fn held(&self, known: Known) -> &Held {
        self.rules[known.0].as_ref().expect("what was looked up is kept until all is settled")
    }

    /// Nothing that was looked up is held any more.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.replaced.is_empty() {
            return;
        }
        for at in self.replaced.drain(..) {
            self.rules[at] = None;
            self.free.push(at);
        }
    }
}

impl Place {
    #[inline]
    fn says(&self, parts: &[&[u8]; 3]) -> bool {
        let mut rest = &*self.bytes;
        self.lengths == parts.map(<[u8]>::len)
            && parts.iter().all(|part| {
                let (front, behind) = rest.split_at(part.len());
                rest = behind;
                front == *part
            })
    }
}

fn parts(text: PolicyText<'_>) -> (bool, [&[u8]; 3]) {
    match text {
        PolicyText::Text(text) => (false, [text, b"", b""]),
        PolicyText::Throttle { max_burst, count, period } => (true, [max_burst, count, period]),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Policy, Timestamp};
    use sluicegate_memory::MemoryStore;

    use super::*;

    /// Looks `text` up. Whether it was known, and what it says.
    fn look(rules: &mut Rules, text: PolicyText<'_>) -> (bool, Known) {
        let store = MemoryStore::new();
        let mut known = true;
        let found = rules.find(text, |text| {
            known = false;
            Ok(Rule::Memory(store.rule(&text.parse()?, Timestamp::EPOCH)))
        });
        let found = found.unwrap();
        assert_eq!(rules.get(found).policy(), &text.parse().unwrap());
        (known, found)
    }

    #[test]
    fn a_text_is_parsed_once() {
        let rules = &mut Rules::default();
        let texts = [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Text(b"gcra:30/60s"),
            PolicyText::Throttle { max_burst: b"1", count: b"11", period: b"1" },
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ];
        for (round, known) in [(0, false), (1, true), (2, true)] {
            for text in texts {
                assert_eq!(look(rules, text).0, known, "{round} {text:?}");
            }
            rules.settle();
        }
        let wrong = rules.find(PolicyText::Text(b"x"), |text| Err(text.parse().unwrap_err()));
        assert!(wrong.is_err());
    }

    #[test]
    fn invented_texts_cost_no_memory() {
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
        assert!(rules.rules.len() <= PLACES + 501, "{}", rules.rules.len());
        let first = look(rules, PolicyText::Text(b"gcra:1/1h")).1;
        // A text that is too long is not kept at all.
        let rule = rules.get(first).clone();
        let held = rules.places.iter().flatten().count();
        rules.learn(0, false, &[&[b'x'; LONGEST + 1], b"", b""], rule);
        assert_eq!(rules.places.iter().flatten().count(), held);
    }
}
