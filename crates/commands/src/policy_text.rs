//! The policy of a request, as its arguments give it.

use std::time::Duration;

use sluicegate_core::{Gcra, GcraName, Limit, Policy};

use crate::{
    CommandError,
    arguments::{number, span, units},
    quote::quote,
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
