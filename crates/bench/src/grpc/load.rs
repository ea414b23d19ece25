//! The load generator: one thread with concurrent calls on a few connections, like instances of Envoy.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use prost::Message as _;
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    rls::RateLimitRequest,
};

use super::frames::{Answers, call, preface};
use crate::{
    clock::instant,
    keys::Random,
    resp::{
        command::REPLY_TIMEOUT,
        load::Sample,
        poll::{Outgoing, Poll, READ, read},
    },
};

/// Digits of a user's number.
const DIGITS: usize = 7;

/// Connections to one server, each with its calls.
pub(super) struct Load {
    poll: Poll,
    clients: Vec<Client>,
    /// An encoded call, and the offset of the user in it.
    message: Vec<u8>,
    user: usize,
    random: Random,
    users: u64,
    /// The next user while users are in order; `None` while they are random.
    next: Option<u64>,
    drawn: Vec<u64>,
    calls: usize,
    answered: u64,
    busy: usize,
    stopping: bool,
    ready: Vec<usize>,
    buffer: Vec<u8>,
}

struct Client {
    socket: TcpStream,
    batch: Outgoing,
    answers: Answers,
    /// The stream of the last call; 0 before the first.
    stream: u32,
    /// Total number of calls.
    made: u64,
}

impl Load {
    /// Connects. Each connection makes `calls` concurrent calls, for `users` users.
    pub(super) fn connect(
        address: SocketAddr,
        connections: usize,
        calls: usize,
        users: u64,
        seed: u64,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut clients = Vec::new();
        for number in 0..connections {
            let socket = TcpStream::connect(address)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            poll.register(&socket, number)?;
            let batch = Outgoing::new(Vec::new());
            clients.push(Client { socket, batch, answers: Answers::default(), stream: 0, made: 0 });
        }
        let (message, user) = message();
        Ok(Self {
            poll,
            clients,
            message,
            user,
            random: Random::new(seed),
            users,
            next: None,
            drawn: Vec::new(),
            calls,
            answered: 0,
            busy: 0,
            stopping: false,
            ready: Vec::new(),
            buffer: vec![0; READ],
        })
    }

    /// Makes one call for every user.
    pub(super) fn fill(mut self) -> io::Result<()> {
        self.next = Some(0);
        (0..self.clients.len()).try_for_each(|number| self.send(number))?;
        while self.busy > 0 {
            self.stopping = self.next >= Some(self.users);
            self.turn()?;
        }
        Ok(())
    }

    /// The user of the next call.
    fn draw(&mut self) -> u64 {
        let Some(next) = &mut self.next else { return self.random.below(self.users) };
        *next += 1;
        (*next - 1) % self.users
    }

    /// Runs for `warm_up`, and then measures. `cpu` returns the server's processor time so far.
    pub(super) fn measure(
        mut self,
        warm_up: Duration,
        measured: Duration,
        cpu: impl Fn() -> io::Result<Option<f64>>,
    ) -> io::Result<Sample> {
        (0..self.clients.len()).try_for_each(|number| self.send(number))?;
        let start = instant();
        while start.elapsed() < warm_up {
            self.turn()?;
        }
        let (start, before, cpu_before) = (instant(), self.answered, cpu()?);
        while start.elapsed() < measured {
            self.turn()?;
        }
        let (seconds, cpu_after) = (start.elapsed().as_secs_f64(), cpu()?);
        let requests = (self.answered - before) as f64;
        self.stopping = true;
        while self.busy > 0 {
            self.turn()?;
        }
        let cpu = cpu_before.zip(cpu_after).map(|(before, after)| after - before);
        Ok(Sample { requests, seconds, cpu })
    }

    /// Sends the next calls of a connection.
    fn send(&mut self, number: usize) -> io::Result<()> {
        self.drawn.clear();
        for _ in 0..self.calls {
            let user = self.draw();
            self.drawn.push(user);
        }
        let client = &mut self.clients[number];
        client.batch.rewind();
        client.batch.bytes.clear();
        if client.stream == 0 {
            client.batch.bytes = preface();
        }
        for user in &self.drawn {
            let user = format!("{user:0DIGITS$}");
            self.message[self.user..self.user + DIGITS].copy_from_slice(user.as_bytes());
            let first = client.stream == 0;
            client.stream = if first { 1 } else { client.stream + 2 };
            call(client.stream, &self.message, first, &mut client.batch.bytes);
            client.made += 1;
        }
        client.batch.flush(&client.socket, number, &self.poll)?;
        self.busy += 1;
        Ok(())
    }

    /// Waits once, and reads from the sockets that are ready.
    fn turn(&mut self) -> io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(&mut ready, REPLY_TIMEOUT)?;
        if ready.is_empty() {
            return Err(io::Error::other(format!("no reply for {REPLY_TIMEOUT:?}")));
        }
        for &number in &ready {
            let client = &mut self.clients[number];
            if client.batch.waits() {
                client.batch.flush(&client.socket, number, &self.poll)?;
            }
            let Some(count) = read(&client.socket, &mut self.buffer)? else { continue };
            let bytes = self.buffer.get(..count).filter(|it| !it.is_empty());
            let before = client.answers.ended;
            client.answers.read(bytes.ok_or(io::ErrorKind::ConnectionReset)?)?;
            self.answered += client.answers.ended - before;
            if client.answers.ended == client.made && client.answers.ended > before {
                // A call that fails has no message.
                if client.answers.messages != client.made {
                    return Err(io::Error::other("a call has failed"));
                }
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

/// A call with a descriptor for a user and one for a path, and the offset of the user.
fn message() -> (Vec<u8>, usize) {
    let descriptor = |entries: &[(&str, &str)]| RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|&(key, value)| Entry { key: key.to_owned(), value: value.to_owned() })
            .collect(),
        ..RateLimitDescriptor::default()
    };
    let user = "#".repeat(DIGITS);
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![
            descriptor(&[("plan", "free"), ("user", &user)]),
            descriptor(&[("method", "GET"), ("path", "/v1/items")]),
        ],
        hits_addend: 0,
    };
    let bytes = request.encode_to_vec();
    let at = bytes.windows(DIGITS).position(|it| it == user.as_bytes());
    (bytes, at.expect("the message contains the user"))
}
