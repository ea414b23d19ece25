//! The text form of a policy: `ALGORITHM:N/PERIOD[:option[=value]]...`, joined by commas.

use jiff::tz::TimeZone;

use super::calendar::{Calendar, OracleUnit};
use super::exact::q;
use super::limit::Limit;
use super::{bucket, concurrency, counter, log, rate, window};

const MS: u64 = 1_000;
const DAY: u64 = 86_400_000 * MS;
const MAX_PERIOD: u64 = 366 * DAY;
/// Upper bound on the units of a `concurrency` limit.
const MAX_UNITS_HELD: u64 = 65_536;
/// Upper bound on `keep-max`.
const MAX_KEPT_UNITS: u64 = 1 << 20;

/// Reads one to eight limits.
pub(super) fn parse(text: &str) -> Result<Vec<Limit>, String> {
    let limits: Vec<Limit> = text.split(',').map(limit).collect::<Result<_, _>>()?;
    if limits.len() > 8 {
        return Err(format!("{} limits, at most 8 make a policy", limits.len()));
    }
    Ok(limits)
}

fn limit(text: &str) -> Result<Limit, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let rate = parts.next().ok_or_else(|| format!("`{text}` has no rate"))?;
    let (n, period) = rate.split_once('/').ok_or_else(|| format!("`{rate}` is not N/PERIOD"))?;
    let n = units(n)?;
    let mut options = Options::read(parts)?;
    let limit = match name {
        "gcra" | "token-bucket" | "leaky-bucket" | "leaky-queue" => {
            bucket_like(name, n, period, &mut options)?
        }
        "fixed-window" => {
            let span = window_span(period, &mut options)?;
            Limit::Window(window::Parameters { n: q(n), span, count_all: options.count_all()? })
        }
        "sliding-log" => {
            let p = duration(period)?;
            let keep = keep(n, p, &mut options)?;
            let count_all = options.count_all()?;
            Limit::Log(log::Parameters { n: q(n), p: q(p), count_all, keep })
        }
        "sliding-counter" => {
            let p = q(duration(period)?);
            Limit::Counter(counter::Parameters { n: q(n), p, count_all: options.count_all()? })
        }
        "concurrency" => {
            let n = q(number(&n.to_string(), 1, MAX_UNITS_HELD)?);
            Limit::Concurrency(concurrency::Parameters { n, p: q(duration(period)?) })
        }
        _ => return Err(format!("unknown algorithm `{name}`")),
    };
    options.reject_unread(name)?;
    Ok(limit)
}

fn bucket_like(name: &str, n: u64, period: &str, options: &mut Options) -> Result<Limit, String> {
    let p = q(duration(period)?);
    let b = match (options.value("burst")?, options.value("capacity")?) {
        (Some(_), Some(_)) => return Err("`burst` and `capacity` are one option".to_owned()),
        (Some(b), None) | (None, Some(b)) => q(units(&b)?),
        (None, None) => q(n),
    };
    let queue = name == "leaky-queue";
    let borrow = !queue && options.flag("borrow")?;
    let stepwise = name == "token-bucket" && options.one_of("refill", "continuous", "interval")?;
    let (limit, drains_in_time) = if stepwise {
        let parameters = bucket::Parameters { a: q(n), i: p, b, borrow };
        let drains_in_time = parameters.drains_in_time();
        (Limit::Bucket(parameters), drains_in_time)
    } else {
        let parameters = rate::Parameters { n: q(n), p, b, borrow, queue };
        let drains_in_time = parameters.drains_in_time();
        (Limit::Rate(parameters), drains_in_time)
    };
    if drains_in_time { Ok(limit) } else { Err("takes more than 2^50us to drain".to_owned()) }
}

fn window_span(period: &str, options: &mut Options) -> Result<window::Span, String> {
    let word = match period {
        "day" => OracleUnit::Day,
        "week" => OracleUnit::Week,
        "month" => OracleUnit::Month,
        "year" => OracleUnit::Year,
        _ => {
            let p = q(duration(period)?);
            let by_clock = options.one_of("align", "first", "clock")?;
            return Ok(if by_clock { window::Span::Clock(p) } else { window::Span::First(p) });
        }
    };
    let zone = options.value("tz")?.unwrap_or_else(|| "UTC".to_owned());
    let zone = TimeZone::get(&zone).map_err(|_| format!("unknown time zone `{zone}`"))?;
    Ok(window::Span::Calendar(Calendar { word, zone }))
}

fn keep(n: u64, p: u64, options: &mut Options) -> Result<Option<log::Keep>, String> {
    let max_units = options.value("keep-max")?;
    let Some(span) = options.value("keep")? else {
        return match max_units {
            Some(_) => Err("`keep-max` without `keep`".to_owned()),
            None => Ok(None),
        };
    };
    let span = q(duration(&span)?);
    let max_units = match max_units {
        Some(units) => q(number(&units, 1, MAX_KEPT_UNITS)?),
        None => (q(n) * &span / q(p)).ceil().min(q(MAX_KEPT_UNITS)),
    };
    Ok(Some(log::Keep { span, max_units }))
}

