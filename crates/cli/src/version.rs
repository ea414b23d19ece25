//! `version`: which program this is.

use std::io::{self, Write as _};

pub(crate) fn print() -> io::Result<()> {
    writeln!(
        io::stdout(),
        "sluicegate {}\ncommit      {}\ndate        {}\ntarget      {}",
        env!("CARGO_PKG_VERSION"),
        env!("BUILD_COMMIT"),
        env!("BUILD_DATE"),
        env!("BUILD_TARGET"),
    )
}
