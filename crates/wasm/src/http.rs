//! Headers, problem documents, and the addresses of clients.

use std::{fmt::Write as _, net::IpAddr};

use sluicegate_headers::{
    AddressList, HeaderStyle, Network, ProblemType, RateLimitHeaders, retry_after,
};

use crate::{
    exchange::{ALLOWED, DENIED, Status, exported, with},
    policies::{self, utf8},
};

exported! {
    /// Sets the text to the headers of a response about the decision in the numbers, each as a line `name: value`. The name of the
    /// policy is in the input. `style` 0 is that of the IETF, 1 that of `X-RateLimit-*`.
    pub fn headers(policy: usize, name_length: usize, style: u32) {
        policies::with(|exchange, policies| {
            let Some(decision) = exchange.decision() else { return };
            let name = utf8(&exchange.input[..name_length]);
            let fields = RateLimitHeaders::new(&name, policies[policy].prepared.policy());
            let style = if style == 0 { HeaderStyle::Ietf } else { HeaderStyle::XRateLimit };
            let text = &mut exchange.text;
            text.clear();
            fields.write(style, &decision, |name, value| {
                let value = String::from_utf8_lossy(value.as_bytes());
                writeln!(text, "{name}: {value}").expect("a string takes any text");
            });
            if let Some(seconds) = retry_after(&decision) {
                writeln!(text, "retry-after: {seconds}").expect("a string takes any text");
            }
        });
    }

    /// Sets the text to the problem document of the denial in the numbers, under the name in the input.
    pub fn problem(policy: usize, name_length: usize) {
        policies::with(|exchange, policies| {
            let Some(decision) = exchange.decision() else { return };
            let name = utf8(&exchange.input[..name_length]);
            let fields = RateLimitHeaders::new(&name, policies[policy].prepared.policy());
            exchange.say(sluicegate_headers::problem(&fields, &decision));
        });
    }

    /// Sets the text to the problem document of a request without a decision.
    pub fn unavailable_problem() {
        with(|it| it.say(ProblemType::ReducedCapacity.json()));
    }

    /// Sets the text to the network of the client behind `hops` trusted proxies: from the lines of `X-Forwarded-For`, or of `Forwarded`,
    /// at the start of the input; without an address there, that of the peer, which follows them. Whether there is one.
    pub fn client_network(lines_length: usize, peer_length: usize, hops: usize, forwarded: u32, v4_prefix: u32, v6_prefix: u32) -> Status {
        with(|it| {
            let (lines, rest) = it.input.split_at(lines_length);
            let peer = utf8(&rest[..peer_length]);
            let list = if forwarded == 0 { AddressList::XForwardedFor } else { AddressList::Forwarded };
            let lines: Vec<_> = lines.split(|byte| *byte == b'\n').collect();
            let address = list.client(lines, hops).or_else(|| {
                // Without the zone of a link-local address, which is no part of it.
                peer.split('%').next()?.parse::<IpAddr>().ok().map(|it| it.to_canonical())
            });
            let Some(address) = address else { return DENIED };
            let bits = |prefix: u32| u8::try_from(prefix).unwrap_or(u8::MAX);
            it.say(Network::of(address, bits(v4_prefix), bits(v6_prefix)));
            ALLOWED
        })
    }
}
