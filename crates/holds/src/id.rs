//! Ids of holds.

use std::{
    hash::{BuildHasher, RandomState},
    ops::Deref,
};

/// The id of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldId {
    /// One that no other hold has.
    Random([u8; 16]),
    /// One that another hold may have, too: a repeated request.
    Given(Box<[u8]>),
}

impl HoldId {
    /// An id of 128 random bits.
    #[must_use]
    pub fn random() -> Self {
        // Each `RandomState` has keys of its own, the first ones of a thread from the operating system.
        let random = RandomState::new();
        let [first, second] = [0_u8, 1].map(|half| u128::from(random.hash_one(half)));
        Self::Random((first << 64 | second).to_ne_bytes())
    }

    /// The id `id`.
    #[must_use]
    pub fn given(id: &[u8]) -> Self {
        Self::Given(id.into())
    }
}

impl Deref for HoldId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Random(id) => id,
            Self::Given(id) => id,
        }
    }
}
