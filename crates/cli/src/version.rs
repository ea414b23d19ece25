//! `version`: which program this is.

use std::io::{self, Write as _};

use crate::output::output;

pub(crate) fn print() -> io::Result<()> {
    writeln!(
        output(),
        "sluicegate {}\ncommit      {}\ndate        {}\ntarget      {}",
        env!("CARGO_PKG_VERSION"),
        env!("BUILD_COMMIT"),
        env!("BUILD_DATE"),
        env!("BUILD_TARGET"),
    )
}
