//! Functions for the middleware of web frameworks: the network of a client, and the body of a rejection.

use std::net::IpAddr;

use pyo3::prelude::*;
use sluicegate_headers::{AddressList, Network, ProblemType};

/// The network of the client behind `trusted_hops` proxies, from all `lines` of `X-Forwarded-For`, or of `Forwarded`;
/// without an address there, that of the peer. `None` if that is not an address either, such as a Unix socket.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments of Python are owned")]
pub(crate) fn client_network(
    lines: Vec<Vec<u8>>,
    trusted_hops: usize,
    forwarded: bool,
    peer: Option<&str>,
    v4_prefix: u8,
    v6_prefix: u8,
) -> Option<String> {
    let list = if forwarded { AddressList::Forwarded } else { AddressList::XForwardedFor };
    let client = list.client(lines.iter().map(Vec::as_slice), trusted_hops);
    let address = client.or_else(|| {
        // With the zone of a link-local address, which is no part of it.
        let peer = peer?.split('%').next()?;
        peer.parse::<IpAddr>().ok().map(|it| it.to_canonical())
    })?;
    Some(Network::of(address, v4_prefix, v6_prefix).to_string())
}

/// The problem document (RFC 9457) of a request without a decision, as JSON: the body of a response with status 503.
#[pyfunction]
pub(crate) fn unavailable_problem() -> String {
    ProblemType::ReducedCapacity.json()
}
