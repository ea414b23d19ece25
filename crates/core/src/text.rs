//! Policy strings: their parts, errors, hints and formats. [`algorithm`](crate::algorithm) and
//! [`policy`](crate::policy) give them a meaning.

use std::{
    fmt::{self, Display, Formatter},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    parameters::LimitError,
    period,
    spelling::{closest, one_of, quoted},
};

/// Maximum number of limits of a policy.
pub const MAX_LIMITS: usize = 8;

/// An invalid policy string. The text names the invalid part, what is expected and, if the policy has several limits,
/// the limit (counted from 1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", if *.several { format!(" (limit {limit})") } else { String::new() })]
pub struct PolicyError {
    message: String,
    limit: usize,
    several: bool,
    offset: usize,
}

impl PolicyError {
    pub(crate) const fn new(message: String, limit: usize, offset: usize) -> Self {
        Self { message, limit, several: false, offset }
    }

    /// The error of `policy`, which is none, beside a key that is one: the two may be in the wrong order.
    #[must_use]
    pub fn swapped(key: &str, policy: &str) -> Self {
        let expected = "expected the key first, then the policy";
        let (policy, key) = (quoted(policy), quoted(key));
        let message =
            format!("invalid policy {policy}: the key {key} looks like a policy; {expected}");
        Self::new(message, 1, 0)
    }

    /// The same error in a policy that has several limits.
    pub(crate) fn among_several(self) -> Self {
        Self { several: true, ..self }
    }

    pub(crate) fn count(limits: usize) -> Self {
        Self::new(
            format!("invalid number of limits `{limits}`: expected 1 to {MAX_LIMITS}"),
            limits,
            0,
        )
    }

    /// The fault.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Which limit of the text is at fault, counted from 1.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Where the part that is at fault begins in the text, in bytes.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }
}

// The text of one limit in parts, each with its place in the policy string.

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
    /// Its text for an error.
    pub(crate) fn quoted(self) -> String {
        quoted(self.text)
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
            let (expected, algorithm) = (option_hint(name.text, known), self.name);
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
                let example = option_example(canonical);
                return Err(name.error(format!(
                    "invalid option `{canonical}`: expected a value, such as `{example}`"
                )));
            }
        };
        self.options.push((canonical, value));
        Ok(())
    }
}

// Guesses at the meaning of an invalid option, and parts of the canonical policy string.

/// The text after "expected" for `name`, which is not an option of an algorithm with the options `known`.
fn option_hint(name: &str, known: &[&'static str]) -> String {
    if known.is_empty() {
        return "expected none".to_owned();
    }
    if let Some(option) = closest(name, known) {
        return did_you_mean(&[option]);
    }
    let is_size = |it: &&&str| ["burst", "capacity"].contains(&**it);
    match known.iter().find(is_size) {
        Some(size)
            if (1..=10).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_digit()) =>
        {
            did_you_mean(&[&format!("{size}={name}")])
        }
        _ => format!("expected {}", one_of(known)),
    }
}

/// An example of an option with a value.
fn option_example(option: &str) -> &'static str {
    match option {
        "align" => "align=clock",
        "burst" => "burst=16",
        "capacity" => "capacity=16",
        "count" => "count=all",
        "keep" => "keep=1h",
        "keep-max" => "keep-max=1000",
        "refill" => "refill=interval",
        _ => "tz=Asia/Shanghai",
    }
}

pub(crate) fn did_you_mean(words: &[&str]) -> String {
    format!("did you mean {}?", one_of(words))
}

/// `NAME:N/PERIOD`, the period in microseconds.
pub(crate) fn write_rate(
    formatter: &mut Formatter<'_>,
    name: &str,
    limit: u32,
    period: u64,
) -> fmt::Result {
    write!(formatter, "{name}:{limit}/{}", period::format(period))
}

/// `:OPTION`, if it is `given`.
pub(crate) fn write_option(
    formatter: &mut Formatter<'_>,
    given: bool,
    option: impl Display,
) -> fmt::Result {
    if given { write!(formatter, ":{option}") } else { Ok(()) }
}
