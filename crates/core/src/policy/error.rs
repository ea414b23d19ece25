//! What is wrong with a policy text, and where.

/// A text that is no policy. Says which part is at fault, where it stands and what would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (limit {limit}, at byte {offset})")]
pub struct PolicyError {
    message: String,
    limit: usize,
    offset: usize,
}

impl PolicyError {
    pub(super) const fn new(message: String, limit: usize, offset: usize) -> Self {
        Self { message, limit, offset }
    }

    pub(super) fn count(limits: usize) -> Self {
        Self::new(format!("{limits} limits are outside 1..={}", super::MAX_LIMITS), limits, 0)
    }

    /// What is wrong.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Which limit of the text is at fault, counted from 1.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Where the part that is at fault begins in the text, in bytes.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }
}
