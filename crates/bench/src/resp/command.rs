//! The commands of the load, and the reply to the first one.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use sluicegate_resp::{Value, decode, encode_command};

use crate::load::REPLY_TIMEOUT;

/// The number in a key, in decimal, in two parts of three digits.
const DIGITS: usize = 6;

/// The bytes of a command with a key of sixteen bytes.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    bytes: Vec<u8>,
    /// Offset of the number of the key.
    number_at: usize,
    /// `000` to `999`.
    triples: Vec<[u8; 3]>,
    /// First byte of each reply, which occurs nowhere else in it.
    pub(crate) mark: u8,
}

impl Command {
    /// A command from its words. The second word is the prefix of the key, ten bytes long.
    pub(crate) fn new(words: &[&str]) -> Self {
        let arguments: Vec<_> = words.iter().map(|it| it.as_bytes()).collect();
        Self::with_key_at(1, &arguments)
    }

    /// A command from its words. The word at `index` is the prefix of the key, ten bytes long.
    pub(crate) fn with_key_at(index: usize, words: &[&[u8]]) -> Self {
        let key = [words[index], &[b'0'; DIGITS]].concat();
        assert_eq!(key.len(), 16, "the key has 16 bytes");
        let mut arguments = words.to_vec();
        arguments[index] = &key;
        let mut bytes = Vec::new();
        encode_command(&arguments, &mut bytes);
        let key_at = bytes.windows(16).position(|it| it == key);
        let number_at = key_at.expect("the key was just written") + 16 - DIGITS;
        let digit = |number: u8| b'0' + number % 10;
        let triples = (0..100_u8)
            .flat_map(|high| (0..10).map(move |low| [digit(high / 10), digit(high), digit(low)]))
            .collect();
        Self { bytes, number_at, triples, mark: b'*' }
    }

    /// The same command, if its reply is a simple string.
    pub(crate) fn with_simple_reply(self) -> Self {
        Self { mark: b'+', ..self }
    }

    /// `count` copies of the command.
    pub(crate) fn batch(&self, count: usize) -> Vec<u8> {
        self.bytes.repeat(count)
    }

    /// Sets the key of each command of a batch to the number that `draw` returns.
    #[inline]
    pub(crate) fn draw(&self, batch: &mut [u8], mut draw: impl FnMut() -> u64) {
        for command in batch.chunks_exact_mut(self.bytes.len()) {
            let number = usize::try_from(draw()).unwrap_or(0);
            let digits = &mut command[self.number_at..self.number_at + DIGITS];
            digits[..3].copy_from_slice(&self.triples[number / 1000 % 1000]);
            digits[3..].copy_from_slice(&self.triples[number % 1000]);
        }
    }

    /// Sends one command, and returns the integers of the reply.
    pub(crate) fn call(&self, address: SocketAddr) -> io::Result<Vec<i64>> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
        let mut command = self.bytes.clone();
        self.draw(&mut command, || 0);
        socket.write_all(&command)?;
        let mut reply = Vec::new();
        let mut buffer = [0; 1024];
        loop {
            let count = socket.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            reply.extend_from_slice(&buffer[..count]);
            if let Some((value, _)) = decode(&reply).map_err(io::Error::other)? {
                let wrong = || {
                    io::Error::other(format!("the reply is not an array of integers: {value:?}"))
                };
                if let (Value::Simple(_), b'+') = (&value, self.mark) {
                    return Ok(Vec::new());
                }
                let Value::Array(items) = &value else { return Err(wrong()) };
                let integer = |item: &Value| match item {
                    Value::Integer(number) => Some(*number),
                    _ => None,
                };
                return items.iter().map(integer).collect::<Option<_>>().ok_or_else(wrong);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySequence;

    #[test]
    fn draw_sets_key_of_each_command() {
        let command = Command::new(&["GO", "ten bytes!", "1"]);
        let mut batch = command.batch(2);
        let mut draw = KeySequence::InOrder(123_456);
        command.draw(&mut batch, || draw.next());
        let sent = "*3\r\n$2\r\nGO\r\n$16\r\nten bytes!123456\r\n$1\r\n1\r\n";
        let next = sent.replace("123456", "123457");
        assert_eq!(String::from_utf8_lossy(&batch), format!("{sent}{next}"));
    }
}
