//! The span of the caller, by the headers of W3C Trace Context (`traceparent`, `tracestate`).

use std::str::FromStr as _;

use hyper::{HeaderMap, header::HeaderName};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest `tracestate` that is taken over, in bytes: the length that the standard requires.
const MAX_STATE: usize = 512;

/// The span of the caller. `None` without a valid `traceparent`, or with several: the request begins a trace.
pub(super) fn read(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (trace, span, flags) = parse(value.as_bytes())?;
    let context = SpanContext::new(trace, span, flags, true, state(headers));
    context.is_valid().then_some(context)
}

/// `VERSION-TRACE-SPAN-FLAGS` in lower-case hexadecimal digits. A later version may have more after a dash.
fn parse(value: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = value.split_at_checked(55)?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_well_formed = known.iter().enumerate().all(|(index, byte)| match index {
        2 | 35 | 52 => *byte == b'-',
        _ => is_digit(byte),
    });
    let text = str::from_utf8(known).ok().filter(|_| is_well_formed)?;
    let is_version = match &text[..2] {
        "ff" => false,
        "00" => rest.is_empty(),
        _ => matches!(rest, [] | [b'-', ..]),
    };
    if !is_version {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(&text[53..], 16).ok()?) & TraceFlags::SAMPLED;
    Some((TraceId::from_hex(&text[3..35]).ok()?, SpanId::from_hex(&text[36..52]).ok()?, flags))
}

/// The `tracestate`, which may be in several headers. One that is invalid or too long is ignored.
fn state(headers: &HeaderMap) -> TraceState {
    let mut all = String::new();
    for value in headers.get_all(&TRACESTATE) {
        let Ok(value) = value.to_str() else { return TraceState::default() };
        if all.len() + value.len() >= MAX_STATE {
            return TraceState::default();
        }
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(value);
    }
    TraceState::from_str(&all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn read_valid_traceparent_is_the_parent() {
        for (value, is_sampled) in [
            (format!("00-{TRACE}-00f067aa0ba902b7-01"), true),
            (format!("00-{TRACE}-00f067aa0ba902b7-00"), false),
            (format!("00-{TRACE}-00f067aa0ba902b7-0a"), false),
            (format!("00-{TRACE}-00f067aa0ba902b7-ff"), true),
            (format!("cc-{TRACE}-00f067aa0ba902b7-01"), true),
            (format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later"), true),
        ] {
            let found = read(&headers(&[("traceparent", &value)])).unwrap();
            assert_eq!(found.trace_id().to_string(), TRACE, "{value}");
            assert_eq!(found.span_id().to_string(), "00f067aa0ba902b7", "{value}");
            assert_eq!(found.is_sampled(), is_sampled, "{value}");
            assert!(found.is_remote());
        }
    }

    #[test]
    fn read_invalid_traceparent_is_none() {
        for value in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-"),
            format!("00-{TRACE}-00f067aa0ba902b7-1"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{TRACE}-00f067aa0ba902b7-01.more"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01.more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("0-{TRACE}-00f067aa0ba902b7-001"),
            format!("00-{TRACE}-0000000000000000-01"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-00F067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902bg-01"),
            format!("00_{TRACE}_00f067aa0ba902b7_01"),
            format!("+0-{TRACE}-00f067aa0ba902b7-01"),
            "é".repeat(28),
            "0".repeat(60_000),
        ] {
            assert_eq!(read(&headers(&[("traceparent", &value)])), None, "{value}");
        }
        let valid = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let twice = headers(&[("traceparent", &valid), ("traceparent", &valid)]);
        assert_eq!(read(&twice), None);
        assert_eq!(read(&HeaderMap::new()), None);
    }

    #[test]
    fn read_tracestate_is_taken_over_if_valid_and_short() {
        let valid = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let long = format!("a={}", "x".repeat(600));
        for (states, expected) in [
            (&["a=1,b=2"][..], "a=1,b=2"),
            (&["a=1", "b=2"], "a=1,b=2"),
            (&["a"], ""),
            (&[&long], ""),
            (&["a=1", &long], ""),
        ] {
            let mut pairs = vec![("traceparent", valid.as_str())];
            pairs.extend(states.iter().map(|state| ("tracestate", *state)));
            let found = read(&headers(&pairs)).unwrap();
            assert_eq!(found.trace_state().header(), expected, "{states:?}");
        }
    }
}
