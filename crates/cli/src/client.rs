//! A client of a server, by hand: one connection, no async.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use sluicegate_core::Decision;
use sluicegate_resp::{Value, decode, encode_command};

use crate::arguments::{Address, Password};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Client {
    address: Address,
    stream: TcpStream,
    /// What was received; the first `read` bytes have been made sense of.
    received: Vec<u8>,
    read: usize,
}

impl Client {
    pub(crate) fn connect(address: &Address, password: &Password) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(&address.0).map_err(|error| {
            anyhow!("no server at {}: {error}; `sluicegate serve` starts one", address.0)
        })?;
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)))?;
        let mut client = Self { address: address.clone(), stream, received: Vec::new(), read: 0 };
        if let Some(password) = &password.text {
            client.call(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(client)
    }

    /// One command and its reply. An error reply is an error.
    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> anyhow::Result<Value> {
        let mut command = Vec::new();
        encode_command(arguments, &mut command);
        self.send(&command)?;
        self.receive()
    }

    /// Sends commands.
    pub(crate) fn send(&mut self, commands: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(commands).map_err(|error| self.lost(&error))
    }

    /// The next reply. An error reply is an error.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Value> {
        loop {
            let decoded = decode(&self.received[self.read..])
                .with_context(|| format!("the server at {} does not speak RESP", self.address.0))?;
            if let Some((value, length)) = decoded {
                self.read += length;
                return match value {
                    Value::Error(text) => Err(anyhow!("{}", text.escape_ascii())),
                    value => Ok(value),
                };
            }
            self.received.drain(..self.read);
            self.read = 0;
            let mut chunk = [0; 16 * 1024];
            let length = self.stream.read(&mut chunk).map_err(|error| self.lost(&error))?;
            if length == 0 {
                bail!("the server at {} has closed the connection", self.address.0);
            }
            self.received.extend_from_slice(&chunk[..length]);
        }
    }

    /// Not an I/O error any more: a pipe broken here is no reader of ours that has gone.
    fn lost(&self, error: &std::io::Error) -> anyhow::Error {
        anyhow!("the connection to the server at {} is lost: {error}", self.address.0)
    }
}

/// The seven integers of a decision, back from the wire.
pub(crate) fn decision(value: &Value) -> anyhow::Result<Decision> {
    decode_decision(value).ok_or_else(|| anyhow!("the server's answer is no decision: {value:?}"))
}

fn decode_decision(value: &Value) -> Option<Decision> {
    let Value::Array(values) = value else { return None };
    let integers = values.iter().map(|value| match value {
        Value::Integer(value) => Some(*value),
        _ => None,
    });
    Decision::from_integers(&integers.collect::<Option<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Policy, Timestamp, apply};

    use super::*;

    #[test]
    fn decisions_survive_the_wire() {
        let policy: Policy = "leaky-queue:1/1s:capacity=2,gcra:9/1s".parse().unwrap();
        let mut entry = None;
        for cost in [1, 1, 1, 3] {
            let decided =
                apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(cost)).unwrap();
            let wire = Value::Array(decided.to_integers().map(Value::Integer).to_vec());
            assert_eq!(decode_decision(&wire), Some(decided));
        }
        for broken in [Value::Null, Value::Array(vec![Value::Integer(1)])] {
            assert_eq!(decode_decision(&broken), None);
        }
    }
}
