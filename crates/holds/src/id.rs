//! Ids of holds.

use std::{
    cell::Cell,
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
    /// An id that is unique: 64 random bits of this thread, and the number of the id.
    #[must_use]
    pub fn random() -> Self {
        thread_local! {
            // The keys of a `RandomState` are random, the first ones of a thread from the operating system.
            static NEXT: Cell<u128> = Cell::new(u128::from(RandomState::new().hash_one(0_u8)) << 64);
        }
        let id = NEXT.get();
        NEXT.set(id.wrapping_add(1));
        // The last byte differs from one id to the next: stores compare it first.
        Self::Random(id.to_be_bytes())
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
