//! `ALGORITHM:N/PERIOD[:option[=value]]...`, joined by commas, from left to right.

use std::time::Duration;

use super::{MAX_LIMITS, Policy, PolicyError, hint, period};
use crate::{
    algorithm::{
        Align, FixedWindow, Gcra, GcraName, IntervalBucket, Limit, LimitError, SlidingCounter,
        SlidingLog, Window,
    },
    calendar::{Calendar, CalendarUnit},
};

/// Each algorithm with the options that it knows.
const ALGORITHMS: [(&str, &[&str]); 7] = [
    ("gcra", &["borrow", "burst"]),
    ("token-bucket", &["borrow", "burst", "refill"]),
    ("leaky-bucket", &["borrow", "capacity"]),
    ("leaky-queue", &["capacity"]),
    ("fixed-window", &["align", "count", "tz"]),
    ("sliding-log", &["count", "keep", "keep-max"]),
    ("sliding-counter", &["count"]),
];

pub(super) fn policy(text: &str) -> Result<Policy, PolicyError> {
    let mut limits = Vec::new();
    let mut offset = 0;
    for part in text.split(',') {
        let place = Place { limit: limits.len() + 1, offset };
        if limits.len() == MAX_LIMITS {
            return Err(PolicyError::count(text.split(',').count()));
        }
        let limit = limit(part, place);
        let several = part.len() < text.len();
        limits.push(limit.map_err(|it| if several { it.among_several() } else { it })?);
        offset += part.len() + 1;
    }
    Policy::try_from(limits)
}

/// Where in the text a part begins.
#[derive(Clone, Copy)]
struct Place {
    limit: usize,
    offset: usize,
}

impl Place {
    fn error(self, message: String) -> PolicyError {
        PolicyError::new(message, self.limit, self.offset)
    }

    const fn skip(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
}

/// A part of the text with its place.
#[derive(Clone, Copy)]
struct Part<'a> {
    text: &'a str,
    place: Place,
}

impl<'a> Part<'a> {
    /// Its text for an error, cut where it is long.
    fn quoted(self) -> String {
        match self.text.char_indices().nth(40) {
            Some((end, _)) => format!("`{}…`", &self.text[..end]),
            None => format!("`{}`", self.text),
        }
    }

    fn error(self, message: String) -> PolicyError {
        self.place.error(message)
    }

