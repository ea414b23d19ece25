//! A client of HTTP/2 that sends arbitrary frames, and tracks flow control.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::TcpStream,
};

use super::client::Client;
use crate::harness::Running;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Settings that are empty.
pub(super) const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;

/// The initial windows of a stream, by the settings of the server, and of a connection.
const WINDOW: i64 = 64 * 1024;
const CONNECTION_WINDOW: i64 = 65_535;

/// Maximum number of bytes of a body that are sent; a body of this length is valid.
const BODY: usize = 1_000_000;

/// A frame of HTTP/2.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// The head of a GET, by the static table of HPACK and plain texts.
pub(super) fn head(path: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x86];
    field(&mut head, &[0x04], path);
    field(&mut head, &[0x41], "localhost");
    head
}

/// The head of a POST of JSON.
pub(super) fn post(path: &str) -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    field(&mut head, &[0x04], path);
    field(&mut head, &[0x41], "localhost");
    field(&mut head, &[0x0f, 0x10], "application/json");
    head
}

fn field(head: &mut Vec<u8>, name: &[u8], value: &str) {
    head.extend_from_slice(name);
    head.push(u8::try_from(value.len()).unwrap());
    head.extend_from_slice(value.as_bytes());
}

/// The state of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    window: i64,
    sent: usize,
    pub(super) data: usize,
    pub(super) answered: bool,
    pub(super) ended: bool,
    pub(super) reset: bool,
}

impl Stream {
    /// Whether nothing more comes on it.
    pub(super) const fn is_over(&self) -> bool {
        self.ended || self.reset
    }
}

/// A connection.
pub(super) struct Frames {
    pub(super) stream: TcpStream,
    window: i64,
    pub(super) streams: HashMap<u32, Stream>,
    received: Vec<u8>,
    pub(super) is_closed: bool,
}

impl Frames {
    /// Connects, with these settings.
    pub(super) fn connect(server: &Running, settings: &[(u16, u32)]) -> Self {
        let mut stream = Client::connect(server).stream;
        let mut body = Vec::new();
        for (name, value) in settings {
            body.extend_from_slice(&name.to_be_bytes());
            body.extend_from_slice(&value.to_be_bytes());
        }
        stream.write_all(&[PREFACE, &frame(4, 0, 0, &body)].concat()).unwrap();
        let streams = HashMap::new();
        Self { stream, window: CONNECTION_WINDOW, streams, received: Vec::new(), is_closed: false }
    }

    /// Begins a request whose head is this; `ends`: it has no body.
    pub(super) fn request(&mut self, id: u32, head: &[u8], ends: bool) {
        self.streams.insert(id, Stream { window: WINDOW, ..Stream::default() });
        self.send(&frame(HEADERS, if ends { 5 } else { 4 }, id, head));
    }

    /// Sends bytes as they are, as long as the server takes them.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.is_closed |= self.stream.write_all(bytes).is_err();
    }

    /// Sends bytes of a body, as far as flow control allows, and returns their number.
    pub(super) fn data(&mut self, id: u32, most: usize) -> usize {
        let Some(stream) = self.streams.get_mut(&id).filter(|it| !it.ended && !it.reset) else {
            return 0;
        };
        let may = stream.window.min(self.window).clamp(0, 16_384);
        let count = most.min(usize::try_from(may).unwrap()).min(BODY - stream.sent);
        if count > 0 {
            let sent = i64::try_from(count).unwrap();
            stream.window -= sent;
            stream.sent += count;
            self.window -= sent;
            self.send(&frame(DATA, 0, id, &vec![b' '; count]));
        }
        count
    }

    /// Reads available bytes, without waiting.
    pub(super) fn read(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let mut chunk = [0; 65_536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.is_closed = true,
                Ok(count) => {
                    self.received.extend_from_slice(&chunk[..count]);
                    continue;
                }
                Err(error) => self.is_closed |= error.kind() != io::ErrorKind::WouldBlock,
            }
            break;
        }
        self.stream.set_nonblocking(false).unwrap();
        while let Some(head) = self.received.first_chunk::<9>() {
            let [high, middle, low, kind, flags, id @ ..] = *head;
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if self.received.len() < 9 + length {
                break;
            }
            let frame: Vec<_> = self.received.drain(..9 + length).collect();
            self.note(kind, flags, u32::from_be_bytes(id), &frame[9..]);
        }
    }

    fn note(&mut self, kind: u8, flags: u8, id: u32, body: &[u8]) {
        let of_connection = id == 0;
        let stream = self.streams.entry(id).or_default();
        match kind {
            WINDOW_UPDATE => {
                let more = i64::from(u32::from_be_bytes(body.try_into().unwrap()));
                *if of_connection { &mut self.window } else { &mut stream.window } += more;
            }
            GOAWAY => self.is_closed = true,
            RST_STREAM => stream.reset = true,
            HEADERS => stream.answered = true,
            DATA => stream.data += body.len(),
            _ => return,
        }
        stream.ended |= matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
    }
}
