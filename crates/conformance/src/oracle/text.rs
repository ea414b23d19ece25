//! The text form of a limit: `ALGORITHM:N/PERIOD[:option[=value]]...`.

use super::exact::{Q, ceiling, q};

const MS: u64 = 1_000;
const DAY: u64 = 86_400_000 * MS;
const MAX_PERIOD: u64 = 366 * DAY;

/// The parts of a limit, with the options that have not been read yet.
#[derive(Clone, Debug)]
pub(super) struct LimitText<'a> {
    pub(super) name: &'a str,
    pub(super) n: Q,
    pub(super) period: &'a str,
    options: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> LimitText<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let rate = parts.next().ok_or_else(|| format!("`{text}` has no rate"))?;
        let (n, period) =
            rate.split_once('/').ok_or_else(|| format!("`{rate}` is not N/PERIOD"))?;
        let mut options: Vec<(&str, Option<&str>)> = Vec::new();
        for part in parts {
            let given = part.split_once('=');
            let (option, value) = given.map_or((part, None), |(name, value)| (name, Some(value)));
            if options.iter().any(|(other, _)| *other == option) {
                return Err(format!("option `{option}` given twice"));
            }
            options.push((option, value));
        }
        Ok(Self { name, n: units(n)?, period, options })
    }

    /// `burst` or `capacity`, which are one option.
    pub(super) fn burst(&mut self) -> Result<Q, String> {
        match (self.value("burst")?, self.value("capacity")?) {
            (Some(_), Some(_)) => Err("`burst` and `capacity` are one option".to_owned()),
            (Some(b), None) | (None, Some(b)) => units(b),
            (None, None) => Ok(self.n.clone()),
        }
    }

    pub(super) fn count_all(&mut self) -> Result<bool, String> {
        self.one_of("count", "allowed", "all")
    }

    /// The value of an option that has one.
    pub(super) fn value(&mut self, name: &str) -> Result<Option<&'a str>, String> {
        match self.remove(name) {
            Some(None) => Err(format!("option `{name}` needs a value")),
            given => Ok(given.flatten()),
        }
    }

    /// Whether an option without a value is given.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool, String> {
        match self.remove(name) {
            Some(Some(_)) => Err(format!("option `{name}` takes no value")),
            given => Ok(given.is_some()),
        }
    }

    /// Whether the second of two values was chosen; the first is the default.
    pub(super) fn one_of(&mut self, name: &str, first: &str, second: &str) -> Result<bool, String> {
        match self.value(name)?.unwrap_or(first) {
            value if value == first => Ok(false),
            value if value == second => Ok(true),
            value => Err(format!("`{name}` is `{first}` or `{second}`, not `{value}`")),
        }
    }

    pub(super) fn reject_unread(&self) -> Result<(), String> {
        let first = self.options.first();
        first.map_or(Ok(()), |(option, _)| Err(format!("`{}` has no `{option}`", self.name)))
    }

    fn remove(&mut self, name: &str) -> Option<Option<&'a str>> {
        let at = self.options.iter().position(|(other, _)| *other == name)?;
        Some(self.options.remove(at).1)
    }
}

/// A limit, burst or capacity.
fn units(text: &str) -> Result<Q, String> {
    number(text, 1, u64::from(u32::MAX))
}

pub(super) fn number(text: &str, min: u64, max: u64) -> Result<Q, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|value| digits && (min..=max).contains(value));
    value.map(q).ok_or_else(|| format!("`{text}` is outside {min}..={max}"))
}

/// A span in microseconds; a unit alone means one.
pub(super) fn duration(text: &str) -> Result<Q, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(unit_at);
    let unit = match unit {
        "us" => 1,
        "ms" => MS,
        "s" => 1_000 * MS,
        "m" | "min" | "minute" => 60_000 * MS,
        "h" => 3_600_000 * MS,
        "d" => DAY,
        "w" => 7 * DAY,
        _ => return Err(format!("`{text}` has no unit of time")),
    };
    let count = if count.is_empty() { q(1) } else { number(count, 0, u64::MAX)? };
    let span = Some(count * &q(unit)).filter(|span| (q(MS)..=q(MAX_PERIOD)).contains(span));
    span.ok_or_else(|| format!("period `{text}` is outside 1ms..=366d"))
}

/// The time to drain a full state must be at most `2^50` microseconds.
pub(super) fn check_drain(time: &Q) -> Result<(), String> {
    if time <= &ceiling() { Ok(()) } else { Err("takes more than 2^50us to drain".to_owned()) }
}
