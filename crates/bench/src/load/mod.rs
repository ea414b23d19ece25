//! The load generator: one thread that keeps many connections busy.
//!
//! Each connection sends requests, reads all replies, and sends the next. Requests are prepared bytes in which only the
//! key changes, and protocols read as little of the replies as they can, because a generator that does more work measures
//! itself: `redis-benchmark` and `wrk` take more processor time per request than the servers (0.34 us beside 0.23 us at a
//! pipeline of 128 commands, 7.5 us beside the 6.9 us of a server that only echoes HTTP), and `h2load` sends one body only.

pub(crate) mod poll;

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use self::poll::{Outgoing, Poll, READ, read};
use crate::{clock::instant, keys::KeySequence};

/// Time limit for a reply.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) connections: usize,
    pub(crate) keys: u64,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

impl Sizes {
    /// Those of a run that only shows that everything works.
    pub(crate) const QUICK: Self = Self {
        rounds: 2,
        connections: 4,
        keys: 1000,
        warm_up: Duration::from_millis(2),
        measured: Duration::from_millis(10),
    };
}

/// Measurement of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) requests: f64,
    pub(crate) seconds: f64,
    /// Seconds of the server's processor time, if it is a process.
    pub(crate) cpu: Option<f64>,
}

/// What a connection sends and receives.
pub(crate) trait Exchange {
    /// Writes the next requests in place of those in `bytes`, and returns their number.
    fn write(&mut self, bytes: &mut Vec<u8>, keys: &mut KeySequence) -> u64;

    /// Reads bytes of replies, and returns the number of replies that are complete with them.
    fn read(&mut self, bytes: &[u8]) -> io::Result<u64>;
}

/// Connections to one server.
pub(crate) struct Load<E> {
    poll: Poll,
    clients: Vec<Client<E>>,
    keys: KeySequence,
    answered: u64,
    /// Connections that wait for replies.
    busy: usize,
    stopping: bool,
    ready: Vec<usize>,
    buffer: Vec<u8>,
}

struct Client<E> {
    socket: TcpStream,
    outgoing: Outgoing,
    exchange: E,
    /// Requests without a reply.
    open: u64,
}

impl<E: Exchange + Clone> Load<E> {
    /// Connects; each connection starts with a copy of `exchange`.
    pub(crate) fn connect(
        address: SocketAddr,
        connections: usize,
        exchange: &E,
        keys: KeySequence,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut clients = Vec::new();
        for number in 0..connections {
            let socket = TcpStream::connect(address)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            poll.register(&socket, number)?;
            let (outgoing, exchange) = (Outgoing::default(), exchange.clone());
            clients.push(Client { socket, outgoing, exchange, open: 0 });
        }
        Ok(Self {
            poll,
            clients,
            keys,
            answered: 0,
            busy: 0,
            stopping: false,
            ready: Vec::new(),
            buffer: vec![0; READ],
        })
    }

    /// Sends at least `requests` requests, and waits for all replies.
    pub(crate) fn send_at_least(mut self, requests: u64) -> io::Result<()> {
        self.start()?;
        while self.answered < requests {
            self.turn()?;
        }
        self.stop()
    }

    /// Runs for `warm_up`, and then measures. `cpu` returns the server's processor time so far.
    pub(crate) fn measure(
        mut self,
        sizes: &Sizes,
        cpu: impl Fn() -> io::Result<Option<f64>>,
    ) -> io::Result<Sample> {
        self.start()?;
        let start = instant();
        while start.elapsed() < sizes.warm_up {
            self.turn()?;
        }
        let (start, before, cpu_before) = (instant(), self.answered, cpu()?);
        while start.elapsed() < sizes.measured {
            self.turn()?;
        }
        let (seconds, cpu_after) = (start.elapsed().as_secs_f64(), cpu()?);
        let requests = (self.answered - before) as f64;
        self.stop()?;
        let cpu = cpu_before.zip(cpu_after).map(|(before, after)| after - before);
        Ok(Sample { requests, seconds, cpu })
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

    /// Sends the next requests of a connection.
    fn send(&mut self, number: usize) -> io::Result<()> {
        let client = &mut self.clients[number];
        client.outgoing.rewind();
        client.open = client.exchange.write(&mut client.outgoing.bytes, &mut self.keys);
        client.outgoing.flush(&client.socket, number, &self.poll)?;
        self.busy += 1;
        Ok(())
    }

    /// Waits once, and reads from the sockets that are ready.
    fn turn(&mut self) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(&mut ready, REPLY_TIMEOUT)?;
        if ready.is_empty() {
            return Err(io::Error::other(format!("no complete reply for {REPLY_TIMEOUT:?}")));
        }
        for &number in &ready {
            let client = &mut self.clients[number];
            if client.outgoing.waits() {
                client.outgoing.flush(&client.socket, number, &self.poll)?;
            }
            let Some(count) = read(&client.socket, &mut self.buffer)? else { continue };
            let bytes = self.buffer.get(..count).filter(|it| !it.is_empty());
            let answered = client.exchange.read(bytes.ok_or(io::ErrorKind::ConnectionReset)?)?;
            self.answered += answered;
            client.open = client.open.checked_sub(answered).ok_or(io::ErrorKind::InvalidData)?;
            if answered > 0 && client.open == 0 {
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
