//! Waiting for many sockets at once, and writing without blocking.

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

/// Numbered sockets, and the events of those that are ready.
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(256) })
    }

    /// Registers a socket, to be ready when it can be read.
    pub(crate) fn register(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(number as u64), EventFlags::IN)?)
    }

    /// Changes the registration of a socket: ready when it can be read or, if `writable` is set, written.
    pub(crate) fn reregister(
        &self,
        socket: impl AsFd,
        number: usize,
        writable: bool,
    ) -> io::Result<()> {
        let flags = if writable { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(number as u64), flags)?)
    }

    /// Stores the numbers of the sockets that are ready in `ready`: none after `timeout`.
    pub(crate) fn wait(&mut self, ready: &mut Vec<usize>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let numbers = self.events.drain(..).map(|event| usize::try_from(event.data.u64()));
        ready.extend(numbers.map(|it| it.expect("it was a usize")));
        Ok(())
    }
}

/// Bytes to be sent to a socket.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// Number of bytes that were sent.
    sent: usize,
    /// Whether the socket was full, so that its registration includes writing.
    waits: bool,
}

impl Outgoing {
    /// Writes unsent bytes until the socket is full. If some remain, the socket is registered for writing. Returns
    /// whether all bytes are sent.
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
            poll.reregister(socket, number, waits)?;
            self.waits = waits;
        }
        Ok(!waits)
    }

    /// Restarts at the first byte, which may have changed since.
    pub(crate) const fn rewind(&mut self) {
        self.sent = 0;
    }

    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }
}

/// Reads once from a socket: `None` if there is no data, 0 at its end.
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

/// Bytes per read, of load generators and servers.
pub(crate) const READ: usize = 64 * 1024;
