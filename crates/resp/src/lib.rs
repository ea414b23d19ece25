//! RESP2/RESP3 codec: bytes in, frames out, no sockets.
//!
//! The protocol is the [RESP specification](https://redis.io/docs/latest/develop/reference/protocol-spec/);
//! the limits and the error texts of the request side are those of Redis's `networking.c`, except
//! where a rate limiter can afford to be stricter.
//!
//! - [`Parser`]: the server's side of reading. Commands come out as slices of the read buffer.
//! - [`Writer`]: the server's side of writing, in the [`Version`] that the client has selected.
//! - [`decode`] and [`encode_command`]: the client's side, as owned [`Value`]s.
//!
//! Invariants, each tested and fuzzed:
//! - no input panics, and no declared length or count allocates: memory follows received bytes;
//! - the commands do not depend on where the network cuts the bytes;
//! - no text given to a [`Writer`] can break the framing of the reply it is in.

#[cfg(test)]
#[path = "../tests/it/check.rs"]
mod check;
mod error;
mod frame;
mod number;
mod reply;
mod request;

// For `check`, which is a part of the tests of this crate's public items too.
#[cfg(test)]
extern crate self as sluicegate_resp;

pub use error::ProtocolError;
pub use frame::{MAX_DEPTH, Value, decode, encode_command};
pub use reply::{MAX_ERROR, Version, Writer};
pub use request::{Arguments, Limits, Parser};
