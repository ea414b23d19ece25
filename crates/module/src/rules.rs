//! Rules by the bytes of the arguments that say them, so that a policy is parsed once and not with
//! every request.
//!
//! A table of a fixed size, direct-mapped by a keyed hash and compared in full: a client that
//! invents a text a request only ever replaces others' places.

use std::{
    hash::{BuildHasher, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use ahash::RandomState;
use sluicegate_commands::{CommandError, PolicyText};
use sluicegate_core::Policy;

use crate::{gcra::Everyday, log::Plain, stats};

/// Texts that are known at a time.
const PLACES: usize = 1024;
/// A longer text is parsed each time. The longest policy that makes sense is shorter.
const LONGEST: usize = 512;

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
    rules.get_or_insert_with(Rules::new).find(text)
}

/// Forgets all rules.
pub(crate) fn clear() {
    *RULES.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

static RULES: Mutex<Option<Rules>> = Mutex::new(None);

#[derive(Debug)]
struct Rules {
    hasher: RandomState,
    places: Box<[Option<Place>]>,
    /// The place that was asked for last: most requests ask for the same one again.
    last: usize,
}

#[derive(Debug)]
struct Place {
    throttle: bool,
    /// The arguments one behind the other, and how long each is.
    bytes: Box<[u8]>,
    lengths: [usize; 3],
    rule: Arc<Rule>,
}

impl Rules {
    fn new() -> Self {
        let places = (0..PLACES).map(|_| None).collect();
        Self { hasher: RandomState::new(), places, last: 0 }
    }

    #[inline]
    fn find(&mut self, text: PolicyText<'_>) -> Result<Arc<Rule>, CommandError> {
        let (throttle, parts) = match text {
            PolicyText::Text(text) => (false, [text, b"", b""]),
            PolicyText::Throttle { max_burst, count, period } => (true, [max_burst, count, period]),
        };
        if let Some(rule) = self.at(self.last, throttle, &parts) {
            return Ok(rule);
        }
        let mut hasher = self.hasher.build_hasher();
        for part in parts {
            hasher.write(part);
        }
        let index = usize::try_from(hasher.finish() % PLACES as u64).unwrap_or_default();
        self.last = index;
        if let Some(rule) = self.at(index, throttle, &parts) {
            return Ok(rule);
        }
        stats::PARSED.add();
        let rule = Arc::new(Rule::new(text.parse()?));
        let lengths = parts.map(<[u8]>::len);
        if lengths.iter().sum::<usize>() <= LONGEST {
            let bytes = parts.concat().into();
            self.places[index] = Some(Place { throttle, bytes, lengths, rule: Arc::clone(&rule) });
        }
        Ok(rule)
    }

    #[inline]
    fn at(&self, index: usize, throttle: bool, parts: &[&[u8]; 3]) -> Option<Arc<Rule>> {
        let place = self.places[index].as_ref()?;
        (place.throttle == throttle && place.says(parts)).then(|| Arc::clone(&place.rule))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_parsed_once() {
        let rules = &mut Rules::new();
        let texts = [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Text(b"gcra:30/60s"),
            PolicyText::Throttle { max_burst: b"1", count: b"11", period: b"1" },
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ];
        let first = texts.map(|text| rules.find(text).unwrap());
        for (text, first) in texts.into_iter().zip(&first) {
            assert_eq!(first.policy, text.parse().unwrap());
            assert!(Arc::ptr_eq(first, &rules.find(text).unwrap()), "{text:?}");
        }
        assert!(rules.find(PolicyText::Text(b"x")).is_err());
    }

    #[test]
    fn invented_texts_cost_no_memory() {
        let rules = &mut Rules::new();
        for invented in 1..3000 {
            let text = format!("gcra:{invented}/1m");
            rules.find(PolicyText::Text(text.as_bytes())).unwrap();
        }
        assert_eq!(rules.places.len(), PLACES);
        let limits = ["gcra:4294967295/1s:burst=4294967295"; 8].join(",");
        let long = format!("{limits},{limits}");
        assert!(long.len() > LONGEST && rules.find(PolicyText::Text(long.as_bytes())).is_err());
    }
}
