//! The policy of a request, as its arguments give it; and a cache from that text to a value, so that a policy is not parsed with every request.
//!
//! The cache is a direct-mapped table of a fixed size, indexed by a keyed hash and compared in full: a client that sends
//! a new text with every request only replaces the entries of others.

use std::{
    hash::{BuildHasher, Hasher},
    time::Duration,
};

use ahash::RandomState;
use sluicegate_core::{Gcra, GcraName, Limit, Policy};

use crate::{
    CommandError,
    arguments::{number, span, units},
    error::quote,
};

const MAX_PERIOD_SECONDS: u64 = 366 * 86_400;

/// The policy of a request, unparsed, so that a cache can find it by its bytes.
///
/// ```
/// use sluicegate_commands::PolicyText;
///
/// let text = PolicyText::Text(b"gcra:30/60s:burst=16");
/// let numbers = PolicyText::Throttle { max_burst: b"15", count: b"30", period: b"60" };
/// assert_eq!(text.parse()?, numbers.parse()?);
/// # Ok::<(), sluicegate_commands::CommandError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyText<'a> {
    /// A policy string, or `@` and a name.
    Text(&'a [u8]),
    /// The numbers of `CL.THROTTLE`, which make up a single gcra limit.
    Throttle {
        /// One less than the burst.
        max_burst: &'a [u8],
        /// Units per period.
        count: &'a [u8],
        /// In seconds.
        period: &'a [u8],
    },
    /// The numbers of `INCREX`, which make up a fixed window.
    Window {
        /// Units per window.
        limit: &'a [u8],
        /// The length of the window.
        span: &'a [u8],
        /// Its unit.
        unit: SpanUnit,
    },
}

/// The unit of a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanUnit {
    /// `EX`
    Seconds,
    /// `PX`
    Milliseconds,
}

impl<'a> PolicyText<'a> {
    /// The name of a policy: `gold` for `@gold`. Only a server with rules can resolve it.
    #[must_use]
    pub fn name(self) -> Option<&'a [u8]> {
        match self {
            Self::Text(text) => text.strip_prefix(b"@"),
            Self::Throttle { .. } | Self::Window { .. } => None,
        }
    }

    /// Parses the policy.
    ///
    /// # Errors
    /// [`CommandError`] for an invalid policy, and for a name.
    pub fn parse(self) -> Result<Policy, CommandError> {
        match self {
            Self::Text([b'@', name @ ..]) => Err(CommandError::NoRules(quote(name))),
            Self::Text(text) => parse_policy(text),
            Self::Throttle { max_burst, count, period } => parse_throttle(max_burst, count, period),
            Self::Window { limit, span, unit } => parse_window(limit, span, unit),
        }
    }
}

fn parse_policy(text: &[u8]) -> Result<Policy, CommandError> {
    let text = std::str::from_utf8(text)
        .map_err(|error| CommandError::PolicyEncoding(error.valid_up_to()))?;
    Ok(text.parse::<Policy>()?)
}

fn parse_throttle(max_burst: &[u8], count: &[u8], period: &[u8]) -> Result<Policy, CommandError> {
    let max_burst = number("max_burst", max_burst, 0, u64::from(u32::MAX) - 1)?;
    let count = units("count", count, 1)?;
    let period = span("period", period, " of seconds", 1, MAX_PERIOD_SECONDS)?;

    let burst = u32::try_from(max_burst + 1).expect("`number` checks the bounds");
    let drain = |_| CommandError::Drain { max_burst, count: count.into(), period };
    let period = Duration::from_secs(period);
    let limit = Gcra::new(GcraName::Gcra, count, period, Some(burst), false).map_err(drain)?;
    Ok(Policy::from(Limit::Gcra(limit)))
}

fn parse_window(limit: &[u8], length: &[u8], unit: SpanUnit) -> Result<Policy, CommandError> {
    let limit = units("UBOUND", limit, 1)?;
    let period = match unit {
        SpanUnit::Seconds => {
            Duration::from_secs(span("EX", length, " of seconds", 1, MAX_PERIOD_SECONDS)?)
        }
        SpanUnit::Milliseconds => {
            let most = MAX_PERIOD_SECONDS * 1000;
            Duration::from_millis(span("PX", length, " of milliseconds", 1, most)?)
        }
    };
    Ok(Policy::fixed_window(limit).per(period).build()?)
}

/// Entries of a cache.
const CACHE_SLOTS: usize = 1024;
/// Upper bound on the bytes of a cached text. Sensible policies are shorter.
const MAX_TEXT: usize = 512;

/// A bounded cache with one value for each policy text.
///
/// ```
/// use sluicegate_commands::{PolicyText, PolicyTextCache};
///
/// let mut cache = PolicyTextCache::new();
/// let text = PolicyText::Text(b"gcra:30/1m");
/// let Err(miss) = cache.get(text) else { panic!("the cache is empty") };
/// assert_eq!(cache.insert(miss, text, 7), None);
/// assert_eq!(cache.get(text), Ok(7));
/// ```
#[derive(Debug)]
pub struct PolicyTextCache<T> {
    hasher: RandomState,
    slots: Box<[Option<CacheSlot<T>>]>,
}

/// Which arguments a text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Text,
    Throttle,
    Window(SpanUnit),
}

