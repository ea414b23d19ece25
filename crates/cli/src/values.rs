//! Values of flags, environment variables and settings. Every error says what is expected; `usage` adds the name of
//! the setting.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    time::Duration,
};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sluicegate_core::{as_micros, parse_period};
use sluicegate_simulator::MAX_PROCESSES;

const SECOND: Duration = Duration::from_secs(1);
/// The longest duration, that of a policy's period.
const MAX_SPAN: Duration = Duration::from_hours(366 * 24);
const HOUR: Duration = Duration::from_hours(1);

/// A whole number from `min` to `max`.
fn number<N: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Result<N, String> {
    let number = is_digits(text).then(|| text.parse().ok()).flatten();
    let number = number.filter(|number| (min..=max).contains(number));
    number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| match max {
        u64::MAX => format!("expected a whole number, at least {min}"),
        max => format!("expected a whole number from {min} to {max}"),
    })
}

/// Whether `text` is digits, without the sign that the standard library accepts.
fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The number of a port.
pub(crate) fn port(text: &str) -> Option<u16> {
    number(text, 0, u16::MAX.into()).ok()
}

/// A count of at least one.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    number(text, 1, u64::MAX)
}

/// A count that may be zero.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    number(text, 0, u64::MAX)
}

/// Any 64-bit number.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    number(text, 0, u64::MAX)
}

/// Units of a lease.
pub(crate) fn lease(text: &str) -> Result<u32, String> {
    number(text, 2, u32::MAX.into())
}

/// Units of a lease, or 0 for none.
pub(crate) fn lease_or_none(text: &str) -> Result<u32, String> {
    number(text, 0, u32::MAX.into())
}

/// A number of processes.
pub(crate) fn processes(text: &str) -> Result<usize, String> {
    number(text, 1, MAX_PROCESSES as u64)
}

/// The cost of a request.
pub(crate) fn cost(text: &str) -> Result<u32, String> {
    number(text, 0, u32::MAX.into())
}

/// Words of a setting, each with its help, which may be empty, and its meaning.
pub(crate) type Choices<T> = &'static [(&'static str, &'static str, T)];

/// Parser of one of several words.
pub(crate) fn choice<T: Copy + Send + Sync + 'static>(
    choices: Choices<T>,
) -> impl TypedValueParser<Value = T> {
    let values = choices.iter().map(|(word, help, _)| {
        let value = PossibleValue::new(*word);
        if help.is_empty() { value } else { value.help(*help) }
    });
    PossibleValuesParser::new(values).map(|word| {
        let chosen = choices.iter().find(|(it, ..)| *it == word);
        chosen.expect("the parser accepts no other word").2
    })
}

/// The word of a value, which is a default.
pub(crate) fn word<T: PartialEq>(choices: Choices<T>, value: &T) -> &'static str {
    let chosen = choices.iter().find(|(.., it)| it == value);
    chosen.expect("every default has a word").0
}

/// Yes or no.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" | "" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// A password or a token.
pub(crate) fn secret(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("expected at least one character; remove the setting to use none".to_owned());
    }
    // A file with one often ends in a line feed, which no client sends.
    if text.trim() != text || text.contains(char::is_control) {
        return Err(
            "expected one without control characters, and without spaces at its ends".to_owned()
        );
    }
    Ok(text.to_owned())
}

/// A number of bytes: `256mb`, `1gb`, `65536`. Units are powers of 1024.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, usize); 4] = [("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("", 1)];
    let lower = text.to_ascii_lowercase();
    // `kib`, `kb` and `k` are the same; bytes are `b`, or have no unit.
    let number =
        lower.strip_suffix("ib").filter(|it| !it.ends_with(|it: char| it.is_ascii_digit()));
    let number = number.or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let parts = UNITS.iter().find_map(|(name, unit)| Some((number.strip_suffix(name)?, *unit)));
    let (digits, unit) = parts.filter(|(digits, _)| is_digits(digits)).unwrap_or(("", 1));
    let number = digits.parse::<usize>().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "expected a size such as `256mb` or `1gb`, in b, kb, mb or gb".to_owned())
}

/// A number of bytes as [`size`] reads it.
pub(crate) fn size_text(bytes: usize) -> String {
    let units = [(1 << 30, "gb"), (1 << 20, "mb"), (1 << 10, "kb"), (1, "")];
    let fits = units.into_iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    fits.map_or_else(String::new, |(unit, name)| format!("{}{name}", bytes / unit))
}

fn size_from(text: &str, min: usize, shown: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    if bytes >= min {
        Ok(bytes)
    } else {
        Err(format!("expected a size of at least {shown}, such as `256mb`"))
    }
}

/// Memory for requests and replies: less would not hold a single request.
pub(crate) fn buffer_memory(text: &str) -> Result<usize, String> {
    size_from(text, 1 << 20, "1mb")
}

/// Memory for the state of keys: the table is never smaller.
pub(crate) fn state_memory(text: &str) -> Result<usize, String> {
    size_from(text, 2 << 20, "2mb")
}

