//! What spares the store questions, and what answers while it is away.

pub(crate) mod known;
pub(crate) mod lease;
pub(crate) mod local;
pub(crate) mod sync;
