//! Exit statuses of the program.

/// Exit status of a command whose request was denied.
pub(crate) const DENIED: u8 = 1;
/// Exit status of `health` if the server is not ready, or does not answer.
pub(crate) const NOT_READY: u8 = 1;
/// Exit status of a command that failed.
pub(crate) const FAILED: u8 = 2;
