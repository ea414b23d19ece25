//! Requests of HTTP/1.1 as load. Of a response only the status and the length are read.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use memchr::memmem;

use crate::{
    keys::KeySequence,
    load::{Exchange, Load, REPLY_TIMEOUT},
};

/// The digits of a key's number.
const DIGITS: usize = 6;

/// The bytes of a request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    /// Offset of the number of the key.
    number_at: usize,
}

impl Request {
    /// A POST with a body of JSON, in which `######` is the number of the key.
    pub(super) fn post(path: &str, body: &str) -> Self {
        let length = body.len();
        let text = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        let number_at = text.find("######").expect("the body has a number");
        Self { bytes: text.into_bytes(), number_at }
    }

    /// A proxy's request to the gate for a path in which `######` is the number of the key.
    pub(super) fn gate() -> Self {
        let text =
            "GET /v1/gate HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-Uri: /p######/x\r\n\r\n";
        let number_at = text.find("######").expect("the path has a number");
        Self { bytes: text.as_bytes().to_vec(), number_at }
    }

    fn draw(&self, bytes: &mut [u8], mut number: u64) {
        for digit in bytes[self.number_at..self.number_at + DIGITS].iter_mut().rev() {
            *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            number /= 10;
        }
    }
}

/// Sends one request, and waits for its reply.
pub(super) fn send_one(address: SocketAddr, request: &Request) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut bytes = request.bytes.clone();
    request.draw(&mut bytes, 0);
    socket.write_all(&bytes)?;
    let mut answer = Answer::default();
    let mut buffer = [0; 4096];
    loop {
        let count = socket.read(&mut buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if answer.complete(&buffer[..count])? {
            return Ok(());
        }
    }
}

/// One request at a time, and its response so far.
#[derive(Clone, Debug)]
pub(super) struct Call {
    request: Request,
    answer: Answer,
}

/// Connects; each connection has one request at a time.
pub(super) fn connect(
    address: SocketAddr,
    connections: usize,
    request: &Request,
    keys: KeySequence,
) -> io::Result<Load<Call>> {
    let call = Call { request: request.clone(), answer: Answer::default() };
    Load::connect(address, connections, &call, keys)
}

impl Exchange for Call {
    fn write(&mut self, bytes: &mut Vec<u8>, keys: &mut KeySequence) -> u64 {
        self.answer = Answer::default();
        if bytes.is_empty() {
            bytes.clone_from(&self.request.bytes);
        }
        self.request.draw(bytes, keys.next());
        1
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<u64> {
        Ok(self.answer.complete(bytes)?.into())
    }
}

/// A response so far.
#[derive(Clone, Debug, Default)]
struct Answer {
    /// The incomplete head, if it arrived in parts.
    head: Vec<u8>,
    /// Remaining bytes of the body, after the head.
    body_left: Option<usize>,
}

impl Answer {
    /// Whether these bytes complete it.
    fn complete(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if let Some(body_left) = &mut self.body_left {
            *body_left = body_left.checked_sub(bytes.len()).ok_or(io::ErrorKind::InvalidData)?;
            return Ok(*body_left == 0);
        }
        if self.head.is_empty()
            && let Some(end) = memmem::find(bytes, b"\r\n\r\n")
        {
            return self.begin(bytes, end);
        }
        self.head.extend_from_slice(bytes);
        let head = std::mem::take(&mut self.head);
        match memmem::find(&head, b"\r\n\r\n") {
            Some(end) => self.begin(&head, end),
            None => {
                self.head = head;
                Ok(false)
            }
        }
    }

    fn begin(&mut self, bytes: &[u8], end: usize) -> io::Result<bool> {
        let (head, body) = bytes.split_at(end + 4);
        let unexpected =
            || io::Error::other(format!("unexpected: {}", String::from_utf8_lossy(bytes)));
        let name = b"content-length: ";
        if !head.starts_with(b"HTTP/1.1 200 ") {
            return Err(unexpected());
        }
        let at = memmem::find(head, name).ok_or_else(unexpected)? + name.len();
        let digits = head[at..].iter().take_while(|byte| byte.is_ascii_digit());
        let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
        let body_left = length.checked_sub(body.len()).ok_or_else(unexpected)?;
        self.body_left = Some(body_left);
        Ok(body_left == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_cut_anywhere_is_complete_at_its_end() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole";
        for cut in 1..whole.len() {
            let mut answer = Answer::default();
            let (first, second) = whole.split_at(cut);
            assert!(!answer.complete(first).unwrap(), "cut at {cut}");
            assert!(answer.complete(second).unwrap(), "cut at {cut}");
        }
        assert!(Answer::default().complete(b"HTTP/1.1 429 No\r\n\r\n").is_err());
    }

    #[test]
    fn draw_sets_key_of_request() {
        let request = Request::post("/", "{######}");
        let mut bytes = request.bytes.clone();
        request.draw(&mut bytes, 1234);
        assert!(bytes.ends_with(b"\r\n\r\n{001234}"));
    }
}
