//! Errors of policy strings.

/// Maximum number of limits of a policy.
pub const MAX_LIMITS: usize = 8;

/// An invalid policy string. The text names the invalid part, what is expected and, if the policy has several limits,
/// the limit (counted from 1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", if *.several { format!(" (limit {limit})") } else { String::new() })]
pub struct PolicyError {
    message: String,
    limit: usize,
    several: bool,
    offset: usize,
}

impl PolicyError {
    pub(crate) const fn new(message: String, limit: usize, offset: usize) -> Self {
        Self { message, limit, several: false, offset }
    }

    /// The error of `policy`, which is none, beside a key that is one: the two may be in the wrong order.
    #[must_use]
    pub fn swapped(key: &str, policy: &str) -> Self {
        let expected = "expected the key first, then the policy";
        let message =
            format!("invalid policy `{policy}`: the key `{key}` looks like a policy; {expected}");
        Self::new(message, 1, 0)
    }

    /// The same error in a policy that has several limits.
    pub(crate) fn among_several(self) -> Self {
        Self { several: true, ..self }
    }

    pub(crate) fn count(limits: usize) -> Self {
        Self::new(
            format!("invalid number of limits `{limits}`: expected 1 to {MAX_LIMITS}"),
            limits,
            0,
        )
    }

    /// The fault.
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
