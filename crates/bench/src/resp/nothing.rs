//! The yardstick: a server that answers without having understood.
//!
//! One thread, epoll, one read and one write for all that has arrived. It finds where each command
//! ends, as whoever speaks RESP must (the lengths say it; a line end may be a part of a key), and
//! answers each with the same five integers: nothing is looked up, decided or written out. So how
//! near a server comes to it is what its commands, decisions and replies cost.

use std::{
    collections::BTreeMap,
    io,
    net::{TcpListener, TcpStream},
    time::Duration,
};

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

/// Finds where commands end, wherever what arrives is cut.
#[derive(Debug, Default)]
struct Commands {
    step: Step,
    /// The digits of the number that stands here, as far as they have come.
    number: usize,
    /// Arguments of the command that are still to come.
    arguments: usize,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default)]
enum Step {
    /// `*` and how many arguments a command has.
    #[default]
    Count,
    /// `$` and how long an argument is.
    Length,
    /// So many bytes of an argument, and of the line end behind it.
    Argument(usize),
}

impl Commands {
    /// How many commands are complete with these bytes.
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
    fn commands_are_counted_wherever_they_are_cut() {
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
