//! `serve`, and the commands that query a server.

use std::{
    fs,
    io::{BufRead, BufReader, Read as _, Write as _},
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
};

use sluicegate_testing::{Engine, Server as Redis, TempDir, eventually};

use crate::run::{output, run, scenarios, sluicegate};

/// A server on a port of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// Where it speaks HTTP.
    pub(crate) http: String,
    /// Where it speaks gRPC.
    pub(crate) grpc: String,
    // Kept open, so that the server can write.
    _out: BufReader<ChildStdout>,
    err: Option<ChildStderr>,
}

impl Server {
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_at("127.0.0.1", more)
    }

    /// A server on ports of its own of this address.
    pub(crate) fn start_at(host: &str, more: &[&str]) -> Self {
        Self::run(&mut sluicegate(), host, more)
    }

    /// The same by a command that has variables of its own.
    pub(crate) fn run(command: &mut Command, host: &str, more: &[&str]) -> Self {
        let any = format!("{host}:0");
        let mut child = command
            .args(["serve", "--listen", &any, "--http", &any, "--grpc", &any])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut listener_address = |prefix: &str| {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            let address = line.strip_prefix(prefix).expect("a line with the address");
            address.trim_end().to_owned()
        };
        let address = format!("resp://{}", listener_address("listening on "));
        let http = listener_address("http on ");
        let grpc = listener_address("grpc on ");
        let err = child.stderr.take();
        Self { child, address, http, grpc, _out: out, err }
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal.
    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Asks it to stop by a signal; its log.
    #[cfg(unix)]
    pub(crate) fn stop(mut self, signal: &str) -> String {
        self.signal(signal);
        let mut log = String::new();
        let mut err = self.err.take().unwrap();
        std::io::Read::read_to_string(&mut err, &mut log).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        log
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been stopped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn commands_key_is_taken_peeked_shown_and_reset() {
    let server = Server::start(&[]);
    let run = |command: &str, arguments: &[&str]| {
        let ended = run(&[&[command, "--server", &server.address], arguments].concat(), "");
        assert_eq!(ended.err, "");
        (ended.code.unwrap(), ended.out)
    };
    let policy = "gcra:1/1d:burst=3";
    assert_eq!(run("info", &["k"]), (0, "the key has no state\n".to_owned()));
    let (code, printed) = run("take", &["k", policy]);
    assert!(
        printed.starts_with("allowed; 2 of 3 remaining; fully recovered after 1d"),
        "{printed}"
    );
    assert_eq!(code, 0);
    let (code, printed) = run("peek", &["k", policy, "--cost", "3"]);
    assert!(printed.starts_with("denied; retry after "), "{printed}");
    assert_eq!(code, 1);
    let (_, printed) = run("take", &["k", policy, "--cost", "4"]);
    assert!(
        printed.starts_with("denied: 4 units can never pass a limit of 3; 2 of 3 remaining"),
        "{printed}"
    );
    let (_, shown) = run("info", &["k"]);
    assert!(shown.starts_with("policy        gcra:1/1d:burst=3\n"), "{shown}");
    assert!(shown.contains("  used          1\n  remaining     2\n"), "{shown}");
    assert_eq!(run("reset", &["k"]), (0, "reset\n".to_owned()));
    assert_eq!(run("reset", &["k"]), (0, "the key has no state\n".to_owned()));
}

#[test]
fn commands_password_is_required_and_accepted() {
    let server = Server::start(&["--requirepass", "secret"]);
    let take = ["take", "k", "gcra:9/1s", "--server", &server.address];
    let ended = run(&take, "");
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.err.contains("requires a password: use --password or SLUICEGATE_PASSWORD"),
        "{}",
        ended.err
    );
    let ended = run(&[&take[..], &["--password", "wrong"]].concat(), "");
    assert!(ended.err.starts_with("error: invalid password: "), "{}", ended.err);
    output(&[&take[..], &["--password", "secret"]].concat(), "");
    let by_environment =
        sluicegate().args(take).env("SLUICEGATE_PASSWORD", "secret").output().unwrap();
    assert!(by_environment.status.success());
}

#[test]
fn simulate_server_with_a_test_clock_decides_as_memory() {
    let server = Server::start(&["--test-clock"]);
    let rows = |more: &[&str], trace: &str| {
        output(&[&["simulate", "--format", "csv", "-"], more].concat(), trace)
    };
    // Keys that no other trace uses, because the server keeps their state.
    for (name, policy) in [
        ("counter-1980", "token-bucket:1000/3s,sliding-log:900/3s"),
        ("queue-200ms", "leaky-queue:5/1s:capacity=20"),
        ("across-minutes", "fixed-window:30/60s:align=clock"),
        ("count-all", "sliding-log:30/60s:count=all"),
        ("ten-or-one", "sliding-counter:10/60s"),
    ] {
        let trace = fs::read_to_string(scenarios().join(format!("{name}.csv"))).unwrap();
        let trace = trace.replace("user:action", &format!("\"{name}\r\n, key\""));
        let by_memory = rows(&["--policy", policy], &trace);
        let by_server = rows(&["--policy", policy, "--store", &server.address], &trace);
        assert_eq!(by_memory, by_server, "{name}");
    }
    let trace = "t_us,key,cost,policy,op\n\
                 0,all,2,,\n0,all,1,,peek\n5,all,9,gcra:7/1m,charge\n9,all,2,,refund\n\
                 9,all,0,,reset\n9,all,1,,\n9,all,5000,sliding-log:5/1s,\n9,other,0,,\n";
    let by_memory = rows(&["--policy", "gcra:3/1s"], trace);
    assert_eq!(by_memory, rows(&["--policy", "gcra:3/1s", "--store", &server.address], trace));

    let broken = "t_us,key,cost,policy\n0,x,1,\n0,x,1,gcra:1/0s\n";
    let simulate = ["simulate", "--format", "csv", "--policy", "gcra:1/1s", "-", "--store"];
    let ended = run(&[&simulate[..], &[&server.address]].concat(), broken);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.err.starts_with("error: line 3: ") && ended.err.contains("period `0s`"),
        "{}",
        ended.err
    );
    assert_eq!(ended.out.lines().count(), 2, "{}", ended.out);
}

