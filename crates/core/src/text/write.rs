//! Parts of the canonical policy string.

use std::fmt::{Display, Formatter, Result};

use crate::period;

/// `NAME:N/PERIOD`, the period in microseconds.
pub(crate) fn write_rate(
    formatter: &mut Formatter<'_>,
    name: &str,
    limit: u32,
    period: u64,
) -> Result {
    write!(formatter, "{name}:{limit}/{}", period::format(period))
}

/// `:OPTION`, if it is `given`.
pub(crate) fn write_option(
    formatter: &mut Formatter<'_>,
    given: bool,
    option: impl Display,
) -> Result {
    if given { write!(formatter, ":{option}") } else { Ok(()) }
}