    /// Both sides of the first `separator`.
    fn split(self, separator: char) -> Option<(Self, Self)> {
        let (before, after) = self.text.split_once(separator)?;
        let place = self.place.skip(before.len() + 1);
        Some((Part { text: before, ..self }, Part { text: after, place }))
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

/// The options of a limit, each at most once.
#[derive(Default)]
struct Options<'a> {
    align: Option<Part<'a>>,
    borrow: Option<Part<'a>>,
    burst: Option<Part<'a>>,
    count: Option<Part<'a>>,
    keep: Option<Part<'a>>,
    keep_max: Option<Part<'a>>,
    refill: Option<Part<'a>>,
    tz: Option<Part<'a>>,
}

impl<'a> Options<'a> {
    fn parse(
        mut rest: Option<Part<'a>>,
        algorithm: &str,
        known: &[&'static str],
    ) -> Result<Self, PolicyError> {
        let mut options = Self::default();
        while let Some(part) = rest {
            let (option, more) = match part.split(':') {
                Some((option, more)) => (option, Some(more)),
                None => (part, None),
            };
            options.add(option, algorithm, known)?;
            rest = more;
        }
        Ok(options)
    }

    fn add(
        &mut self,
        option: Part<'a>,
        algorithm: &str,
        known: &[&'static str],
    ) -> Result<(), PolicyError> {
        let (name, value) = match option.split('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        // The size of a bucket has two names.
        let canonical = match name.text.to_ascii_lowercase().as_str() {
            "burst" if known.contains(&"capacity") => "capacity",
            "capacity" if known.contains(&"burst") => "burst",
            other => known.iter().copied().find(|known| *known == other).unwrap_or_default(),
        };
        if canonical.is_empty() {
            let expected = hint::option(name.text, known);
            return Err(
                name.error(format!("unknown option {} for {algorithm}: {expected}", name.quoted()))
            );
        }
        let slot = match canonical {
            "align" => &mut self.align,
            "borrow" => &mut self.borrow,
            "burst" | "capacity" => &mut self.burst,
            "count" => &mut self.count,
            "keep" => &mut self.keep,
            "keep-max" => &mut self.keep_max,
            "refill" => &mut self.refill,
            _ => &mut self.tz,
        };
        if slot.is_some() {
            return Err(name.error(format!("duplicate option `{canonical}`: expected it once")));
        }
        *slot = match (canonical, value) {
            ("borrow", None) => Some(name),
            ("borrow", Some(_)) => {
                let quoted = option.quoted();
                let message = format!("invalid option {quoted}: expected `borrow` without a value");
                return Err(name.error(message));
            }
            (_, Some(value)) => Some(value),
            (_, None) => {
                let example = hint::example(canonical);
                return Err(name.error(format!(
                    "invalid option `{canonical}`: expected a value, such as `{example}`"
                )));
            }
        };
        Ok(())
    }

    fn burst(&self) -> Result<Option<u32>, PolicyError> {
        self.burst.map(|part| part.units("burst")).transpose()
    }

    fn count_all(&self) -> Result<bool, PolicyError> {
        let words = [("allowed", false), ("all", true)];
        self.count.map_or(Ok(false), |part| part.word("count", &words))
    }
}

fn limit(text: &str, place: Place) -> Result<Limit, PolicyError> {
    let whole = Part { text, place };
    let Some((name, rest)) = whole.split(':') else {
        let (quoted, expected) = (whole.quoted(), hint::limit(text, &names()));
        return Err(whole.error(format!("invalid policy {quoted}: {expected}")));
    };
    let found = ALGORITHMS.into_iter().find(|(word, _)| word.eq_ignore_ascii_case(name.text));
    let Some((algorithm, known)) = found else {
        let (quoted, expected) = (name.quoted(), hint::algorithm(name.text, &names()));
        return Err(name.error(format!("unknown algorithm {quoted}: {expected}")));
    };
    let (rate, options) = match rest.split(':') {
        Some((rate, options)) => (rate, Some(options)),
        None => (rest, None),
    };
    let Some((units, period)) = rate.split('/') else {
        let quoted = rate.quoted();
        return Err(
            rate.error(format!("invalid rate {quoted}: expected N/PERIOD, such as `30/1m`"))
        );
    };
    let options = Options::parse(options, algorithm, known)?;
    let n = units.units("limit")?;

    let made = match algorithm {
        "fixed-window" => fixed_window(n, period, &options)?.map(Limit::FixedWindow),
        "sliding-log" => {
            let keep = options.keep.map(|part| part.period("keep")).transpose()?;
            let keep_max = options.keep_max.map(|part| part.units("keep-max")).transpose()?;
            let all = options.count_all()?;
            SlidingLog::new(n, period.period("period")?, all, keep, keep_max).map(Limit::SlidingLog)
        }
        "sliding-counter" => SlidingCounter::new(n, period.period("period")?, options.count_all()?)
            .map(Limit::SlidingCounter),
        _ => bucket(algorithm, n, period.period("period")?, &options)?,
    };
    made.map_err(|error| at_fault(&error, units, period, &options).error(error.to_string()))
}

/// The names of all algorithms.
fn names() -> [&'static str; ALGORITHMS.len()] {
    ALGORITHMS.map(|(name, _)| name)
}

fn bucket(
    algorithm: &str,
    n: u32,
    period: Duration,
    options: &Options<'_>,
) -> Result<Result<Limit, LimitError>, PolicyError> {
    let (burst, borrow) = (options.burst()?, options.borrow.is_some());
    let words = [("continuous", false), ("interval", true)];
    if options.refill.map_or(Ok(false), |part| part.word("refill", &words))? {
        return Ok(IntervalBucket::new(n, period, burst, borrow).map(Limit::IntervalBucket));
    }
    let name = match algorithm {
        "token-bucket" => GcraName::TokenBucket,
        "leaky-bucket" => GcraName::LeakyBucket,
        "leaky-queue" => GcraName::LeakyQueue,
        _ => GcraName::Gcra,
    };
    Ok(Gcra::new(name, n, period, burst, borrow).map(Limit::Gcra))
}

fn fixed_window(
    n: u32,
    period: Part<'_>,
    options: &Options<'_>,
) -> Result<Result<FixedWindow, LimitError>, PolicyError> {
    let words = [("first", Align::First), ("clock", Align::Clock)];
    let align = options.align.map(|part| part.word("align", &words)).transpose()?;
    let count_all = options.count_all()?;
    let is_unit = |unit: &CalendarUnit| period.text.eq_ignore_ascii_case(unit.word());
    let unit = CalendarUnit::ALL.into_iter().find(is_unit);
    let window = match (unit, options.tz, options.align, align) {
        (Some(unit), _, Some(part), Some(Align::First)) => {
            return Err(part.error(format!(
                "invalid align `first`: expected `align=clock` with the calendar period `{unit}`, or \
                 a duration such as `1d`"
            )));
        }
        (Some(unit), tz, ..) => {
            let zone = tz.map_or(Calendar::UTC, |part| part.text).to_owned();
            Window::Calendar { unit, zone }
        }
        (None, Some(tz), ..) => {
            return Err(tz.error(format!(
                "invalid period {} with `tz`: expected `day`, `week`, `month` or `year`",
                period.quoted()
            )));
        }
        (None, None, ..) => {
            Window::Span { period: period.period("period")?, align: align.unwrap_or(Align::First) }
        }
    };
    Ok(FixedWindow::new(n, &window, count_all))
}

/// The part of the text that holds the value which an error is about.
fn at_fault<'a>(
    error: &LimitError,
    units: Part<'a>,
    period: Part<'a>,
    options: &Options<'a>,
) -> Part<'a> {
    let part = match error {
        LimitError::Domain { name: "limit", .. } => Some(units),
        LimitError::Domain { name: "keep", .. } => options.keep,
        LimitError::Domain { name: "keep-max", .. } => options.keep_max,
        LimitError::Domain { name: "burst" | "capacity", .. } | LimitError::Drain { .. } => {
            options.burst.or(Some(units))
        }
        LimitError::Zone(_) => options.tz,
        LimitError::Combination(_) => options.keep_max.or(options.borrow),
        LimitError::Domain { .. } => Some(period),
    };
    part.unwrap_or(period)
}
