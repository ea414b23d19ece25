//! The baseline server: it replies without decisions.
//!
//! One thread, epoll, one read and one write for all commands that have arrived. It finds the end of each command by
//! the lengths in it, as every RESP server must (a key may contain a line end), and replies to each with the same five
//! integers. It looks up, decides and formats nothing. The difference between a server and this baseline is the cost
//! of its commands, decisions and replies.

use std::{
    collections::BTreeMap,
    io,
    net::{TcpListener, TcpStream},
    time::Duration,
};

use crate::load::poll::{Outgoing, Poll, READ, read};

/// As long as a real reply.
const REPLY: &[u8] = b"*5\r\n:0\r\n:10000\r\n:9999\r\n:-1\r\n:3600\r\n";

/// Serves all clients, forever.
pub(super) fn serve(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut poll = Poll::new()?;
    poll.register(listener, 0)?;
    let mut clients = BTreeMap::new();
    let mut ready = Vec::new();
    let mut buffer = vec![0; READ];
    for last in 1.. {
        // Each turn accepts at most one client, so that one number per turn is enough.
        poll.wait(&mut ready, Duration::from_secs(60))?;
        for &number in &ready {
            if number == 0 {
                let Ok((socket, _)) = listener.accept() else { continue };
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                poll.register(&socket, last)?;
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

    /// Reads once, and replies. `None` if the client has disconnected.
    fn answer(&mut self, number: usize, poll: &Poll, buffer: &mut [u8]) -> Option<()> {
        // Reads nothing from a client that does not read its replies.
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

/// Finds the ends of commands in input that is cut anywhere.
#[derive(Debug, Default)]
struct Commands {
    step: Step,
    /// The current number, from its digits so far.
    number: usize,
    /// Remaining arguments of the command.
    arguments: usize,
}

/// The next part of a command.
#[derive(Clone, Copy, Debug, Default)]
enum Step {
    /// `*` and the number of arguments of a command.
    #[default]
    Count,
    /// `$` and the length of an argument.
    Length,
    /// Remaining bytes of an argument and its line end.
    Argument(usize),
}

impl Commands {
    /// The number of commands that these bytes complete.
    fn complete(&mut self, mut bytes: &[u8]) -> usize {
        let mut complete = 0;
        while let Some(&first) = bytes.first() {
            if let Step::Argument(left) = self.step {
                let skipped = left.min(bytes.len());
                bytes = &bytes[skipped..];
                self.step = Step::Argument(left - skipped);
                if skipped == left {
                    self.arguments = self.arguments.saturating_sub(1);
                    complete += usize::from(self.arguments == 0);
                    self.step = if self.arguments == 0 { Step::Count } else { Step::Length };
                }
                continue;
            }
            bytes = &bytes[1..];
            match first {
                b'0'..=b'9' => {
                    let digit = usize::from(first - b'0');
                    self.number = self.number.saturating_mul(10).saturating_add(digit);
                }
                b'\n' => {
                    let number = std::mem::take(&mut self.number);
                    self.step = if matches!(self.step, Step::Count) {
                        self.arguments = number;
                        Step::Length
                    } else {
                        Step::Argument(number.saturating_add(2))
                    };
                }
                _ => {} // `*`, `$`, and the first half of a line end
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_cut_anywhere_are_counted() {
        let three = b"*2\r\n$1\r\na\r\n$3\r\nb\r\n\r\n".repeat(3);
        for cut in 0..three.len() {
            let mut commands = Commands::default();
            let (first, second) = three.split_at(cut);
            let before = commands.complete(first);
            assert_eq!(before, cut / (three.len() / 3), "cut at {cut}");
            assert_eq!(before + commands.complete(second), 3, "cut at {cut}");
        }
    }
}
