//! Replies in the bytes of a connection.

use sluicegate_resp::decode;
use sluicegate_server::simulation::SimulatedProtocol;

use super::{
    http_reply::{self, Head},
    reply::{Reply, of_value},
};

/// A reply, and the head of the response with HTTP.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) reply: Reply,
    pub(crate) head: Option<Head>,
}

/// The first reply in `bytes`, and its length. `None`: it is incomplete.
pub(crate) fn first_of(
    bytes: &[u8],
    protocol: SimulatedProtocol,
) -> Result<Option<(Received, usize)>, String> {
    match protocol {
        // gRPC has a client of its own, which reads its responses.
        SimulatedProtocol::Grpc => Ok(None),
        SimulatedProtocol::Resp => {
            let decoded = decode(bytes).map_err(|error| error.to_string())?;
            let received = |value| Received { reply: of_value(&value), head: None };
            Ok(decoded.map(|(value, length)| (received(value), length)))
        }
        SimulatedProtocol::Http => {
            let first = http_reply::first_of(bytes)?;
            let received = |(head, reply)| Received { reply, head: Some(head) };
            Ok(first.map(|(response, length)| (received(response), length)))
        }
    }
}
