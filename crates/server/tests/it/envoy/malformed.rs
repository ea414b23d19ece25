//! Malformed calls: in the message, in its frame, in the HTTP/2 frames around it.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use prost::Message as _;

use super::client::{Service, limited, request};
use crate::harness::{Random, size};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Calls that are sent before their responses are read.
const BATCH: usize = 50;

/// `:method POST`, `:scheme http`, `:path`, `:authority`, `content-type` and `te`, none of them kept.
fn fields() -> Vec<u8> {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let mut fields = vec![0x83, 0x86];
    for (name, value) in [(&b"\x04"[..], path), (b"\x01", "x"), (b"\x0f\x10", "application/grpc")] {
        fields.extend_from_slice(name);
        fields.push(u8::try_from(value.len()).unwrap());
        fields.extend_from_slice(value.as_bytes());
    }
    fields.extend_from_slice(b"\x00\x02te\x08trailers");
    fields
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = u32::try_from(body.len()).unwrap().to_be_bytes();
    let head = [high, middle, low, kind, flags];
    [&head[..], &stream.to_be_bytes(), body].concat()
}

/// A message after its header of five bytes.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// The results of calls.
#[derive(Debug, Default)]
struct Outcomes {
    answered: usize,
    failed: usize,
    reset: usize,
    /// Connections on which the HTTP/2 frames were broken.
    connections: usize,
}

/// A connection for malformed input.
struct Raw {
    stream: TcpStream,
    /// The stream of the last call.
    last: u32,
}

impl Raw {
    fn connect(service: &Service) -> Self {
        let mut stream = TcpStream::connect(service.server.grpc.unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let greeting = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, &[])[..]];
        stream.write_all(&greeting.concat()).unwrap();
        Self { stream, last: 0 }
    }

    /// The bytes of a call with `body`.
    fn call(&mut self, body: &[u8]) -> Vec<u8> {
        self.last = if self.last == 0 { 1 } else { self.last + 2 };
        let headers = frame(HEADERS, END_HEADERS, self.last, &fields());
        [headers, frame(DATA, END_STREAM, self.last, body)].concat()
    }

    /// Sends bytes and a ping, and reads until the reply to the ping arrives: then all earlier requests have at least
    /// begun. `false`: the connection was ended.
    fn send(&mut self, bytes: &[u8], outcomes: &mut Outcomes) -> bool {
        let ping = frame(PING, 0, 0, b"are you?");
        self.stream.write_all(&[bytes, &ping].concat()).is_ok() && self.read_until_ping(outcomes)
    }

    /// Sends bytes, ends this direction, and reads until the server has ended the other one. A frame whose length
    /// exceeds what follows makes a server wait for the rest: a ping would get no reply.
    fn send_and_end(mut self, bytes: &[u8], outcomes: &mut Outcomes) {
        let sent =
            self.stream.write_all(bytes).and_then(|()| self.stream.shutdown(Shutdown::Write));
        if sent.is_ok() {
            // The server may have ended the connection before all was sent: then reading fails with a reset.
            while self.read_until_ping(outcomes) {}
        }
    }

    /// Reads frames until the reply to a ping (`true`) or the end of the connection (`false`).
    ///
    /// # Panics
    ///
    /// When neither arrives within the time limit of the socket.
    fn read_until_ping(&mut self, outcomes: &mut Outcomes) -> bool {
        loop {
            let mut head = [0; 9];
            if !self.read(&mut head) {
                return false;
            }
            let [high, middle, low, kind, flags, ..] = head;
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            let mut body = vec![0; length];
            if !self.read(&mut body) {
                return false;
            }
            match kind {
                DATA if length > 0 => outcomes.answered += 1,
                HEADERS if flags & END_STREAM != 0 => outcomes.failed += 1,
                RST_STREAM => outcomes.reset += 1,
                PING if flags & 1 != 0 => return true,
                _ => {}
            }
        }
    }

    /// Fills `bytes`. `false`: the connection was ended before.
    fn read(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) => {
                let ended =
                    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
                assert!(ended, "neither a frame nor the end of the connection: {error}");
                false
            }
        }
    }
}

