//! Standard output, standard error and exit statuses.

use std::{
    error::Error,
    fmt,
    io::{self, ErrorKind, Stdout, Write},
};

use sluicegate_commands::plain_error;
use sluicegate_core::human::printable;

/// Standard output with errors that name it, because the errors of a socket or a file have the same kinds.
#[derive(Debug)]
pub(crate) struct Output(Stdout);

pub(crate) fn output() -> Output {
    Output(io::stdout())
}

/// Prints lines on standard error, which may be closed. They may quote what others have written.
pub(crate) fn report(lines: impl fmt::Display) {
    for line in lines.to_string().split('\n') {
        let _ = writeln!(io::stderr(), "{}", printable(line));
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Whether the reader of standard output has closed it.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| {
        cause.kind() == ErrorKind::BrokenPipe && cause.get_ref().is_some_and(|it| it.is::<Failed>())
    })
}

fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), Failed(error))
}

/// A failed write.
#[derive(Debug)]
struct Failed(io::Error);

impl fmt::Display for Failed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot write to standard output: {}", plain_error(&self.0))
    }
}

impl Error for Failed {}

/// Exit status of a command whose request was denied.
pub(crate) const DENIED: u8 = 1;
/// Exit status of `health` if the server is not ready, or does not answer.
pub(crate) const NOT_READY: u8 = 1;
/// Exit status of a command that failed.
pub(crate) const FAILED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// The socket of `health`, for example.
    #[test]
    fn is_closed_of_another_broken_pipe_is_false() {
        let error = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(!is_closed(&error().into()));
        assert!(!is_closed(&anyhow::Error::from(error()).context("the server")));
        assert!(is_closed(&named(error()).into()));
        assert!(!is_closed(&named(ErrorKind::StorageFull.into()).into()));
    }
}
