//! A pipeline of commands as load. Of the replies only line ends and first bytes are counted.

use std::{io, net::SocketAddr};

use memchr::memchr_iter;

use super::command::Command;
use crate::{
    keys::KeySequence,
    load::{Exchange, Load},
};

/// A batch of commands, and its replies so far.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    command: Command,
    depth: usize,
    /// Line ends per reply.
    reply_lines: usize,
    lines: usize,
    headers: usize,
}

/// Connects with pipelines of `depth` commands. First sends one command to find the form of the replies.
pub(crate) fn connect(
    address: SocketAddr,
    connections: usize,
    depth: usize,
    command: &Command,
    keys: KeySequence,
) -> io::Result<Load<Pipeline>> {
    let reply_lines = 1 + command.call(address)?.len();
    let pipeline = Pipeline { command: command.clone(), depth, reply_lines, lines: 0, headers: 0 };
    Load::connect(address, connections, &pipeline, keys)
}

impl Exchange for Pipeline {
    fn write(&mut self, bytes: &mut Vec<u8>, keys: &mut KeySequence) -> u64 {
        (self.lines, self.headers) = (0, 0);
        if bytes.is_empty() {
            *bytes = self.command.batch(self.depth);
        }
        self.command.draw(bytes, || keys.next());
        self.depth as u64
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let (before, mark) = (self.lines / self.reply_lines, self.command.mark);
        let valid_start = self.lines > 0 || self.headers > 0 || bytes.first() == Some(&mark);
        self.lines += memchr_iter(b'\n', bytes).count();
        self.headers += memchr_iter(mark, bytes).count();
        let all = self.depth * self.reply_lines;
        let too_many = self.lines > all || self.headers > self.depth;
        let valid_end =
            self.lines < all || (self.headers == self.depth && bytes.last() == Some(&b'\n'));
        if valid_start && valid_end && !too_many {
            return Ok((self.lines / self.reply_lines - before) as u64);
        }
        let excerpt = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]);
        Err(io::Error::other(format!("unexpected reply: {excerpt:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline(depth: usize, reply_lines: usize) -> Pipeline {
        let command = Command::new(&["GO", "ten bytes!"]);
        Pipeline { command, depth, reply_lines, lines: 0, headers: 0 }
    }

    #[test]
    fn replies_cut_anywhere_are_counted() {
        let two = b"*2\r\n:1\r\n:-22\r\n".repeat(2);
        for cut in 1..two.len() {
            let mut pipeline = pipeline(2, 3);
            let (first, second) = two.split_at(cut);
            let read = pipeline.read(first).unwrap();
            assert_eq!(read, (cut / (two.len() / 2)) as u64, "cut at {cut}");
            assert_eq!(pipeline.read(second).unwrap(), 2 - read, "cut at {cut}");
        }
    }

    #[test]
    fn replies_of_another_form_are_errors() {
        for wrong in ["-ERR no\r\n", "*1\r\n:1\r\n*1\r\n", "*1\r\n:1\r\nx", "*1\r\n-ERR\r\n*"] {
            assert!(pipeline(1, 2).read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
        assert_eq!(pipeline(1, 2).read(b"*1\r\n-ERR ").unwrap(), 0);
    }
}
