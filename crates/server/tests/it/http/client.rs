//! A client of HTTP/1.1 that sends arbitrary bytes.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

use crate::harness::{Running, any_port};

/// A server that speaks HTTP, at a port of its own.
pub(crate) fn server(configure: impl FnOnce(&mut sluicegate_server::Config)) -> Running {
    Running::with(|config| {
        config.http.address = Some(any_port());
        configure(config);
    })
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl HttpReply {
    /// The value of a field, empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The `detail` of a problem.
    pub(crate) fn detail(&self) -> String {
        assert_eq!(self.field("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        problem["detail"].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub(crate) fn connect(server: &Running) -> Self {
        let stream = TcpStream::connect(server.http.unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a request without a body.
    pub(crate) fn send_request(&mut self, method: &str, path: &str, fields: &str) {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"));
    }

    /// Sends a request with a body of JSON.
    pub(crate) fn send_json(&mut self, path: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.send([head.as_bytes(), body].concat());
    }

    /// The response to a GET.
    pub(crate) fn get(&mut self, path: &str) -> HttpReply {
        self.send_request("GET", path, "");
        self.read_reply()
    }

    /// The response to a POST of JSON.
    pub(crate) fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> HttpReply {
        self.send_json(path, body);
        self.read_reply()
    }

    /// The next response.
    pub(crate) fn read_reply(&mut self) -> HttpReply {
        let end = loop {
            let found = self.received.windows(4).position(|window| window == b"\r\n\r\n");
            match found {
                Some(at) => break at,
                None => assert!(self.read() > 0, "closed before a response"),
            }
        };
        let head = String::from_utf8(self.received[..end].to_vec()).unwrap();
        self.received.drain(..end + 4);
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            (name.to_owned(), value.to_owned())
        });
        let mut reply = HttpReply { status, fields: fields.collect(), body: Vec::new() };
        if reply.field("content-type") == "text/event-stream" {
            // It ends when either side closes.
            return reply;
        }
        if reply.field("transfer-encoding") == "chunked" {
            while let length @ 1.. = self.chunk_length() {
                reply.body.extend(self.take(length));
                self.take(2);
            }
            self.take(2);
            return reply;
        }
        let length = reply.field("content-length").parse().unwrap_or(0);
        while self.received.len() < length {
            assert!(self.read() > 0, "closed before the end of a response");
        }
        reply.body = self.received.drain(..length).collect();
        reply
    }

    /// The length of the next chunk of a body.
    fn chunk_length(&mut self) -> usize {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(self.take(1));
        }
        usize::from_str_radix(str::from_utf8(&line).unwrap().trim_end(), 16).unwrap()
    }

    /// The next `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Vec<u8> {
        while self.received.len() < length {
            assert!(self.read() > 0, "closed before the end");
        }
        self.received.drain(..length).collect()
    }

    fn read(&mut self) -> usize {
        let mut chunk = [0; 16_384];
        let count = self.stream.read(&mut chunk).unwrap();
        self.received.extend_from_slice(&chunk[..count]);
        count
    }
}
