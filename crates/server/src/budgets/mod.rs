//! What clients may take up: memory for what is buffered, and time of a worker.

pub(crate) mod buffers;
pub(crate) mod turn;
