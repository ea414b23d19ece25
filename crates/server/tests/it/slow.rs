//! Clients that send a byte from time to time, and never a complete command.

use std::{
    env,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use sluicegate_server::Config;
use sluicegate_testing::{eventually_true, eventually_within};

use crate::{
    child_process::{most_files, with_files},
    harness::{Running, TEST_TIMEOUT, now, simple, size},
};

const MANY: &str = "SLUICEGATE_TEST_MANY";

/// Clients that never complete a request, and another client beside them.
pub(crate) struct Dribble {
    /// The test, which is run again in a process that may open enough files.
    pub(crate) name: &'static str,
    pub(crate) clients: usize,
    pub(crate) configure: fn(&mut Config),
    pub(crate) address: fn(&Running) -> SocketAddr,
    /// The incomplete input of each slow client.
    pub(crate) begun: Vec<Vec<u8>>,
    /// The request of the other client, and the end of its reply.
    pub(crate) request: (&'static str, &'static str),
}

/// Sends a byte to each in turn until the server has closed all of them; returns the number of bytes. `between`
/// is called between two bytes.
fn dribble(mut streams: Vec<TcpStream>, mut between: impl FnMut()) -> usize {
    let mut bytes = 0;
    eventually_within(TEST_TIMEOUT, "all clients are closed", || {
        streams.retain_mut(|stream| {
            let sent = !is_closed(stream) && stream.write_all(b"x").is_ok();
            bytes += usize::from(sent);
            between();
            sent
        });
        if streams.is_empty() { Ok(()) } else { Err(format!("{} are open", streams.len())) }
    });
    bytes
}

/// Waits until the server has closed.
pub(crate) fn until_closed(stream: &mut TcpStream) {
    eventually_true("the server closes", || is_closed(stream));
}

/// Whether the server has closed.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut read = [0; 4096];
    loop {
        match stream.read(&mut read) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl Dribble {
    fn connect(&self, server: &Running) -> TcpStream {
        let stream = TcpStream::connect((self.address)(server)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends this many requests, and returns the latency of each.
    fn latencies(&self, stream: &mut TcpStream, count: usize) -> Vec<Duration> {
        let (text, end) = self.request;
        let times = (0..count).map(|_| {
            let start = now();
            stream.write_all(text.as_bytes()).unwrap();
            let (mut received, mut read) = (Vec::new(), [0; 4096]);
            while !received.ends_with(end.as_bytes()) {
                let count = stream.read(&mut read).unwrap();
                assert!(count > 0, "a client with complete requests is not closed");
                received.extend_from_slice(&read[..count]);
            }
            start.elapsed()
        });
        times.collect()
    }

    /// Asserts that all of them are closed, while the other client is answered.
    pub(crate) fn all_are_closed(self) {
        if env::var_os(MANY).is_none() {
            // In a process that may open two files for each.
            let output = with_files(self.name, self.clients * 2 + 200).env(MANY, "1").output();
            let output = output.unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            println!(
                "{}",
                printed.lines().find(|line| line.starts_with("figure")).unwrap_or_default()
            );
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{printed}{complained}");
            return;
        }
        let clients = self.clients.min((most_files() - 200) / 2);
        let server = Running::with(self.configure);
        let mut served = self.connect(&server);
        let alone = self.latencies(&mut served, 2000);
        let streams = (0..clients).map(|index| {
            let mut stream = self.connect(&server);
            stream.write_all(&self.begun[index % self.begun.len()]).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        });
        let streams: Vec<_> = streams.collect();
        let start = now();
        let mut beside = Vec::new();
        let bytes = dribble(streams, || beside.extend(self.latencies(&mut served, 1)));
        println!(
            "\nfigure: {clients} clients sent {bytes} bytes that end nothing, and all were closed after \
             {:?}; another was answered {} times in turn with these, 99 % within {} us (alone {} us)",
            start.elapsed(),
            beside.len(),
            late(beside.clone()),
            late(alone.clone()),
        );
        // Twice as long as alone, plus the noise of a busy machine.
        let most = 2 * late(alone.clone()) + 20_000;
        assert!(late(beside.clone()) <= most, "{} us, alone {} us", late(beside), late(alone));
        // The two active clients.
        server.until_exactly("connected_clients", 2);
        assert_eq!(
            self.latencies(&mut served, 1).len(),
            1,
            "a client with complete requests is not closed"
        );
    }
}

/// The p99, in microseconds.
pub(crate) fn late(mut times: Vec<Duration>) -> u128 {
    times.sort_unstable();
    times[times.len() * 99 / 100].as_micros()
}

#[test]
fn slow_command_is_closed() {
    let begun =
        ["*3\r\n$7\r\nSG.TAKE\r\n$65536\r\n", "SG.TAKE ", "*1000\r\n$4\r\nPING\r\n$131072\r\n"];
    let dribble = Dribble {
        name: "slow::slow_command_is_closed",
        clients: size("SLUICEGATE_SLOW_CLIENTS", 2000),
        configure: |config| config.timeouts.input = Duration::from_secs(3),
        address: |server| server.address,
        begun: begun.map(|text| text.as_bytes().to_vec()).to_vec(),
        request: ("PING\r\n", "+PONG\r\n"),
    };
    dribble.all_are_closed();
}

#[test]
fn incomplete_commands_do_not_reset_the_idle_timeout() {
    let server = Running::with(|config| {
        config.timeouts.idle = Duration::from_millis(500);
        config.timeouts.input = Duration::ZERO;
    });
    let mut peer = server.connect();
    assert_eq!(peer.call("PING"), simple("PONG"));
    peer.send("*1\r\n$131072\r\n");
    peer.stream.set_nonblocking(true).unwrap();
    // Another client sends a request between two bytes, therefore the bytes are not too fast: it is not closed.
    let mut other = server.connect();
    let bytes = dribble(vec![peer.stream], || assert_eq!(other.call("PING"), simple("PONG")));
    assert!(bytes < 131_072, "{bytes}");
    server.until_exactly("closed_idle", 1);
}

/// A command may take its time up to the bound, independently of earlier ones.
#[test]
fn input_timeout_applies_to_each_command() {
    let most = Duration::from_secs(3);
    let server = Running::with(|config| config.timeouts.input = most);
    let mut peer = server.connect();
    let start = now();
    let mut answered = 0;
    // Always followed by a part of the next command.
    peer.send("PI");
    while start.elapsed() < most * 4 / 3 {
        peer.send("NG\r\nPI");
        assert_eq!(peer.read_reply(), simple("PONG"));
        answered += 1;
    }
    println!("figure: {answered} commands, each begun behind another, in {:?}", start.elapsed());
    assert_eq!(server.info_value("closed_idle"), 0);
}
