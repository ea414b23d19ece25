//! Calls as load: several at a time on each connection, like instances of Envoy.

use std::{io, net::SocketAddr};

use prost::Message as _;
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    rls::RateLimitRequest,
};

use super::frames::{Answers, call, preface};
use crate::{
    keys::KeySequence,
    load::{Exchange, Load},
};

/// Digits of a user's number.
const DIGITS: usize = 7;

/// The calls of a connection.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    /// An encoded call, and the offset of the user in it.
    message: Vec<u8>,
    user: usize,
    /// Number of concurrent calls.
    count: u64,
    answers: Answers,
    /// The stream of the last call; 0 before the first.
    stream: u32,
}

/// Connects; each connection makes `count` concurrent calls.
pub(super) fn connect(
    address: SocketAddr,
    connections: usize,
    count: u64,
    users: KeySequence,
) -> io::Result<Load<Calls>> {
    let (message, user) = message();
    let calls = Calls { message, user, count, answers: Answers::default(), stream: 0 };
    Load::connect(address, connections, &calls, users)
}

impl Exchange for Calls {
    fn write(&mut self, bytes: &mut Vec<u8>, users: &mut KeySequence) -> u64 {
        bytes.clear();
        if self.stream == 0 {
            *bytes = preface();
        }
        for _ in 0..self.count {
            let user = format!("{:0DIGITS$}", users.next());
            self.message[self.user..self.user + DIGITS].copy_from_slice(user.as_bytes());
            let first = self.stream == 0;
            self.stream = if first { 1 } else { self.stream + 2 };
            call(self.stream, &self.message, first, bytes);
        }
        self.count
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let before = self.answers.ended;
        self.answers.read(bytes)?;
        // A call that fails has no message.
        if self.answers.messages < self.answers.ended {
            return Err(io::Error::other("a call has failed"));
        }
        Ok(self.answers.ended - before)
    }
}

/// A call with a descriptor for a user and one for a path, and the offset of the user.
fn message() -> (Vec<u8>, usize) {
    let descriptor = |entries: &[(&str, &str)]| RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|&(key, value)| Entry { key: key.to_owned(), value: value.to_owned() })
            .collect(),
        ..RateLimitDescriptor::default()
    };
    let user = "#".repeat(DIGITS);
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![
            descriptor(&[("plan", "free"), ("user", &user)]),
            descriptor(&[("method", "GET"), ("path", "/v1/items")]),
        ],
        hits_addend: 0,
    };
    let bytes = request.encode_to_vec();
    let at = bytes.windows(DIGITS).position(|it| it == user.as_bytes());
    (bytes, at.expect("the message contains the user"))
}