#[test]
fn simulate_server_without_a_test_clock_is_an_error() {
    let server = Server::start(&[]);
    let simulate = ["simulate", "--policy", "gcra:1/1s", "-", "--store", &server.address];
    let ended = run(&simulate, "t_us,key,cost\n0,x,1\n");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.ends_with(": start it with `sluicegate serve --test-clock`\n"));
}

#[test]
fn commands_no_server_and_a_port_in_use_are_errors() {
    let server = Server::start(&[]);
    let address = server.address.strip_prefix("resp://").unwrap();
    let ended = run(&["serve", "--listen", address], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("is in use"), "{}", ended.err);

    // Port 1 is the port multiplexer's, which no machine runs today.
    let ended = run(&["take", "k", "gcra:1/1s", "--server", "127.0.0.1:1"], "");
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .err
            .starts_with("error: the server at 127.0.0.1:1 is unavailable: connection refused; "),
        "{}",
        ended.err
    );
}

/// The number of lines of `log` that are warnings with `text`.
#[cfg(unix)]
fn warnings(log: &str, text: &str) -> usize {
    log.lines().filter(|line| line.contains("WARN") && line.contains(text)).count()
}

#[cfg(unix)]
#[test]
fn exposed_ports_are_warned_about_once() {
    let beyond = "listening beyond loopback without a secret";
    let beside = "--requirepass protects only the RESP port";
    for (host, more, expected) in [
        ("127.0.0.1", &[][..], (0, 0)),
        ("127.0.0.1", &["--requirepass", "x"], (0, 1)),
        ("0.0.0.0", &[], (1, 0)),
        ("0.0.0.0", &["--requirepass", "x"], (1, 1)),
    ] {
        let server = Server::start_at(host, more);
        let grpc = server.grpc.clone();
        let log = server.stop("-TERM");
        assert_eq!((warnings(&log, beyond), warnings(&log, beside)), expected, "{host}: {log}");
        assert_eq!(
            log.matches(&format!("grpc at {grpc}")).count(),
            expected.0 + expected.1,
            "{log}"
        );
    }
}

#[cfg(unix)]
#[test]
fn hostile_clients_are_logged_once_a_minute() {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    let server = Server::start(&["--requirepass", "secret", "--http-token", "secret"]);
    let address = server.address.strip_prefix("resp://").unwrap();
    for _ in 0..5 {
        let mut peer = TcpStream::connect(&server.http).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guess\r\n";
        let last = format!("{request}Connection: close\r\n\r\n");
        peer.write_all(format!("{request}\r\n{last}").as_bytes()).unwrap();
        let mut received = String::new();
        peer.read_to_string(&mut received).unwrap();
        assert_eq!(received.matches("HTTP/1.1 401 ").count(), 2, "{received}");
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all("AUTH guess\r\n".repeat(10).as_bytes()).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = String::new();
        peer.read_to_string(&mut received).unwrap();
        assert_eq!(received.matches("-WRONGPASS").count(), 10, "{received}");
    }
    let log = server.stop("-TERM");
    for incident in ["wrong password", "wrong token"] {
        assert_eq!(warnings(&log, incident), 1, "{incident}: {log}");
    }
    assert!(log.contains("127.0.0.1") && !log.contains("guess"), "{log}");
}

#[cfg(unix)]
#[test]
fn rejected_clients_are_logged_once_a_minute() {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    let server = Server::start(&["--max-clients", "1"]);
    let address = server.address.strip_prefix("resp://").unwrap();
    let answer = || {
        let mut peer = TcpStream::connect(address).unwrap();
        let mut first = [0];
        // A connection that is rejected may be reset.
        let _ = peer.write_all(b"PING\r\n");
        let _ = peer.read(&mut first);
        (peer, first[0])
    };
    for _ in 0..5 {
        let admitted = eventually("the previous client is connected still", || match answer() {
            (peer, b'+') => Ok(peer),
            (_, first) => Err(first),
        });
        assert_ne!(answer().1, b'+', "it is rejected");
        drop(admitted);
    }
    let log = server.stop("-TERM");
    assert_eq!(warnings(&log, "rejecting clients"), 1, "{log}");
}

