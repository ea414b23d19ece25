//! Several limits made by calls.

use super::Policy;
use crate::{
    algorithm::Limit,
    parameters::LimitError,
    text::{MAX_LIMITS, PolicyError},
};

/// Several limits on the same key. [`build`](Self::build) checks all values.
#[must_use]
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    limits: Vec<Result<Limit, LimitError>>,
}

impl PolicyBuilder {
    /// One limit, or its error.
    pub(super) fn of(limit: Result<Limit, LimitError>) -> Self {
        Self { limits: vec![limit] }
    }

    /// Adds a limit, up to 8 in all.
    pub fn and(mut self, limit: impl Into<Self>) -> Self {
        self.limits.append(&mut limit.into().limits);
        self
    }

    /// The policy.
    ///
    /// # Errors
    /// [`PolicyError`] for a value outside its domain or more than 8 limits, with the text that the parser of policies
    /// has for it.
    pub fn build(self) -> Result<Policy, PolicyError> {
        let count = self.limits.len();
        let mut limits = Vec::with_capacity(count);
        for (index, limit) in self.limits.into_iter().take(MAX_LIMITS).enumerate() {
            limits.push(limit.map_err(|error| {
                let error = PolicyError::new(error.to_string(), index + 1, 0);
                if count > 1 { error.among_several() } else { error }
            })?);
        }
        if count > MAX_LIMITS { Err(PolicyError::count(count)) } else { Policy::try_from(limits) }
    }
}
