//! Clients that send a byte now and then, and never a whole command.

use std::{
    env,
    io::{self, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::{
    elsewhere::{most_files, with_files},
    harness::{Running, now, simple, size},
};

const MANY: &str = "SLUICEGATE_TEST_MANY";

/// What each of them begins, and never ends.
const BEGUN: [&str; 3] =
    ["*3\r\n$7\r\nSG.TAKE\r\n$65536\r\n", "SG.TAKE ", "*1000\r\n$4\r\nPING\r\n$131072\r\n"];

/// Sends a byte to each in turn, until the server has closed them all; how many bytes that were.
fn dribble(mut streams: Vec<TcpStream>, mut between: impl FnMut()) -> usize {
    let mut bytes = 0;
    while !streams.is_empty() {
        streams.retain_mut(|stream| {
            let mut byte = [0];
            let open = match stream.read(&mut byte) {
                Ok(_) => false,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            };
            let sent = open && stream.write_all(b"x").is_ok();
            bytes += usize::from(sent);
            sent
        });
        between();
    }
    bytes
}

/// The 99th of 100, in microseconds.
fn late(mut times: Vec<Duration>) -> u128 {
    times.sort_unstable();
    times[times.len() * 99 / 100].as_micros()
}

#[test]
fn a_byte_now_and_then_holds_no_connection() {
    let wanted = size("SLUICEGATE_SLOW_CLIENTS", 2000);
    if env::var_os(MANY).is_none() {
        // In a process that may open two files for each.
        let name = "slow::a_byte_now_and_then_holds_no_connection";
        let output = with_files(name, wanted * 2 + 200).env(MANY, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{}", said.lines().find(|line| line.starts_with("figure")).unwrap_or_default());
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{complained}");
        return;
    }
    let clients = wanted.min((most_files() - 200) / 2);
    let server = Running::with(|config| config.input_timeout = Duration::from_secs(3));
    let mut served = server.connect();
    let mut ask = |count: usize| {
        let times = (0..count).map(|_| {
            let start = now();
            assert_eq!(served.say("PING"), simple("PONG"));
            start.elapsed()
        });
        times.collect::<Vec<_>>()
    };
    let alone = ask(2000);
    let streams = (0..clients).map(|index| {
        let mut peer = server.connect();
        peer.send(BEGUN[index % BEGUN.len()]);
        peer.stream.set_nonblocking(true).unwrap();
        peer.stream
    });
    let streams: Vec<_> = streams.collect();
    let over = AtomicBool::new(false);
    let start = now();
    let (beside, bytes) = std::thread::scope(|scope| {
        let dribbling = scope.spawn(|| {
            let bytes = dribble(streams, std::thread::yield_now);
            over.store(true, Ordering::Relaxed);
            bytes
        });
        let mut beside = ask(1);
        while !over.load(Ordering::Relaxed) {
            beside.extend(ask(1));
        }
        (beside, dribbling.join().unwrap())
    });
    println!(
        "\nfigure: {clients} clients sent {bytes} bytes that are no command, and all were closed after {:?}; \
         another was answered {} times meanwhile, 99 % within {} us (alone {} us)",
        start.elapsed(),
        beside.len(),
        late(beside.clone()),
        late(alone),
    );
    server.until_told("closed_idle", clients as u64);
    // The two that are asking.
    server.until_told("connected_clients", 2);
    assert_eq!(ask(1).len(), 1, "who finishes commands is not closed");
}

#[test]
fn bytes_that_finish_no_command_are_no_asking() {
    let server = Running::with(|config| {
        config.timeout = Duration::from_millis(500);
        config.input_timeout = Duration::ZERO;
    });
    let mut peer = server.connect();
    assert_eq!(peer.say("PING"), simple("PONG"));
    peer.send("*1\r\n$131072\r\n");
    peer.stream.set_nonblocking(true).unwrap();
    // Another asks between two bytes, so that they are not too many: it is not closed.
    let mut other = server.connect();
    let bytes = dribble(vec![peer.stream], || assert_eq!(other.say("PING"), simple("PONG")));
    assert!(bytes < 131_072, "{bytes}");
    server.until_told("closed_idle", 1);
}

/// A command may take its time up to the bound, whatever came before it.
#[test]
fn each_command_has_the_whole_time() {
    let most = Duration::from_secs(3);
    let server = Running::with(|config| config.input_timeout = most);
    let mut peer = server.connect();
    let start = now();
    let mut answered = 0;
    // Always a part of the next command behind the one that is asked for.
    peer.send("PI");
    while start.elapsed() < most * 4 / 3 {
        peer.send("NG\r\nPI");
        assert_eq!(peer.hear(), simple("PONG"));
        answered += 1;
    }
    println!("figure: {answered} commands, each begun behind another, in {:?}", start.elapsed());
    assert_eq!(server.told("closed_idle"), 0);
}
