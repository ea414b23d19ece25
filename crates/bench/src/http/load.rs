//! The load generator: one thread that keeps many connections busy, with one request at a time on each.
//!
//! Requests are prepared bytes in which only the key changes. Of a response only the status and the length are read,
//! because a generator that does more work measures itself.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use memchr::memmem;

use crate::{
    clock::instant,
    resp::{
        command::REPLY_TIMEOUT,
        load::Sample,
        poll::{Outgoing, Poll, READ, read},
    },
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

/// Returns the number of the next key.
pub(super) type NextKey = Box<dyn FnMut() -> u64>;

/// Connections to one server.
pub(super) struct Load {
    poll: Poll,
    clients: Vec<Client>,
    request: Request,
    answered: u64,
    busy: usize,
    stopping: bool,
    ready: Vec<usize>,
    buffer: Vec<u8>,
}

struct Client {
    socket: TcpStream,
    outgoing: Outgoing,
    answer: Answer,
}

impl Load {
    pub(super) fn connect(
        address: SocketAddr,
        connections: usize,
        request: &Request,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut clients = Vec::new();
        for number in 0..connections {
            let socket = TcpStream::connect(address)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            poll.register(&socket, number)?;
            let outgoing = Outgoing::new(request.bytes.clone());
            clients.push(Client { socket, outgoing, answer: Answer::default() });
        }
        Ok(Self {
            poll,
            clients,
            request: request.clone(),
            answered: 0,
            busy: 0,
            stopping: false,
            ready: Vec::new(),
            buffer: vec![0; READ],
        })
    }

    /// Sends at least `requests` requests, and waits for all replies.
    pub(super) fn send_at_least(mut self, requests: u64, mut draw: NextKey) -> io::Result<()> {
        self.start(&mut draw)?;
        while self.answered < requests {
            self.turn(&mut draw)?;
        }
        self.stop(&mut draw)
    }

    /// Runs for `warm_up`, and then measures. `cpu` returns the server's processor time so far.
    pub(super) fn measure(
        mut self,
        warm_up: Duration,
        measured: Duration,
        mut draw: NextKey,
        cpu: impl Fn() -> io::Result<Option<f64>>,
    ) -> io::Result<Sample> {
        self.start(&mut draw)?;
        let start = instant();
        while start.elapsed() < warm_up {
            self.turn(&mut draw)?;
        }
        let (start, before, cpu_before) = (instant(), self.answered, cpu()?);
        while start.elapsed() < measured {
            self.turn(&mut draw)?;
        }
        let (seconds, cpu_after) = (start.elapsed().as_secs_f64(), cpu()?);
        let requests = (self.answered - before) as f64;
        self.stop(&mut draw)?;
        let cpu = cpu_before.zip(cpu_after).map(|(before, after)| after - before);
        Ok(Sample { requests, seconds, cpu })
    }

    fn start(&mut self, draw: &mut NextKey) -> io::Result<()> {
        (0..self.clients.len()).try_for_each(|number| self.send(number, draw))
    }

    fn stop(&mut self, draw: &mut NextKey) -> io::Result<()> {
        self.stopping = true;
        while self.busy > 0 {
            self.turn(draw)?;
        }
        Ok(())
    }

    fn send(&mut self, number: usize, draw: &mut NextKey) -> io::Result<()> {
        let client = &mut self.clients[number];
        client.answer = Answer::default();
        client.outgoing.rewind();
        self.request.draw(&mut client.outgoing.bytes, draw());
        client.outgoing.flush(&client.socket, number, &self.poll)?;
        self.busy += 1;
        Ok(())
    }

    /// Waits once, and reads from the sockets that are ready.
    fn turn(&mut self, draw: &mut NextKey) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(&mut ready, REPLY_TIMEOUT)?;
        if ready.is_empty() {
            return Err(io::Error::other(format!("no reply for {REPLY_TIMEOUT:?}")));
        }
        for &number in &ready {
            let client = &mut self.clients[number];
            if client.outgoing.waits() {
                client.outgoing.flush(&client.socket, number, &self.poll)?;
            }
            let Some(count) = read(&client.socket, &mut self.buffer)? else { continue };
            if count == 0 {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if client.answer.complete(&self.buffer[..count])? {
                self.answered += 1;
                self.busy -= 1;
                if !self.stopping {
                    self.send(number, draw)?;
                }
            }
        }
        self.ready = ready;
        Ok(())
    }
}

/// A response so far.
#[derive(Debug, Default)]
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
