//! Domains of parameters, and the errors for values outside of them.

use std::time::Duration;

use crate::{period, spelling::quoted, time::as_micros};

const MIN_PERIOD: u64 = 1_000;
const MAX_PERIOD: u64 = 366 * 86_400_000_000;

/// A parameter outside its domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A value is out of bounds.
    #[error("invalid {name} `{value}`: expected {domain}")]
    Domain {
        /// Which parameter.
        name: &'static str,
        /// Its value, as a policy would write it.
        value: String,
        /// The valid values.
        domain: &'static str,
    },
    /// A full state would take too long to drain.
    #[error(
        "invalid {name} `{value}`: expected one that drains within 35 years; use a lower {name}, a \
         higher limit or a shorter period"
    )]
    Drain {
        /// Which parameter.
        name: &'static str,
        /// Its value.
        value: u32,
    },
    /// A time zone that the bundled database does not know.
    #[error("unknown time zone {}: expected an IANA name, such as `Asia/Shanghai`", quoted(.0))]
    Zone(String),
    /// An option that does not go with the others.
    #[error("{0}")]
    Combination(&'static str),
}

/// `value` as a limit `N`.
pub(crate) fn check_units(name: &'static str, value: u32) -> Result<u32, LimitError> {
    if value == 0 {
        let domain = match name {
            "limit" => "1 to 4294967295; to block all requests, use a rule with `block: true`",
            _ => "1 to 4294967295",
        };
        return Err(LimitError::Domain { name, value: value.to_string(), domain });
    }
    Ok(value)
}

/// Whether a period may have that many microseconds.
pub(crate) const fn is_period(micros: u64) -> bool {
    MIN_PERIOD <= micros && micros <= MAX_PERIOD
}

/// `span` as a period in microseconds.
pub(crate) fn check_period(name: &'static str, span: Duration) -> Result<u64, LimitError> {
    let micros = as_micros(span);
    if is_period(micros) {
        Ok(micros)
    } else {
        let value = period::format(micros);
        Err(LimitError::Domain { name, value, domain: "1ms to 366d" })
    }
}
