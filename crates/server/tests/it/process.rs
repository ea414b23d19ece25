//! What a server takes of its process: file descriptors and memory.
//!
//! Each of these tests runs itself as another process, and serves there.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};

use sluicegate_resp::Value;
use sluicegate_server::Config;

use crate::harness::{Running, simple};

const THERE: &str = "SLUICEGATE_TEST_SERVES";

/// A server in a process of its own, until dropped.
struct Process {
    child: Child,
    server: Running,
}

/// The server that the test `name` talks to, in a process that may open `files`; or, in that
/// process, nothing, once it has served.
fn process(name: &str, files: usize, configure: impl FnOnce(&mut Config)) -> Option<Process> {
    if env::var_os(THERE).is_some() {
        let server = Running::with(configure);
        println!("\nserves at {}", server.address);
        // Until the other end is closed.
        io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
        return None;
    }
    let script = format!("ulimit -n {files} && exec \"$0\" --exact process::{name} --nocapture");
    let mut child = Command::new("sh")
        .args(["-c", &script, env::current_exe().unwrap().to_str().unwrap()])
        .env(THERE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut address = lines.by_ref().map_while(Result::ok);
    let address = address.find_map(|line| line.strip_prefix("serves at ")?.parse().ok());
    Some(Process { child, server: Running::elsewhere(address.unwrap()) })
}

impl Process {
    fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Resident memory, in KiB.
    fn resident(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        let _ = self.child.stdout.take().map(|mut out| out.read_to_end(&mut rest));
        let ended = self.child.wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success());
        }
    }
}

#[test]
fn it_survives_running_out_of_file_descriptors() {
    let name = "it_survives_running_out_of_file_descriptors";
    let Some(process) = process(name, 64, |_| {}) else { return };
    let server = &process.server;
    let mut served = server.connect();
    assert_eq!(served.say("PING"), simple("PONG"));
    let many: Vec<_> = (0..100).map(|_| server.connect()).collect();
    let mut no_errors = || {
        let Value::Bulk(text) = served.say("INFO stats") else { panic!("no text") };
        String::from_utf8(text).unwrap().contains("accept_errors:0\r\n")
    };
    while no_errors() {}
    assert_eq!(served.say("PING"), simple("PONG"), "who is connected is served");
    drop(many);
    server.until_told("connected_clients", 2);
}

#[test]
fn clients_that_come_and_go_leave_nothing_open() {
    let name = "clients_that_come_and_go_leave_nothing_open";
    let Some(process) = process(name, 1024, |config| config.max_clients = 50) else { return };
    let server = &process.server;
    assert_eq!(server.connect().say("PING"), simple("PONG"));
    server.until_told("connected_clients", 1);
    let before = process.open_files();
    let mut refused = 0;
    for round in 0..100 {
        let mut peers: Vec<_> = (0..60).map(|_| server.connect()).collect();
        for (index, peer) in peers.iter_mut().enumerate() {
            match (index + round) % 3 {
                0 => peer.send("PING\r\n"),
                1 => peer.send("*3\r\n$7\r\nSG.T"),
                _ => {}
            }
            if index >= 50 {
                refused += 1;
            }
        }
    }
    // One at a time may be refused as long as those before have not been seen to leave.
    let mut heard = Vec::new();
    while heard != b"+PONG\r\n" {
        heard.clear();
        let mut peer = server.connect();
        let _ = peer.stream.write_all(b"PING\r\nQUIT\r\n");
        let _ = peer.stream.read_to_end(&mut heard);
        heard.truncate(7);
    }
    server.until_told("connected_clients", 1);
    assert!(server.told("rejected_connections") > 0);
    // The one that asks may not be gone yet.
    while process.open_files() > before {
        std::thread::yield_now();
    }
    println!(
        "6000 clients came and went, {refused} at least beyond the bound; {before} files are open as before"
    );
}

#[test]
fn clients_that_take_nothing_cost_little_and_are_closed() {
    let name = "clients_that_take_nothing_cost_little_and_are_closed";
    let configure = |config: &mut Config| config.output_timeout = Duration::from_secs(1);
    let Some(process) = process(name, 1024, configure) else { return };
    let server = &process.server;
    assert_eq!(server.connect().say("PING"), simple("PONG"));
    let before = process.resident();
    let line = format!("ECHO {}\r\n", "x".repeat(60_000));
    let mut peers: Vec<_> = (0..100).map(|_| (server.connect().stream, 0)).collect();
    for (stream, _) in &peers {
        stream.set_nonblocking(true).unwrap();
    }
    // All send what the system takes, over and over, until all are closed.
    let mut most = before;
    while !peers.is_empty() {
        peers.retain_mut(|(stream, sent)| match stream.write(&line.as_bytes()[*sent..]) {
            Ok(count) => {
                *sent = (*sent + count) % line.len();
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        most = most.max(process.resident());
    }
    server.until_told("closed_slow", 100);
    let each = (most - before) / 100;
    println!("100 clients that take nothing: {each} KiB each at most, all closed");
    assert!(each < 1126, "{each} KiB");
}
