//! A secret that clients give.

use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Delay of the reply to a wrong secret, and of everything after it on the connection.
pub(crate) const GUESS_DELAY: Duration = Duration::from_millis(5);

/// A secret, stored as a digest.
#[derive(Clone, Debug)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Whether `given` is the secret. The time that it takes does not depend on how much of it is right.
    pub(crate) fn matches(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

#[cfg(test)]
mod tests;