/// `bytes` with a few of them changed, taken out, put in or repeated.
fn broken(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = usize::try_from(random.below(bytes.len().max(1) as u64)).unwrap();
        let byte = u8::try_from(random.below(256)).unwrap();
        match random.below(4) {
            _ if bytes.is_empty() => bytes.push(byte),
            0 => bytes[at] = byte,
            1 => bytes.truncate(at),
            2 => bytes.insert(at, byte),
            _ => bytes.extend_from_within(at..),
        }
    }
    bytes
}

#[test]
fn malformed_call_does_not_affect_its_connection() {
    let service = Service::new();
    let message = request(vec![limited(&[("user", "ada"), ("path", "/")], 10)]).encode_to_vec();
    let whole = framed(&message);
    let mut random = Random(34);
    let mut outcomes = Outcomes::default();
    let mut raw = Raw::connect(&service);
    let wanted = size("SLUICEGATE_MALFORMED", 3_000);
    let mut made = 0;
    while made < wanted {
        let mut bytes = Vec::new();
        for _ in 0..BATCH {
            // The message or its frame.
            let body = match random.below(20) {
                0..5 => broken(&whole, &mut random),
                _ => framed(&broken(&message, &mut random)),
            };
            bytes.extend(raw.call(&body));
        }
        made += BATCH;
        assert!(
            raw.send(&bytes, &mut outcomes),
            "a malformed message ended the connection: {outcomes:?}"
        );
        // The HTTP/2 frames around them, rarely: this mostly ends the connection.
        if random.below(5) == 0 {
            let call = raw.call(&whole);
            raw.send_and_end(&broken(&call, &mut random), &mut outcomes);
            raw = Raw::connect(&service);
            made += 1;
            outcomes.connections += 1;
        }
    }
    println!("figure: {made} broken calls: {outcomes:?}");
    assert!(outcomes.failed > 0 && outcomes.answered > 0, "{outcomes:?}");
    // Both the last connection and a new one carry a valid call.
    for mut raw in [raw, Raw::connect(&service)] {
        let mut call = raw.call(&whole);
        let before = outcomes.answered;
        while outcomes.answered == before {
            assert!(raw.send(&call, &mut outcomes), "the connection ended: {outcomes:?}");
            call.clear();
        }
    }
}

/// A malformed message is an error of the caller.
#[test]
fn malformed_message_is_invalid_argument() {
    let service = Service::new();
    let mut not_utf8 = request(vec![limited(&[("user", "????")], 10)]).encode_to_vec();
    let at = not_utf8.windows(4).position(|it| it == b"????").unwrap();
    not_utf8[at] = 0xff;
    let compressed = [&[1][..], &framed(&not_utf8)[1..]].concat();
    let cases: [(&str, Vec<u8>); 7] = [
        ("no message of the proto", framed(&[0xff; 9])),
        ("a text that is no UTF-8", framed(&not_utf8)),
        ("longer than may be", framed(&vec![0; 200_000])),
        ("with a length above the maximum", [&[0][..], &u32::MAX.to_be_bytes()].concat()),
        ("with the flag of compression", compressed),
        ("with a flag that is none", [&[7][..], &framed(&not_utf8)[1..]].concat()),
        ("cut short", framed(&not_utf8)[..12].to_vec()),
    ];
    for (what, body) in cases {
        let code = service.runtime.block_on(code(&service, body));
        println!("figure: a message {what} is answered with code {code:?}");
        // 3 is INVALID_ARGUMENT; none: the stream was reset.
        assert!(matches!(code, None | Some(3)), "{what}: {code:?}");
    }
}

/// The code that a call with this body ends with; `None`: it was reset.
async fn code(service: &Service, body: Vec<u8>) -> Option<u8> {
    let stream = tokio::net::TcpStream::connect(service.server.grpc.unwrap()).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let path = "http://x/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let call = hyper::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut sender) = client.send_request(call, false).unwrap();
    let sent = sender.send_data(body.into(), true);
    let code = async {
        sent.ok()?;
        let mut response = response.await.ok()?;
        let status = match response.headers().get("grpc-status") {
            Some(status) => status.clone(),
            None => response.body_mut().trailers().await.ok()??.get("grpc-status")?.clone(),
        };
        status.to_str().unwrap().parse().ok()
    };
    let code = code.await;
    connection.abort();
    code
}