#[cfg(unix)]
#[test]
fn serve_signal_stops_it_gracefully() {
    for signal in ["-TERM", "-INT"] {
        let log = Server::start(&[]).stop(signal);
        assert!(log.contains("started") && log.contains("stopped"), "{log}");
    }
}

/// A snapshot that fails is logged once for as long as it fails, and again at the end, where state is lost.
#[cfg(unix)]
#[test]
fn serve_failed_last_snapshot_is_logged() {
    use std::{io::Write, net::TcpStream};

    let folder = std::env::temp_dir().join(format!("sluicegate-{}-last", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("state");
    let server =
        Server::start(&["--state-file", file.to_str().unwrap(), "--snapshot-every", "20ms"]);
    fs::remove_dir_all(&folder).unwrap();
    let mut peer =
        BufReader::new(TcpStream::connect(server.address.trim_start_matches("resp://")).unwrap());
    let mut failed = 0;
    while failed < 3 {
        peer.get_mut().write_all(b"INFO persistence\r\nPING\r\n").unwrap();
        for line in peer.by_ref().lines().map(Result::unwrap).take_while(|line| line != "+PONG") {
            if let Some(count) = line.strip_prefix("snapshots_failed:") {
                failed = count.trim().parse().unwrap();
            }
        }
    }
    drop(peer);
    let log = server.stop("-TERM");
    assert_eq!(log.matches("ERROR").count(), 2, "{log}");
}

/// Its proxy is configured, and nothing is limited.
#[cfg(unix)]
#[test]
fn serve_gate_without_rules_warns_once() {
    let server = Server::start(&[]);
    for _ in 0..3 {
        let mut stream = std::net::TcpStream::connect(&server.http).unwrap();
        let fields = "Host: localhost\r\nX-Forwarded-Uri: /\r\n";
        write!(stream, "GET /v1/gate HTTP/1.0\r\n{fields}\r\n").unwrap();
        let reply = std::io::read_to_string(stream).unwrap();
        assert!(reply.starts_with("HTTP/1.0 200 "), "{reply}");
    }
    let log = server.stop("-TERM");
    let warnings = log.matches("a proxy asks the gate, but there are no rules").count();
    assert_eq!(warnings, 1, "{log}");
}

/// State in memory needs no lease, and the author of the rules expects one.
#[cfg(unix)]
#[test]
fn serve_lease_without_a_store_warns_once() {
    let redis = Redis::start(Engine::Redis70);
    let (folder, url) = (TempDir::new(), redis.url());
    let file = folder.path().join("rules.yaml");
    let leased = "rules: [{name: page, policy: 'gcra:10/1s', lease: 5}]";
    let named = "{policies: {few: {policy: 'gcra:10/1s', lease: 5}}, rules: []}";
    let none = "rules: [{name: page, policy: 'gcra:10/1s'}]";
    for (rules, store, expected) in [
        (leased, None, 1),
        (named, None, 1),
        (none, None, 0),
        (leased, Some(&url), 0),
        (named, Some(&url), 0),
    ] {
        fs::write(&file, rules).unwrap();
        let mut arguments = vec!["--rules", file.to_str().unwrap()];
        arguments.extend(store.into_iter().flat_map(|url| ["--store", url]));
        let log = Server::start(&arguments).stop("-TERM");
        let text = "`lease` in the rules has no effect without --store";
        assert_eq!(warnings(&log, text), expected, "{rules}: {log}");
    }
    for (arguments, expected) in [
        (vec!["--lease", "5"], 1),
        (vec!["--lease", "0"], 0),
        (vec!["--lease", "5", "--store", &url], 0),
    ] {
        let log = Server::start(&arguments).stop("-TERM");
        let text = "--lease has no effect without --store";
        assert_eq!(warnings(&log, text), expected, "{arguments:?}: {log}");
    }
}

/// Clients cause lines, and nothing reads them.
#[cfg(unix)]
#[test]
fn serve_log_that_is_not_read_delays_no_client() {
    // HTTP/2 has many events: the preface, empty settings, and the headers of one request.
    const HEALTH: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
        \0\0\x17\x01\x05\0\0\0\x01\x82\x86\x04\x08/healthz\x01\x09localhost";
    let server = Server::start(&["--log-level", "trace"]);
    for _ in 0..20 {
        let mut stream = std::net::TcpStream::connect(&server.http).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        stream.write_all(HEALTH).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"ok\n") {
            let mut some = [0; 256];
            let count = stream.read(&mut some).expect("an answer in time");
            assert!(count > 0, "it closes");
            reply.extend_from_slice(&some[..count]);
        }
    }
    server.stop("-TERM");
}
