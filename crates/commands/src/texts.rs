//! What is known of the policies that clients say, by the bytes of the arguments that say them: so that
//! a policy is parsed once and not with every request.
//!
//! A table of a fixed size, direct-mapped by a keyed hash and compared in full: a client that invents
//! a text a request only ever replaces others' places.

use std::hash::{BuildHasher, Hasher};

use ahash::RandomState;

use crate::PolicyText;

/// Texts that are known at a time.
const PLACES: usize = 1024;
/// A longer text is not kept. The longest policy that makes sense is shorter.
const LONGEST: usize = 512;

/// What is known of each text.
///
/// ```
/// use sluicegate_commands::{PolicyText, Texts};
///
/// let mut texts = Texts::new();
/// let text = PolicyText::Text(b"gcra:30/1m");
/// let Err(unknown) = texts.find(text) else { panic!("nothing is known yet") };
/// assert_eq!(texts.keep(unknown, text, 7), None);
/// assert_eq!(texts.find(text), Ok(7));
/// ```
#[derive(Debug)]
pub struct Texts<T> {
    hasher: RandomState,
    places: Box<[Option<Place<T>>]>,
    /// The place that was asked for last: most requests ask for the same one again.
    last: usize,
}

/// What a text is known by: its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextKey<'a> {
    throttle: bool,
    parts: [&'a [u8]; 3],
}

impl<'a> TextKey<'a> {
    /// Something that is no text of a client's but kept beside them: more than one part says what. (A
    /// text has one, and three only in `CL.THROTTLE`.)
    #[must_use]
    pub const fn parts(parts: [&'a [u8]; 3]) -> Self {
        Self { throttle: false, parts }
    }
}

impl<'a> From<PolicyText<'a>> for TextKey<'a> {
    #[inline]
    fn from(text: PolicyText<'a>) -> Self {
        match text {
            PolicyText::Text(text) => Self { throttle: false, parts: [text, b"", b""] },
            PolicyText::Throttle { max_burst, count, period } => {
                Self { throttle: true, parts: [max_burst, count, period] }
            }
        }
    }
}

/// The place of a text of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown(usize);

#[derive(Debug)]
struct Place<T> {
    throttle: bool,
    /// The arguments one behind the other, and how long each is.
    bytes: Box<[u8]>,
    lengths: [usize; 3],
    value: T,
}

impl<T: Clone> Texts<T> {
    /// A table of which every place is free.
    #[must_use]
    pub fn new() -> Self {
        let places = (0..PLACES).map(|_| None).collect();
        Self { hasher: RandomState::new(), places, last: 0 }
    }

    /// What is known of `text`.
    ///
    /// # Errors
    /// Nothing is: where to [`keep`](Self::keep) it.
    #[inline]
    pub fn find<'a>(&mut self, text: impl Into<TextKey<'a>>) -> Result<T, Unknown> {
        let TextKey { throttle, parts } = text.into();
        if let Some(value) = self.at(self.last, throttle, &parts) {
            return Ok(value);
        }
        let mut hasher = self.hasher.build_hasher();
        for part in parts {
            hasher.write(part);
        }
        let index = usize::try_from(hasher.finish() % PLACES as u64).unwrap_or_default();
        let value = self.at(index, throttle, &parts).ok_or(Unknown(index))?;
        self.last = index;
        Ok(value)
    }

    #[inline]
    fn at(&self, index: usize, throttle: bool, parts: &[&[u8]; 3]) -> Option<T> {
        let place = self.places[index].as_ref()?;
        (place.throttle == throttle && place.says(parts)).then(|| place.value.clone())
    }

    /// Keeps what is known of `text`. Gives back what is not known by its text, now or any more: what
    /// was in the same place, or `value` itself if the text is too long to be kept.
    #[cold]
    pub fn keep<'a>(
        &mut self,
        unknown: Unknown,
        text: impl Into<TextKey<'a>>,
        value: T,
    ) -> Option<T> {
        let TextKey { throttle, parts } = text.into();
        let lengths = parts.map(<[u8]>::len);
        if lengths.iter().sum::<usize>() > LONGEST {
            return Some(value);
        }
        let place = Place { throttle, bytes: parts.concat().into(), lengths, value };
        self.last = unknown.0;
        self.places[unknown.0].replace(place).map(|old| old.value)
    }
}

impl<T: Clone> Default for Texts<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Place<T> {
    #[inline]
    fn says(&self, parts: &[&[u8]; 3]) -> bool {
        let mut rest = &*self.bytes;
        self.lengths == parts.map(<[u8]>::len)
            && parts.iter().filter(|part| !part.is_empty()).all(|part| {
                let (front, behind) = rest.split_at(part.len());
                rest = behind;
                front == *part
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps `value` if nothing is known of `text`: whether it was known, and what was replaced.
    fn look(texts: &mut Texts<usize>, text: PolicyText<'_>, value: usize) -> (bool, Option<usize>) {
        match texts.find(text) {
            Ok(known) => (true, Some(known)),
            Err(unknown) => (false, texts.keep(unknown, text, value)),
        }
    }

    #[test]
    fn a_text_is_known_by_its_parts() {
        let texts = &mut Texts::new();
        let ways = [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Text(b"gcra:30/60s"),
            PolicyText::Text(b"1111"),
            PolicyText::Throttle { max_burst: b"1", count: b"11", period: b"1" },
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ];
        for (number, text) in ways.into_iter().enumerate() {
            let replaced = look(texts, text, number);
            assert!(!replaced.0, "{text:?}");
            // Two may fall to the same place, by chance: the first is then asked for anew.
            assert_eq!(look(texts, text, 9), (true, Some(number)), "{text:?}");
        }
    }

    #[test]
    fn invented_texts_cost_no_memory() {
        let texts = &mut Texts::new();
        let mut replaced = 0;
        for invented in 1..3000 {
            let text = format!("gcra:{invented}/1m");
            let (known, old) = look(texts, PolicyText::Text(text.as_bytes()), invented);
            assert!(!known);
            replaced += usize::from(old.is_some());
        }
        let held = texts.places.iter().flatten().count();
        assert_eq!((held + replaced, texts.places.len()), (2999, PLACES));
        // A text that is too long is not kept at all.
        let long = [b'x'; LONGEST + 1];
        assert_eq!(look(texts, PolicyText::Text(&long), 7), (false, Some(7)));
        assert_eq!(texts.places.iter().flatten().count(), held);
    }
}