/// A limit, burst or capacity.
fn units(text: &str) -> Result<u64, String> {
    number(text, 1, u64::from(u32::MAX))
}

fn number(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|value| digits && (min..=max).contains(value));
    value.ok_or_else(|| format!("`{text}` is outside {min}..={max}"))
}

/// A span in microseconds; a unit alone means one.
fn duration(text: &str) -> Result<u64, String> {
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
    let count = if count.is_empty() { 1 } else { number(count, 0, u64::MAX)? };
    let span = count.checked_mul(unit).filter(|span| (MS..=MAX_PERIOD).contains(span));
    span.ok_or_else(|| format!("period `{text}` is outside 1ms..=366d"))
}

/// Options that have not been read yet.
struct Options(Vec<(String, Option<String>)>);

impl Options {
    fn read<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut options: Vec<(String, Option<String>)> = Vec::new();
        for text in texts {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            if options.iter().any(|(other, _)| other == name) {
                return Err(format!("option `{name}` given twice"));
            }
            options.push((name.to_owned(), value));
        }
        Ok(Self(options))
    }

    fn remove(&mut self, name: &str) -> Option<Option<String>> {
        let at = self.0.iter().position(|(other, _)| other == name)?;
        Some(self.0.remove(at).1)
    }

    /// The value of an option that has one.
    fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.remove(name) {
            Some(None) => Err(format!("option `{name}` needs a value")),
            Some(value) => Ok(value),
            None => Ok(None),
        }
    }

    /// Whether an option without a value is given.
    fn flag(&mut self, name: &str) -> Result<bool, String> {
        match self.remove(name) {
            Some(Some(_)) => Err(format!("option `{name}` takes no value")),
            given => Ok(given.is_some()),
        }
    }

    /// Whether `special` was chosen rather than the default.
    fn one_of(&mut self, name: &str, default: &str, special: &str) -> Result<bool, String> {
        match self.value(name)? {
            None => Ok(false),
            Some(value) if value == default => Ok(false),
            Some(value) if value == special => Ok(true),
            Some(value) => Err(format!("`{name}` is `{default}` or `{special}`, not `{value}`")),
        }
    }

    fn count_all(&mut self) -> Result<bool, String> {
        self.one_of("count", "allowed", "all")
    }

    fn reject_unread(&self, algorithm: &str) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(format!("`{algorithm}` has no `{name}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn parse_every_form_of_semantics_is_accepted() {
        for text in [
            "gcra:30/60s:burst=16",
            "token-bucket:10/1s:burst=20:refill=interval:borrow",
            "token-bucket:10/s:capacity=20",
            "leaky-bucket:1/250ms:borrow",
            "leaky-queue:5/1s:capacity=20",
            "sliding-log:30/1m:count=all:keep=1h:keep-max=7",
            "sliding-log:30/1m,sliding-log:1000/1d",
            "fixed-window:10000/month:tz=Asia/Shanghai",
            "fixed-window:100/minute:align=clock",
            "sliding-counter:4294967295/366d",
            "concurrency:65536/30s,gcra:1/1s",
        ] {
            assert!(parse(text).is_ok(), "{text}: {:?}", parse(text).err());
        }
    }

    #[test]
    fn parse_invalid_policy_is_rejected() {
        for text in [
            "",
            "gcra",
            "gcra:30",
            "gcra:0/1s",
            "gcra:4294967296/1s",
            "gcra:+1/1s",
            "gcra:1/0s",
            "gcra:1/999us",
            "gcra:1/367d",
            "gcra:1/1x",
            "gcra:1/day",
            "gcra:1/1s:burst",
            "gcra:1/1s:burst=0",
            "gcra:1/1s:burst=2:burst=2",
            "gcra:1/1s:burst=2:capacity=2",
            "gcra:1/1s:refill=interval",
            "gcra:1/1s:count=all",
            "gcra:1/366d:burst=100",
            "token-bucket:1/366d:burst=100:refill=interval",
            "leaky-queue:1/1s:borrow",
            "fixed-window:1/1s:tz=UTC",
            "fixed-window:1/day:tz=Nowhere/AtAll",
            "fixed-window:1/1s:align=moon",
            "sliding-log:1/1s:keep-max=9",
            "sliding-counter:1/1s:",
            "concurrency:0/1s",
            "concurrency:65537/1s",
            "concurrency:1/999us",
            "concurrency:1/day",
            "concurrency:1/1s:count=all",
            "gcra:1/1s,",
            "gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