/// A span of time, as in the period of a policy: `250ms`, `30s`, `2h`. Zero needs no unit.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    span_between(text, Duration::ZERO, MAX_SPAN)
}

/// A span of time that is not zero.
pub(crate) fn positive_span(text: &str) -> Result<Duration, String> {
    span_between(text, Duration::from_millis(1), MAX_SPAN)
}

fn span_between(text: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = &text[digits..];
    let is_zero = digits > 0 && text[..digits].bytes().all(|digit| digit == b'0');
    let found = if is_zero && (unit.is_empty() || period(&format!("1{unit}")).is_some()) {
        Some(Duration::ZERO)
    } else {
        period(text)
    };
    if let Some(span) = found.filter(|span| (min..=max).contains(span)) {
        return Ok(span);
    }
    if found.is_some() || (min, max) != (Duration::ZERO, MAX_SPAN) && !unit.is_empty() {
        let [min, max] = [min, max].map(span_text);
        return Err(format!("expected a duration from {min} to {max}"));
    }
    if digits > 0 && unit.is_empty() {
        return Err(format!("expected a duration with a unit, such as `{text}s` or `{text}ms`"));
    }
    Err("expected a duration such as `250ms`, `30s` or `2h`".to_owned())
}

/// A duration as [`span`] reads it.
pub(crate) fn span_text(span: Duration) -> String {
    sluicegate_plot::span(as_micros(span))
}

/// A time limit. A bare number is in seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    if is_digits(text) { span(&format!("{text}s")) } else { span(text) }
}

/// A time limit of at least a second.
pub(crate) fn seconds_from_one(text: &str) -> Result<Duration, String> {
    let limit = seconds(text)?;
    if limit >= SECOND { Ok(limit) } else { Err("expected a duration of at least 1s".to_owned()) }
}

/// Time limit of a store.
pub(crate) fn store_deadline(text: &str) -> Result<Duration, String> {
    span_between(text, Duration::from_millis(1), Duration::from_mins(1))
}

/// Time for which denials are repeated.
pub(crate) fn denial_cache(text: &str) -> Result<Duration, String> {
    span_between(text, Duration::ZERO, HOUR)
}

/// The period of a policy.
fn period(text: &str) -> Option<Duration> {
    let period = parse_period(text).map(Duration::from_micros);
    period.filter(|period| (Duration::from_millis(1)..=MAX_SPAN).contains(period))
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    Ip(SocketAddr),
    Name(String, u16),
}

/// Parser of an address to listen on: `127.0.0.1:6380`, `[::1]:6380`, `localhost:6380`, or `:6380` for all addresses
/// of IPv4 and IPv6. Errors name the port of `default`.
pub(crate) fn listen_address(
    default: Option<SocketAddr>,
) -> impl Fn(&str) -> Result<ListenAddress, String> + Clone {
    let port = default.map_or(0, |default| default.port());
    move |text| parse_listen_address(text, port)
}

fn parse_listen_address(text: &str, default: u16) -> Result<ListenAddress, String> {
    let expected =
        || format!("expected ADDRESS:PORT, such as `127.0.0.1:{default}` or `:{default}`");
    let Some((host, port_text)) = text.rsplit_once(':') else {
        return Err(if port(text).is_some() {
            format!("expected ADDRESS:PORT, such as `127.0.0.1:{text}` or `:{text}`")
        } else if is_host(text) && text != "off" {
            format!("expected ADDRESS:PORT, such as `{text}:{default}`")
        } else {
            expected()
        });
    };
    let port = match port(port_text) {
        Some(port) => port,
        None if is_digits(port_text) => {
            return Err("expected a port from 0 to 65535".to_owned());
        }
        None => return Err(expected()),
    };
    if host.is_empty() {
        return Ok(ListenAddress::Ip(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))));
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match (bracketed.unwrap_or(host).parse::<IpAddr>(), bracketed) {
        (Ok(IpAddr::V6(_)), None) => {
            Err(format!("expected brackets around an IPv6 address, as in `[{host}]:{port}`"))
        }
        (Ok(address @ IpAddr::V6(_)), Some(_)) | (Ok(address @ IpAddr::V4(_)), None) => {
            Ok(ListenAddress::Ip(SocketAddr::new(address, port)))
        }
        (Err(_), None) if is_host(host) => Ok(ListenAddress::Name(host.to_owned(), port)),
        _ => Err(expected()),
    }
}

/// Whether this can be the name of a host, which may end in a dot. One that ends in digits is a broken address.
pub(crate) fn is_host(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '.' | '_');
    let last = text.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
    !text.is_empty() && text.chars().all(plain) && !numeric
}

impl ListenAddress {
    /// The address; of a host with several, the first of IPv4 if there is one.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, String> {
        let (host, port) = match self {
            Self::Ip(address) => return Ok(*address),
            Self::Name(host, port) => (host, *port),
        };
        let found = (host.as_str(), port).to_socket_addrs();
        let found: Vec<SocketAddr> = found.map_or_else(|_| Vec::new(), Iterator::collect);
        let first = found.iter().find(|it| it.is_ipv4()).or_else(|| found.first());
        first.copied().ok_or_else(|| "expected the name of a host that can be resolved".to_owned())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(formatter),
            Self::Name(host, port) => write!(formatter, "{host}:{port}"),
        }
    }
}

