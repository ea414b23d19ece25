//! Connections to a server: commands are prepared bytes, and replies are only counted.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use sluicegate_resp::{Value, decode, encode_command};

use crate::{clock::instant, keys::Random};

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, with input that is not yet parsed.
pub(crate) struct Connection {
    socket: TcpStream,
    rest: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { socket, rest: Vec::new(), buffer: vec![0; 1 << 16] })
    }

    /// Sends one command and returns the reply.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> io::Result<Value> {
        let mut bytes = Vec::new();
        encode_command(words, &mut bytes);
        self.socket.write_all(&bytes)?;
        self.receive()
    }

    /// Returns the next reply.
    pub(crate) fn receive(&mut self) -> io::Result<Value> {
        loop {
            if let Some((value, length)) = decode(&self.rest).map_err(io::Error::other)? {
                self.rest.drain(..length);
                return match value {
                    Value::Error(error) => {
                        Err(io::Error::other(String::from_utf8_lossy(&error).into_owned()))
                    }
                    value => Ok(value),
                };
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let count = self.socket.read(&mut self.buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.rest.extend_from_slice(&self.buffer[..count]);
        Ok(())
    }

    /// Sends commands.
    pub(crate) fn send(&mut self, commands: &[u8]) -> io::Result<()> {
        self.socket.write_all(commands)
    }

    /// Reads `count` replies, and discards them.
    pub(crate) fn skip(&mut self, mut count: usize) -> io::Result<()> {
        let mut at = 0;
        while count > 0 {
            match end(&self.rest, at)? {
                Some(next) => {
                    at = next;
                    count -= 1;
                }
                None => {
                    self.rest.drain(..at);
                    at = 0;
                    self.read()?;
                }
            }
        }
        self.rest.drain(..at);
        Ok(())
    }
}

/// The end of the reply that begins at `at`, if it is complete.
fn end(bytes: &[u8], mut at: usize) -> io::Result<Option<usize>> {
    let mut open = 1_u64;
    while open > 0 {
        let Some(rest) = bytes.get(at..) else { return Ok(None) };
        let Some(line) = memchr::memchr(b'\n', rest) else { return Ok(None) };
        let number = || {
            let digits = rest[1..line].strip_suffix(b"\r").unwrap_or_default();
            std::str::from_utf8(digits).ok().and_then(|it| it.parse::<i64>().ok()).unwrap_or(-1)
        };
        at += line + 1;
        open -= 1;
        match rest[0] {
            b':' | b'+' | b'_' => {}
            b'$' => {
                if let Ok(length) = usize::try_from(number()) {
                    at += length + 2;
                }
            }
            b'*' => open += u64::try_from(number()).unwrap_or(0),
            _ => {
                let excerpt = String::from_utf8_lossy(&rest[..line]);
                return Err(io::Error::other(format!("unexpected reply: {excerpt}")));
            }
        }
    }
    Ok((at <= bytes.len()).then_some(at))
}

/// A command with a variable key: sixteen bytes, the last six of which are digits.
#[derive(Clone)]
pub(super) struct Command {
    bytes: Vec<u8>,
    digits_at: usize,
}

impl Command {
    /// A command from the words before and after its key. `key` is the prefix of the key, padded to ten bytes.
    pub(super) fn new(before: &[&[u8]], key: &str, after: &[&[u8]]) -> Self {
        let key = format!("{key:_<10.10}000000");
        let mut words = before.to_vec();
        words.push(key.as_bytes());
        words.extend(after);
        let mut bytes = Vec::new();
        encode_command(&words, &mut bytes);
        let at = bytes.windows(16).position(|it| it == key.as_bytes()).unwrap_or_default();
        Self { bytes, digits_at: at + 10 }
    }

    fn set_key(bytes: &mut [u8], mut number: u64) {
        for digit in bytes.iter_mut().rev() {
            *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
        }
    }
}

/// Keeps several connections busy with batches of `pipeline` commands. Returns commands per second.
pub(super) fn load(
    address: SocketAddr,
    command: &Command,
    connections: usize,
    pipeline: usize,
    keys: u64,
    span: Span,
) -> io::Result<f64> {
    let open: io::Result<Vec<_>> = (0..connections).map(|_| Connection::new(address)).collect();
    let mut open = open?;
    let mut random = Random::new(7);
    let (mut sent, mut batch) = (0_u64, command.bytes.repeat(pipeline));
    let size = command.bytes.len();
    let mut send = |connection: &mut Connection, sent: &mut u64| {
        for bytes in batch.chunks_exact_mut(size) {
            let key = if let Span::Keys(_) = span { *sent % keys } else { random.below(keys) };
            Command::set_key(&mut bytes[command.digits_at..command.digits_at + 6], key);
            *sent += 1;
        }
        connection.socket.write_all(&batch)
    };
    let start = instant();
    for connection in &mut open {
        send(connection, &mut sent)?;
    }
    while match span {
        Span::Time(time) => start.elapsed() < time,
        Span::Keys(count) => sent < count,
    } {
        for connection in &mut open {
            connection.skip(pipeline)?;
            send(connection, &mut sent)?;
        }
    }
    for connection in &mut open {
        connection.skip(pipeline)?;
    }
    Ok(sent as f64 / start.elapsed().as_secs_f64())
}

/// Length of a load.
#[derive(Clone, Copy)]
pub(super) enum Span {
    /// Random keys for this time.
    Time(Duration),
    /// This number of commands, with the keys in order.
    Keys(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_complete_reply_is_found() {
        for reply in
            [":1\r\n", "$3\r\na\nb\r\n", "$-1\r\n", "*2\r\n$1\r\nx\r\n*1\r\n:5\r\n", "_\r\n"]
        {
            let twice = reply.repeat(2).into_bytes();
            assert_eq!(end(&twice, 0).unwrap(), Some(reply.len()), "{reply:?}");
            for cut in 0..reply.len() {
                assert_eq!(end(&twice[..cut], 0).unwrap(), None, "{reply:?} cut at {cut}");
            }
        }
        assert!(end(b"-ERR no\r\n", 0).is_err());
    }
}
