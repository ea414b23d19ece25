//! The text of one limit in parts, each with its place in the policy string.

use std::time::Duration;

use smallvec::SmallVec;

use super::{error::PolicyError, hint};
use crate::{parameters::LimitError, period};

/// Start of a part in the text.
#[derive(Clone, Copy)]
pub(crate) struct PartPosition {
    pub(crate) limit: usize,
    pub(crate) offset: usize,
}

impl PartPosition {
    pub(crate) fn error(self, message: String) -> PolicyError {
        PolicyError::new(message, self.limit, self.offset)
    }

    const fn skip(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

/// A part of the text with its place.
#[derive(Clone, Copy)]
pub(crate) struct TextPart<'a> {
    pub(crate) text: &'a str,
    pub(crate) place: PartPosition,
}

impl<'a> TextPart<'a> {
    /// Its text for an error, cut where it is long.
    pub(crate) fn quoted(self) -> String {
        match self.text.char_indices().nth(40) {
            Some((end, _)) => format!("`{}…`", &self.text[..end]),
            None => format!("`{}`", self.text),
        }
    }

    pub(crate) fn error(self, message: String) -> PolicyError {
        self.place.error(message)
    }

    /// Both sides of the first `separator`.
    pub(crate) fn split(self, separator: char) -> Option<(Self, Self)> {
        let (before, after) = self.text.split_once(separator)?;
        let place = self.place.skip(before.len() + 1);
        Some((TextPart { text: before, ..self }, TextPart { text: after, place }))
    }

    /// A whole number of units. The bounds that matter are checked by the limit itself.
    fn units(self, name: &'static str) -> Result<u32, PolicyError> {
        let text: &'a str = self.text;
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            let quoted = self.quoted();
            return Err(self.error(format!(
                "invalid {name} {quoted}: expected a whole number from 1 to 4294967295"
            )));
        }
        text.parse().map_err(|_| {
            self.error(format!("invalid {name} {}: expected 1 to 4294967295", self.quoted()))
        })
    }

    fn period(self, name: &'static str) -> Result<Duration, PolicyError> {
        period::parse(self.text).map(Duration::from_micros).ok_or_else(|| {
            let (quoted, expected) = (self.quoted(), period::expected(self.text));
            self.error(format!("invalid {name} {quoted}: {expected}"))
        })
    }

    /// One of a few words.
    fn word<T: Copy>(self, name: &str, words: &[(&str, T)]) -> Result<T, PolicyError> {
        let found = words.iter().find(|(word, _)| self.text.eq_ignore_ascii_case(word));
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<_> = words.iter().map(|(word, _)| format!("`{name}={word}`")).collect();
            let quoted = self.quoted();
            self.error(format!("invalid {name} {quoted}: expected {}", known.join(" or ")))
        })
    }
}

/// Why the text of a limit is not one.
pub(crate) enum TextError {
    /// A part of the text is invalid.
    Policy(PolicyError),
    /// A parameter is outside its domain.
    Limit(LimitError),
}

impl From<PolicyError> for TextError {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}

impl From<LimitError> for TextError {
    fn from(error: LimitError) -> Self {
        Self::Limit(error)
    }
}

/// The text of one limit in parts. Its options are those of the algorithm, each at most once.
pub(crate) struct LimitText<'a> {
    name: &'static str,
    units: TextPart<'a>,
    period: TextPart<'a>,
    options: SmallVec<[(&'static str, TextPart<'a>); 4]>,
}

impl<'a> LimitText<'a> {
    /// The name of the algorithm, in lower case.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// `N`.
    pub(crate) fn limit(&self) -> Result<u32, PolicyError> {
        self.units.units("limit")
    }

    /// `P`, as a duration.
    pub(crate) fn period(&self) -> Result<Duration, PolicyError> {
        self.period.period("period")
    }

    /// Whether `P` is `word`.
    pub(crate) fn is_period(&self, word: &str) -> bool {
        self.period.text.eq_ignore_ascii_case(word)
    }

    /// `P` as an error quotes it.
    pub(crate) fn quoted_period(&self) -> String {
        self.period.quoted()
    }

    /// `B`.
    pub(crate) fn burst(&self) -> Result<Option<u32>, PolicyError> {
        self.size().map(|part| part.units("burst")).transpose()
    }