/// A listener that may be switched off.
#[derive(Clone, Debug)]
pub(crate) struct OptionalListener(pub(crate) Option<ListenAddress>);

/// Parser of an address as [`listen_address`] reads it, or `off`.
pub(crate) fn optional_listener(
    default: Option<SocketAddr>,
) -> impl Fn(&str) -> Result<OptionalListener, String> + Clone {
    let parse = listen_address(default);
    move |text| {
        if text.eq_ignore_ascii_case("off") {
            return Ok(OptionalListener(None));
        }
        let address = parse(text).map_err(|error| format!("{error}, or `off`"))?;
        Ok(OptionalListener(Some(address)))
    }
}

/// An address as [`optional_listener`] reads it.
pub(crate) fn listener_text(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}

/// The candidate that `word` is most likely a misspelling of, if any is close.
pub(crate) fn closest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let candidates: Vec<_> = candidates.into_iter().collect();
    sluicegate_core::closest(word, &candidates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_units_are_powers_of_1024() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64kb", Some(65_536)),
            ("256MB", Some(256 << 20)),
            ("1MiB", Some(1 << 20)),
            ("2g", Some(2 << 30)),
            ("", None),
            ("gb", None),
            ("1.5gb", None),
            ("-1", None),
            ("+1", None),
            ("1tb", None),
            ("99999999999gb", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        for text in ["64mb", "1gb", "3kb", "1000"] {
            assert_eq!(size_text(size(text).unwrap()), text);
        }
        assert!(state_memory("10").unwrap_err().contains("at least 2mb"));
    }

    #[test]
    fn span_is_that_of_policies_or_zero() {
        for (text, micros) in [("0", 0), ("0s", 0), ("250ms", 250_000), ("0m", 0), ("00s", 0)] {
            assert_eq!(span(text).unwrap(), Duration::from_micros(micros), "{text}");
        }
        for text in ["", "5", "1s:keep=2s", "1s,gcra:1/1s", "367d", "-1s", "0x", "0.5s"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert_eq!(
            span("5").unwrap_err(),
            "expected a duration with a unit, such as `5s` or `5ms`"
        );
        assert_eq!(store_deadline("2m").unwrap_err(), "expected a duration from 1ms to 1m");
        assert_eq!(store_deadline("0").unwrap_err(), "expected a duration from 1ms to 1m");
        assert_eq!(seconds("7"), Ok(Duration::from_secs(7)));
        assert_eq!(seconds("250ms"), Ok(Duration::from_millis(250)));
        assert!(seconds_from_one("0").is_err());
    }

    #[test]
    fn secret_that_no_client_can_send_is_an_error() {
        for text in ["a", "a b", "geheim\u{fc}"] {
            assert_eq!(secret(text).as_deref(), Ok(text));
        }
        for text in ["", "a\n", " a", "a\tb", "a\0"] {
            assert!(secret(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn listen_address_parse_expects_host_and_port() {
        for (text, expected) in [
            ("127.0.0.1:6380", Ok("127.0.0.1:6380")),
            (":6380", Ok("[::]:6380")),
            ("[::1]:0", Ok("[::1]:0")),
            ("localhost:7000", Ok("localhost:7000")),
            ("6380", Err("expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`")),
            ("localhost", Err("expected ADDRESS:PORT, such as `localhost:6380`")),
            ("off", Err("expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`")),
            ("127.0.0.1:99999", Err("expected a port from 0 to 65535")),
            ("127.0.0.1:http", Err("expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`")),
            ("127.0.0:1", Err("expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`")),
            ("::1:6380", Err("expected brackets around an IPv6 address, as in `[::1]:6380`")),
            ("", Err("expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`")),
        ] {
            let found = parse_listen_address(text, 6380).map(|address| address.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
        }
        let http = optional_listener(Some(SocketAddr::from(([127, 0, 0, 1], 8080))));
        assert!(http("OFF").unwrap().0.is_none());
        assert_eq!(
            http("here").unwrap_err(),
            "expected ADDRESS:PORT, such as `here:8080`, or `off`"
        );
        let address = parse_listen_address("localhost:7000", 6380).unwrap();
        assert!(address.resolve().unwrap().ip().is_loopback());
    }

    #[test]
    fn closest_finds_misspellings() {
        let known = ["max-memory", "max-clients", "listen"];
        for (word, expected) in [
            ("max_memory", Some("max-memory")),
            ("maxmemory", Some("max-memory")),
            ("lisen", Some("listen")),
            ("lsiten", Some("listen")),
            ("frobnicate", None),
            ("x", None),
        ] {
            assert_eq!(closest(word, known), expected, "{word}");
        }
    }
}
