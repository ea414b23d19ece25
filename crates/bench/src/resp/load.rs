//! The load generator: one thread that keeps many connections busy.
//!
//! Each connection sends a batch, reads all replies, and sends the next. Commands are prepared bytes in which only
//! the key changes, and of the replies only line ends and first bytes are counted, because a generator that does more
//! work measures itself.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use memchr::memchr_iter;

use super::{
    command::{Command, KeySequence, REPLY_TIMEOUT},
    poll::{Outgoing, Poll, READ, read},
};
use crate::clock::instant;

/// Measurement of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) requests: f64,
    pub(crate) seconds: f64,
    /// Seconds of the server's processor time, if it is a process.
    pub(crate) cpu: Option<f64>,
}

/// Connections to one server, each with its batch.
pub(crate) struct Load {
    poll: Poll,
    clients: Vec<Client>,
    command: Command,
    draw: KeySequence,
    pipeline: usize,
    /// Line ends per reply.
    reply_lines: usize,
    /// Line ends of all replies so far.
    lines: u64,
    /// Connections that wait for replies.
    busy: usize,
    stopping: bool,
    ready: Vec<usize>,
    buffer: Vec<u8>,
}

struct Client {
    socket: TcpStream,
    batch: Outgoing,
    replies: Replies,
}

impl Load {
    /// Connects. First sends one command to find the form of the replies.
    pub(crate) fn connect(
        address: SocketAddr,
        connections: usize,
        pipeline: usize,
        command: &Command,
        draw: KeySequence,
    ) -> io::Result<Self> {
        let integers = command.call(address)?.len();
        let poll = Poll::new()?;
        let mut clients = Vec::new();
        for number in 0..connections {
            let socket = TcpStream::connect(address)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            poll.register(&socket, number)?;
            let batch = Outgoing::new(command.batch(pipeline));
            clients.push(Client { socket, batch, replies: Replies::default() });
        }
        Ok(Self {
            poll,
            clients,
            command: command.clone(),
            draw,
            pipeline,
            reply_lines: 1 + integers,
            lines: 0,
            busy: 0,
            stopping: false,
            ready: Vec::new(),
            buffer: vec![0; READ],
        })
    }

    /// Sends at least `keys` commands, and waits for all replies.
    pub(crate) fn send_at_least(mut self, keys: u64) -> io::Result<()> {
        self.start()?;
        while self.requests() < keys as f64 {
            self.turn()?;
        }
        self.stop()
    }

    /// Runs for `warm_up`, and then measures. `cpu` returns the server's processor time so far.
    pub(crate) fn measure(
        mut self,
        warm_up: Duration,
        measured: Duration,
        cpu: impl Fn() -> io::Result<Option<f64>>,
    ) -> io::Result<Sample> {
        self.start()?;
        let start = instant();
        while start.elapsed() < warm_up {
            self.turn()?;
        }
        let (start, requests, cpu_before) = (instant(), self.requests(), cpu()?);
        while start.elapsed() < measured {
            self.turn()?;
        }
        let (seconds, cpu_after) = (start.elapsed().as_secs_f64(), cpu()?);
        let requests = self.requests() - requests;
        self.stop()?;
        let cpu = cpu_before.zip(cpu_after).map(|(before, after)| after - before);
        Ok(Sample { requests, seconds, cpu })
    }

    /// Requests with replies so far.
    fn requests(&self) -> f64 {
        self.lines as f64 / self.reply_lines as f64
    }

    fn start(&mut self) -> io::Result<()> {
        (0..self.clients.len()).try_for_each(|number| self.send(number))
    }

    fn stop(&mut self) -> io::Result<()> {
        self.stopping = true;
        while self.busy > 0 {
            self.turn()?;
        }
        Ok(())
    }

    /// Sends the next batch of a connection.
    fn send(&mut self, number: usize) -> io::Result<()> {
        let client = &mut self.clients[number];
        client.replies = Replies::default();
        client.batch.rewind();
        self.command.draw(&mut client.batch.bytes, || self.draw.next());
        client.batch.flush(&client.socket, number, &self.poll)?;
        self.busy += 1;
        Ok(())
    }

    /// Waits once, and reads from the sockets that are ready.
    fn turn(&mut self) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(&mut ready, REPLY_TIMEOUT)?;
        if ready.is_empty() {
            let message =
                format!("no reply for {REPLY_TIMEOUT:?}, or one that is not an array of integers");
            return Err(io::Error::other(message));
        }
        for &number in &ready {
            let client = &mut self.clients[number];
            if client.batch.waits() {
                client.batch.flush(&client.socket, number, &self.poll)?;
            }
            let Some(count) = read(&client.socket, &mut self.buffer)? else { continue };
            let bytes = self.buffer.get(..count).filter(|it| !it.is_empty());
            let bytes = bytes.ok_or(io::ErrorKind::ConnectionReset)?;
            let before = client.replies.lines;
            let (count, mark) = (self.pipeline, self.command.mark);
            let complete = client.replies.complete(bytes, mark, count, self.reply_lines)?;
            self.lines += (client.replies.lines - before) as u64;
            if complete {
                self.busy -= 1;
                if !self.stopping {
                    self.send(number)?;
                }
            }
        }
        self.ready = ready;
        Ok(())
    }
}

/// The replies to one batch so far.
#[derive(Debug, Default)]
struct Replies {
    lines: usize,
    headers: usize,
}

impl Replies {
    /// Whether these bytes complete `count` replies of `lines` lines each, which begin with `mark`.
    fn complete(&mut self, bytes: &[u8], mark: u8, count: usize, lines: usize) -> io::Result<bool> {
        let valid_start = self.lines > 0 || self.headers > 0 || bytes.first() == Some(&mark);
        self.lines += memchr_iter(b'\n', bytes).count();
        self.headers += memchr_iter(mark, bytes).count();
        let complete = self.lines == count * lines;
        let too_many = self.lines > count * lines || self.headers > count;
        let valid_end = !complete || (self.headers == count && bytes.last() == Some(&b'\n'));
        if valid_start && valid_end && !too_many {
            return Ok(complete);
        }
        let excerpt = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]);
        Err(io::Error::other(format!("unexpected reply: {excerpt:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_cut_anywhere_are_counted() {
        let two = b"*2\r\n:1\r\n:-22\r\n".repeat(2);
        for cut in 1..two.len() {
            let mut replies = Replies::default();
            let (first, second) = two.split_at(cut);
            assert!(!replies.complete(first, b'*', 2, 3).unwrap(), "cut at {cut}");
            assert!(replies.complete(second, b'*', 2, 3).unwrap(), "cut at {cut}");
        }
    }

    #[test]
    fn replies_of_another_form_are_errors() {
        for wrong in ["-ERR no\r\n", "*1\r\n:1\r\n*1\r\n", "*1\r\n:1\r\nx", "*1\r\n-ERR\r\n*"] {
            let replies = Replies::default().complete(wrong.as_bytes(), b'*', 1, 2);
            assert!(replies.is_err(), "{wrong:?}");
        }
        assert!(!Replies::default().complete(b"*1\r\n-ERR ", b'*', 1, 2).unwrap());
    }
}
