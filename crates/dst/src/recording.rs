//! The content of a picture of a run.

/// The answers of a run, and the units that keys admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recording {
    pub(crate) marks: Vec<Mark>,
    pub(crate) keys: Vec<AdmittedByKey>,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// In milliseconds since the start.
    pub(crate) at: u64,
    pub(crate) process: usize,
    pub(crate) kind: MarkKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    Allowed,
    Denied,
    /// Allowed or denied by a fallback.
    Fallback,
    Error,
}

/// The units that a key admitted beyond its rate, against its bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdmittedByKey {
    pub(crate) name: String,
    pub(crate) policy: String,
    pub(crate) burst: u64,
    /// Units that it may admit beyond its rate, from a millisecond on: the burst, and the allowances for faults.
    pub(crate) bounds: Vec<(u64, u64)>,
    /// Milliseconds, and hundredths of units.
    pub(crate) levels: Vec<(u64, u64)>,
}
