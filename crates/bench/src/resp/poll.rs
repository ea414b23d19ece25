//! Waiting for many sockets at once, and writing what a socket takes.

use std::{
    io::{self, Write},
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, Event, EventData, EventFlags},
    },
};

/// Sockets by number, and which of them are ready.
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(256) })
    }

    /// Watches for what can be read.
    pub(crate) fn watch(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(number as u64), EventFlags::IN)?)
    }

    /// Watches for what can be read and, if asked to, for room to write.
    pub(crate) fn rewatch(&self, socket: impl AsFd, number: usize, room: bool) -> io::Result<()> {
        let flags = if room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(number as u64), flags)?)
    }

    /// Puts the numbers of those that are ready into `ready`: none if `patience` has passed.
    pub(crate) fn wait(&mut self, ready: &mut Vec<usize>, patience: Duration) -> io::Result<()> {
        ready.clear();
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let numbers = self.events.drain(..).map(|event| usize::try_from(event.data.u64()));
        ready.extend(numbers.map(|it| it.expect("it was a usize")));
        Ok(())
    }
}

/// Bytes on their way to a socket.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// How many of them are sent.
    sent: usize,
    /// Whether the socket was full, and is watched for room.
    waits: bool,
}

impl Outgoing {
    pub(crate) const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, sent: 0, waits: false }
    }

    /// Writes what the socket takes, from the first byte that was not sent, and has the socket
    /// watched for room while there is more. Whether all are sent.
    pub(crate) fn flush(
        &mut self,
        mut socket: &TcpStream,
        number: usize,
        poll: &Poll,
    ) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match socket.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let waits = self.sent < self.bytes.len();
        if waits != self.waits {
            poll.rewatch(socket, number, waits)?;
            self.waits = waits;
        }
        Ok(!waits)
    }

    /// Sends the same bytes, or what has become of them, from the first.
    pub(crate) const fn rewind(&mut self) {
        self.sent = 0;
    }

    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }
}

/// Reads once from a socket that may have nothing: `None` then, 0 at its end.
pub(crate) fn read(mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match io::Read::read(&mut socket, buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// How much is read at a time, at both ends.
pub(crate) const READ: usize = 64 * 1024;
