//! The yardstick: a server that answers without having looked.
//!
//! One thread, epoll, one read and one write for all that has arrived. It takes every command of a
//! connection to have as many arguments as the first, so it need only count line ends, and answers
//! each with the same five integers. No server can do less, so how near one comes to it is what
//! its parsing, deciding and encoding cost.

use std::{
    collections::BTreeMap,
    io,
    net::{TcpListener, TcpStream},
    time::Duration,
};

use memchr::memchr_iter;

use super::poll::{Outgoing, Poll, READ, read};

/// As long as a real one.
const REPLY: &[u8] = b"*5\r\n:0\r\n:10000\r\n:9999\r\n:-1\r\n:3600\r\n";

/// Serves whoever connects, for ever.
pub(super) fn serve(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut poll = Poll::new()?;
    poll.watch(listener, 0)?;
    let mut clients = BTreeMap::new();
    let mut ready = Vec::new();
    let mut buffer = vec![0; READ];
    for last in 1.. {
        // Each turn accepts at most one client, so a number a turn is enough.
        poll.wait(&mut ready, Duration::from_secs(60))?;
        for &number in &ready {
            if number == 0 {
                let Ok((socket, _)) = listener.accept() else { continue };
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                poll.watch(&socket, last)?;
                clients.insert(last, Client::new(socket));
            } else if let Some(client) = clients.get_mut(&number)
                && client.answer(number, &poll, &mut buffer).is_none()
            {
                clients.remove(&number);
            }
        }
    }
    Ok(())
}

struct Client {
    socket: TcpStream,
    replies: Outgoing,
    commands: Commands,
}

impl Client {
    fn new(socket: TcpStream) -> Self {
        Self { socket, replies: Outgoing::default(), commands: Commands::default() }
    }

    /// Reads once, and answers. `None` when the client has gone.
    fn answer(&mut self, number: usize, poll: &Poll, buffer: &mut [u8]) -> Option<()> {
        // Who does not take its replies is not read from.
        if !self.replies.waits()
            && let Some(count) = read(&self.socket, buffer).ok()?
        {
            let complete = self.commands.complete(buffer.get(..count).filter(|it| !it.is_empty())?);
            for _ in 0..complete {
                self.replies.bytes.extend_from_slice(REPLY);
            }
        }
        if self.replies.flush(&self.socket, number, poll).ok()? {
            self.replies.rewind();
            self.replies.bytes.clear();
        }
        Some(())
    }
}

/// Counts commands that all have as many arguments as the first.
#[derive(Debug, Default)]
struct Commands {
    /// The first header, until it is complete.
    header: Vec<u8>,
    /// Line ends of one command; 0 until it is known.
    lines: usize,
    /// Line ends that are there of the unfinished command.
    seen: usize,
}

impl Commands {
    /// How many commands are complete with these bytes.
    fn complete(&mut self, bytes: &[u8]) -> usize {
        if self.lines == 0 {
            self.header.extend_from_slice(bytes);
            let Some(end) = memchr::memchr(b'\r', &self.header) else { return 0 };
            let count = self.header.get(1..end).and_then(|it| str::from_utf8(it).ok());
            let count: usize = count.and_then(|it| it.parse().ok()).unwrap_or(1);
            self.lines = 1 + 2 * count;
        }
        self.seen += memchr_iter(b'\n', bytes).count();
        let complete = self.seen / self.lines;
        self.seen %= self.lines;
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_wherever_they_are_cut() {
        let three = b"*2\r\n$1\r\na\r\n$2\r\nbb\r\n".repeat(3);
        for cut in 0..three.len() {
            let mut commands = Commands::default();
            let (first, second) = three.split_at(cut);
            let before = commands.complete(first);
            assert_eq!(before, cut / (three.len() / 3), "cut at {cut}");
            assert_eq!(before + commands.complete(second), 3, "cut at {cut}");
        }
    }
}