    /// `count`: whether denied requests are recorded.
    pub(crate) fn count_all(&self) -> Result<bool, PolicyError> {
        Ok(self.word_option("count", &[("allowed", false), ("all", true)])?.unwrap_or(false))
    }

    /// Whether there is an option of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The value of an option.
    pub(crate) fn option(&self, name: &str) -> Option<&'a str> {
        self.find(name).map(|part| part.text)
    }

    /// The value of an option that is a number of units.
    pub(crate) fn units_option(&self, name: &'static str) -> Result<Option<u32>, PolicyError> {
        self.find(name).map(|part| part.units(name)).transpose()
    }

    /// The value of an option that is a duration.
    pub(crate) fn period_option(
        &self,
        name: &'static str,
    ) -> Result<Option<Duration>, PolicyError> {
        self.find(name).map(|part| part.period(name)).transpose()
    }

    /// The value of an option that is one of these words.
    pub(crate) fn word_option<T: Copy>(
        &self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, PolicyError> {
        self.find(name).map(|part| part.word(name, words)).transpose()
    }

    /// An error at the value of an option.
    pub(crate) fn option_error(&self, name: &str, message: String) -> TextError {
        self.find(name).unwrap_or(self.period).error(message).into()
    }

    fn find(&self, name: &str) -> Option<TextPart<'a>> {
        self.options.iter().find(|(option, _)| *option == name).map(|(_, part)| *part)
    }

    /// The size of a bucket, which has two names.
    fn size(&self) -> Option<TextPart<'a>> {
        self.find("burst").or_else(|| self.find("capacity"))
    }

    /// The part that holds the value which an error is about.
    pub(crate) fn invalid_part(&self, error: &LimitError) -> TextPart<'a> {
        let part = match error {
            LimitError::Domain { name: "limit", .. } => Some(self.units),
            LimitError::Domain { name: "burst" | "capacity", .. } | LimitError::Drain { .. } => {
                self.size().or(Some(self.units))
            }
            LimitError::Domain { name, .. } => self.find(name),
            LimitError::Zone(_) => self.find("tz"),
            LimitError::Combination(_) => self.find("keep-max").or_else(|| self.find("borrow")),
        };
        part.unwrap_or(self.period)
    }

    /// Reads `rest`, the options of `name`, each of which is one of `known`.
    pub(crate) fn read(
        name: &'static str,
        (units, period): (TextPart<'a>, TextPart<'a>),
        mut rest: Option<TextPart<'a>>,
        known: &[&'static str],
    ) -> Result<Self, PolicyError> {
        let mut text = Self { name, units, period, options: SmallVec::new() };
        while let Some(part) = rest {
            let (option, more) = match part.split(':') {
                Some((option, more)) => (option, Some(more)),
                None => (part, None),
            };
            text.read_option(option, known)?;
            rest = more;
        }
        text.limit()?;
        Ok(text)
    }

    fn read_option(
        &mut self,
        option: TextPart<'a>,
        known: &[&'static str],
    ) -> Result<(), PolicyError> {
        let (name, value) = match option.split('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        // The size of a bucket has two names.
        let lower = name.text.to_ascii_lowercase();
        let canonical = match lower.as_str() {
            "burst" if known.contains(&"capacity") => "capacity",
            "capacity" if known.contains(&"burst") => "burst",
            other => known.iter().copied().find(|known| *known == other).unwrap_or_default(),
        };
        if canonical.is_empty() {
            let (expected, algorithm) = (hint::option(name.text, known), self.name);
            return Err(
                name.error(format!("unknown option {} for {algorithm}: {expected}", name.quoted()))
            );
        }
        if self.has(canonical) {
            return Err(name.error(format!("duplicate option `{canonical}`: expected it once")));
        }
        let value = match (canonical, value) {
            ("borrow", None) => name,
            ("borrow", Some(_)) => {
                let quoted = option.quoted();
                let message = format!("invalid option {quoted}: expected `borrow` without a value");
                return Err(name.error(message));
            }
            (_, Some(value)) => value,
            (_, None) => {
                let example = hint::example(canonical);
                return Err(name.error(format!(
                    "invalid option `{canonical}`: expected a value, such as `{example}`"
                )));
            }
        };
        self.options.push((canonical, value));
        Ok(())
    }
}
