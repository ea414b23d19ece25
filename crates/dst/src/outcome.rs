//! The result of a run.

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunOutcome {
    /// The hash of all events, and their number.
    pub(crate) hash: u64,
    pub(crate) events: u64,
    /// Its duration, in milliseconds of virtual time.
    pub(crate) millis: u64,
    /// The violated property.
    pub(crate) violation: Option<String>,
}