/// Key of a cached value: the arguments that make up a policy text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyTextKey<'a> {
    kind: TextKind,
    parts: [&'a [u8]; 3],
}

impl<'a> PolicyTextKey<'a> {
    /// A key of the caller's own. It differs from that of every policy text if two or three parts are not
    /// empty, because a text has one part, and three only in `CL.THROTTLE`.
    #[must_use]
    pub const fn parts(parts: [&'a [u8]; 3]) -> Self {
        Self { kind: TextKind::Text, parts }
    }
}

impl<'a> From<PolicyText<'a>> for PolicyTextKey<'a> {
    #[inline]
    fn from(text: PolicyText<'a>) -> Self {
        match text {
            PolicyText::Text(text) => Self { kind: TextKind::Text, parts: [text, b"", b""] },
            PolicyText::Throttle { max_burst, count, period } => {
                Self { kind: TextKind::Throttle, parts: [max_burst, count, period] }
            }
            PolicyText::Window { limit, span, unit } => {
                Self { kind: TextKind::Window(unit), parts: [limit, span, b""] }
            }
        }
    }
}

/// The slot for a text that is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMiss(usize);

#[derive(Debug)]
struct CacheSlot<T> {
    kind: TextKind,
    /// The arguments, concatenated, and their lengths.
    bytes: Box<[u8]>,
    lengths: [usize; 3],
    value: T,
}

impl<T: Clone> PolicyTextCache<T> {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        let slots = (0..CACHE_SLOTS).map(|_| None).collect();
        Self { hasher: RandomState::new(), slots }
    }

    /// The value of `text`.
    ///
    /// # Errors
    /// The text is not cached: pass the [`CacheMiss`] to [`insert`](Self::insert).
    #[inline]
    pub fn get<'a>(&self, text: impl Into<PolicyTextKey<'a>>) -> Result<T, CacheMiss> {
        let PolicyTextKey { kind, parts } = text.into();
        let mut hasher = self.hasher.build_hasher();
        for part in parts {
            hasher.write(part);
        }
        let index = usize::try_from(hasher.finish() % CACHE_SLOTS as u64).unwrap_or_default();
        let slot = self.slots[index].as_ref();
        let slot = slot.filter(|slot| slot.kind == kind && slot.has_parts(&parts));
        slot.map(|slot| slot.value.clone()).ok_or(CacheMiss(index))
    }

    /// Inserts the value of `text`. Returns the value that is not in the cache afterwards: the evicted one,
    /// or `value` itself if the text is too long.
    #[cold]
    pub fn insert<'a>(
        &mut self,
        miss: CacheMiss,
        text: impl Into<PolicyTextKey<'a>>,
        value: T,
    ) -> Option<T> {
        let PolicyTextKey { kind, parts } = text.into();
        let lengths = parts.map(<[u8]>::len);
        if lengths.iter().sum::<usize>() > MAX_TEXT {
            return Some(value);
        }
        let slot = CacheSlot { kind, bytes: parts.concat().into(), lengths, value };
        self.slots[miss.0].replace(slot).map(|old| old.value)
    }
}

impl<T: Clone> Default for PolicyTextCache<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> CacheSlot<T> {
    #[inline]
    fn has_parts(&self, parts: &[&[u8]; 3]) -> bool {
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
mod policy_text_cache_tests {
    use super::*;

    type Cache = PolicyTextCache<usize>;

    /// Inserts `value` if `text` is not cached. Whether it was, and the cached or the evicted value.
    fn get_or_insert(
        cache: &mut Cache,
        text: PolicyText<'_>,
        value: usize,
    ) -> (bool, Option<usize>) {
        match cache.get(text) {
            Ok(cached) => (true, Some(cached)),
            Err(miss) => (false, cache.insert(miss, text, value)),
        }
    }

    #[test]
    fn get_texts_that_join_to_equal_bytes_are_distinct() {
        let cache = &mut Cache::new();
        let ways = [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Text(b"gcra:30/60s"),
            PolicyText::Text(b"1111"),
            PolicyText::Throttle { max_burst: b"1", count: b"11", period: b"1" },
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ];
        for (number, text) in ways.into_iter().enumerate() {
            assert!(!get_or_insert(cache, text, number).0, "{text:?}");
            // Two may share a slot by chance. Therefore each is read back before the next is inserted.
            assert_eq!(get_or_insert(cache, text, 9), (true, Some(number)), "{text:?}");
        }
    }

    #[test]
    fn insert_many_texts_takes_no_more_slots() {
        let cache = &mut Cache::new();
        let mut evicted = 0;
        for invented in 1..3000 {
            let text = format!("gcra:{invented}/1m");
            let (hit, old) = get_or_insert(cache, PolicyText::Text(text.as_bytes()), invented);
            assert!(!hit);
            evicted += usize::from(old.is_some());
        }
        let cached = cache.slots.iter().flatten().count();
        assert_eq!((cached + evicted, cache.slots.len()), (2999, CACHE_SLOTS));
        let long = [b'x'; MAX_TEXT + 1];
        assert_eq!(get_or_insert(cache, PolicyText::Text(&long), 7), (false, Some(7)), "too long");
        assert_eq!(cache.slots.iter().flatten().count(), cached);
    }
}
