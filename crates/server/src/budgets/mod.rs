//! Limits on the resources of clients: buffered bytes, and time of a worker.

pub(crate) mod buffers;
pub(crate) mod turn;
