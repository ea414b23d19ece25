//! A client of a server: one connection, no async.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{anyhow, bail};
use sluicegate_commands::plain_error;
use sluicegate_core::Decision;
use sluicegate_resp::{Value, decode, encode_command};

use crate::connection::{Address, Password};

/// Time limit of a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Client {
    address: Address,
    stream: TcpStream,
    /// Received bytes; the first `read` of them are decoded.
    received: Vec<u8>,
    read: usize,
}

impl Client {
    pub(crate) fn connect(address: &Address, password: &Password) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(&address.0).map_err(|error| {
            let (address, reason) = (&address.0, plain_error(&error));
            anyhow!("the server at {address} is unavailable: {reason}; start one with `sluicegate serve`")
        })?;
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(REPLY_TIMEOUT)))?;
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
            let decoded = decode(&self.received[self.read..]).map_err(|_| {
                anyhow!(
                    "the server at {} does not speak RESP: expected the address of `serve --listen`",
                    self.address.0
                )
            })?;
            if let Some((value, length)) = decoded {
                self.read += length;
                return match value {
                    Value::Error(text) => Err(refusal(&self.address, &text)),
                    value => Ok(value),
                };
            }
            self.received.drain(..self.read);
            self.read = 0;
            let mut chunk = [0; 16 * 1024];
            let length = self.stream.read(&mut chunk).map_err(|error| self.lost(&error))?;
            if length == 0 {
                bail!("the server at {} closed the connection", self.address.0);
            }
            self.received.extend_from_slice(&chunk[..length]);
        }
    }

    fn lost(&self, error: &std::io::Error) -> anyhow::Error {
        let reason = plain_error(error);
        anyhow!("the server at {} is unavailable: {reason}", self.address.0)
    }
}

/// An error reply, without the class word, which is for programs.
fn refusal(address: &Address, text: &[u8]) -> anyhow::Error {
    let printable = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    let text: String = String::from_utf8_lossy(text).chars().map(printable).collect();
    let address = &address.0;
    let (class, message) = text.split_once(' ').unwrap_or(("", &text));
    if message.starts_with("unknown command") && class == "ERR" {
        return anyhow!(
            "the server at {address} is not a Sluicegate server, and has no Sluicegate module: expected \
             the address of `sluicegate serve`, or a Redis or Valkey with the module"
        );
    }
    match class {
        "NOAUTH" => {
            anyhow!(
                "the server at {address} requires a password: use --password or SLUICEGATE_PASSWORD"
            )
        }
        "ERR"
            if message.contains("no password is set")
                || message.contains("without any password") =>
        {
            anyhow!(
                "invalid password: the server at {address} has none; remove --password or SLUICEGATE_PASSWORD"
            )
        }
        "WRONGPASS" => anyhow!("invalid password: the server at {address} rejected it"),
        "ERR" if message.contains("--test-clock") => anyhow!(
            "the server at {address} does not accept times: start it with `sluicegate serve --test-clock`"
        ),
        "ERR" => anyhow!("{message}"),
        class if class.starts_with("SG") => anyhow!("{message}"),
        _ => anyhow!("{text}"),
    }
}

/// The seven integers of a decision, back from the wire.
pub(crate) fn decision(value: &Value) -> anyhow::Result<Decision> {
    decode_decision(value)
        .ok_or_else(|| anyhow!("invalid reply of the server: expected a decision"))
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
    fn refusal_explains_error_replies() {
        let address = Address("h:1".to_owned());
        for (text, expected) in [
            ("SGPOLICY unknown policy `x`", "unknown policy `x`"),
            ("ERR it's wrong\r\n", "it's wrong\u{fffd}\u{fffd}"),
            (
                "NOAUTH x",
                "the server at h:1 requires a password: use --password or SLUICEGATE_PASSWORD",
            ),
            ("WRONGPASS x", "invalid password: the server at h:1 rejected it"),
            (
                "ERR Client sent AUTH, but no password is set",
                "invalid password: the server at h:1 has none; remove --password or SLUICEGATE_PASSWORD",
            ),
            ("LOADING it loads", "LOADING it loads"),
            (
                "ERR unknown command 'SG.TAKE', with args beginning with: 'a' 'gcra:1/1s' ",
                "the server at h:1 is not a Sluicegate server, and has no Sluicegate module: expected the \
                 address of `sluicegate serve`, or a Redis or Valkey with the module",
            ),
        ] {
            assert_eq!(refusal(&address, text.as_bytes()).to_string(), expected);
        }
    }

    #[test]
    fn decode_decision_reads_its_integers() {
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
