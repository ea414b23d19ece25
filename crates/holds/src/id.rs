//! Ids of holds.

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
    ops::Deref,
    process,
};

thread_local! {
    static NEXT: Cell<u128> = Cell::new(first(random_bits(0_u32)));
}

/// The id with the number 0.
fn first(bits: u64) -> u128 {
    u128::from(bits) << 64
}

/// Random bits of a thread, or of a child. The keys of a `RandomState` are random, the first ones of a thread from the operating
/// system. A child continues with those of its parent, and therefore hashes its own number.
fn random_bits(child: u32) -> u64 {
    RandomState::new().hash_one(child)
}

/// The id of a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldId {
    /// One that no other hold has.
    Random([u8; 16]),
    /// One that another hold may have, too: a repeated request.
    Given(Box<[u8]>),
}

impl HoldId {
    /// An id that is unique: 64 random bits of this thread, and the number of the id. A process that has forked must call
    /// [`reseed`](Self::reseed) in the child.
    #[must_use]
    pub fn random() -> Self {
        let id = NEXT.get();
        NEXT.set(id.wrapping_add(1));
        // The last byte differs from one id to the next: stores compare it first.
        Self::Random(id.to_be_bytes())
    }

    /// Sets new random bits for the ids of this thread, which after a fork has those of its parent.
    pub fn reseed() {
        Self::seed(random_bits(process::id()));
    }

    /// Sets the random bits of the ids of this thread: for a simulation, whose equal runs have equal ids.
    pub fn seed(bits: u64) {
        NEXT.set(first(bits));
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
