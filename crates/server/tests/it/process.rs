//! Resources of the server process: file descriptors and memory.

use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use sluicegate_resp::Value;
use sluicegate_server::Config;
use sluicegate_testing::{eventually, eventually_within};

use crate::{
    child_process::process,
    harness::{RawClient, TEST_TIMEOUT, any_port, simple, size},
};

/// RELIABILITY 54: idle clients that use up all descriptors do not prevent health checks, snapshots or
/// reloads of rules.
#[test]
fn descriptors_used_up_by_clients_leave_a_reserve() {
    let name = "process::descriptors_used_up_by_clients_leave_a_reserve";
    let rule = |limit| {
        format!(
            "rules:\n  - name: r\n    match: {{path: /r}}\n    policy: fixed-window:{limit}/1m\n"
        )
    };
    let configure = |config: &mut Config, folder: &Path| {
        let rules = folder.join("rules.yaml");
        fs::write(&rules, rule(1)).unwrap();
        config.http.address = Some(any_port());
        config.max_clients = 10_000;
        config.memory.state_file = Some(folder.join("state"));
        config.memory.snapshot_every = Duration::from_millis(20);
        config.rules = vec![rules];
    };
    let Some(process) = process(name, 200, configure) else { return };
    let server = &process.server;
    let mut served = server.connect();
    let most = info(&mut served, "maxclients");
    assert!((50..200).contains(&most), "{most}");
    let many: Vec<_> = (0..300).map(|_| server.connect()).collect();
    eventually("as many clients as may are served", || {
        let clients = info(&mut served, "connected_clients");
        if clients == most { Ok(()) } else { Err(clients) }
    });
    let exchange = |request: &str| {
        let mut http = TcpStream::connect(server.http.unwrap()).unwrap();
        http.write_all(request.as_bytes()).unwrap();
        let mut received = String::new();
        http.read_to_string(&mut received).unwrap();
        received
    };
    // Other clients occupy the connections reserved for health checks as well.
    let sitting: Vec<_> =
        (0..20).map(|_| TcpStream::connect(server.http.unwrap()).unwrap()).collect();
    for _ in 0..20 {
        let received = exchange("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(received.starts_with("HTTP/1.1 200 OK\r\n"), "{received}");
        let received = exchange("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(received.starts_with("HTTP/1.1 503 "), "{received}");
    }
    let snapshots = info(&mut served, "snapshots");
    fs::write(process.folder.file("rules.yaml"), rule(2)).unwrap();
    eventually("snapshots are written and rules are read", || {
        let seen =
            ["snapshots", "snapshots_failed", "rules_version"].map(|it| info(&mut served, it));
        let done = seen[0] > snapshots + 2 && seen[1] == 0 && seen[2] > 1;
        if done { Ok(()) } else { Err(seen) }
    });
    assert_eq!(info(&mut served, "accept_errors"), 0);
    println!(
        "figure: of 200 descriptors {most} are for clients; with all of those idle, /healthz answered 20 of 20"
    );
    drop((many, sitting));
    // `INFO` comes from an accepted client: new ones are rejected until the server has seen the others leave.
    eventually("all others have left", || match info(&mut served, "connected_clients") {
        1 => Ok(()),
        clients => Err(clients),
    });
}

/// The number under `name` in `INFO`.
fn info(peer: &mut RawClient, name: &str) -> u64 {
    let Value::Bulk(text) = peer.call("INFO") else { panic!("no text") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn descriptors_after_many_clients_are_closed() {
    let name = "process::descriptors_after_many_clients_are_closed";
    let Some(process) = process(name, 1024, |config, _| config.max_clients = 50) else { return };
    let server = &process.server;
    let cycles = size("SLUICEGATE_CYCLES", 6_000);
    let before = process.open_files_at_rest();
    for round in 0..cycles / 60 {
        let mut peers: Vec<_> = (0..60).map(|_| server.connect()).collect();
        for (index, peer) in peers.iter_mut().enumerate() {
            match (index + round) % 3 {
                0 => peer.send("PING\r\n"),
                1 => peer.send("*3\r\n$7\r\nSG.T"),
                _ => {}
            }
        }
    }
    // One at a time may be rejected until the server has noticed that the earlier ones have left.
    eventually("a client is served", || {
        let mut received = Vec::new();
        let mut peer = server.connect();
        let _ = peer.stream.write_all(b"PING\r\nQUIT\r\n");
        let _ = peer.stream.read_to_end(&mut received);
        let received = String::from_utf8(received).unwrap();
        if received.starts_with("+PONG\r\n") { Ok(()) } else { Err(received) }
    });
    server.until_exactly("connected_clients", 1);
    let refused = server.info_value("rejected_connections");
    assert!(refused > 0);
    // The connection of `INFO` may still be open.
    process.until_open_files(before);
    // All permits are free again, and none was added.
    let peers = eventually("as many clients are served as may be", || {
        let mut peers: Vec<_> = (0..50).map(|_| server.connect()).collect();
        let replies = peers.iter_mut().map(|peer| peer.call("PING"));
        match replies.filter(|reply| *reply != simple("PONG")).count() {
            0 => Ok(peers),
            rejected => Err(format!("{rejected} are rejected")),
        }
    });
    assert_eq!(server.connect().rest(), "-ERR max number of clients reached\r\n");
    drop(peers);
    println!(
        "figure: {cycles} clients came and went, {refused} were refused; {before} files are open as before"
    );
}

#[test]
fn clients_that_do_not_read_hold_little_memory_and_are_closed() {
    let name = "process::clients_that_do_not_read_hold_little_memory_and_are_closed";
    let Some(process) =
        process(name, 1024, |config, _| config.timeouts.output = Duration::from_secs(1))
    else {
        return;
    };
    let server = &process.server;
    let readers = size("SLUICEGATE_SLOW_READERS", 100);
    assert_eq!(server.connect().call("PING"), simple("PONG"));
    let before = process.resident();
    let line = format!("ECHO {}\r\n", "x".repeat(60_000));
    let mut peers: Vec<_> = (0..readers).map(|_| (server.connect().stream, 0)).collect();
    for (stream, _) in &peers {
        stream.set_nonblocking(true).unwrap();
    }
    // All clients send as much as the system accepts, repeatedly, until all are closed.
    let mut most = before;
    eventually_within(TEST_TIMEOUT, "all clients are closed", || {
        peers.retain_mut(|(stream, sent)| match stream.write(&line.as_bytes()[*sent..]) {
            Ok(count) => {
                *sent = (*sent + count) % line.len();
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        most = most.max(process.resident());
        if peers.is_empty() { Ok(()) } else { Err(format!("{} are open", peers.len())) }
    });
    server.until_exactly("closed_slow", readers as u64);
    let each = (most - before) / readers;
    // The allocator keeps a little of the released memory.
    let after = eventually("their memory is given back", || {
        match process.resident().saturating_sub(before) {
            after if after <= 16 * 1024 + 16 * readers => Ok(after),
            after => Err(after),
        }
    });
    println!(
        "figure: {readers} clients that take nothing: {each} KiB each at most, all closed; \
         {after} KiB more than before are left in all"
    );
    assert!(each < 1126, "{each} KiB");
}

/// An announced length is not trusted: memory is allocated only for bytes that have arrived.
#[test]
fn announced_lengths_allocate_nothing() {
    let name = "process::announced_lengths_allocate_nothing";
    let Some(process) = process(name, 1024, |_, _| {}) else { return };
    let server = &process.server;
    assert_eq!(server.connect().call("PING"), simple("PONG"));
    for announced in
        ["*1000000000\r\n", "*1\r\n$536870912\r\n", "*1024\r\n$131072\r\nx", "*2\r\n$131072\r\nx"]
    {
        let before = process.resident();
        let mut peers: Vec<_> = (0..200).map(|_| server.connect()).collect();
        for peer in &mut peers {
            peer.send(announced);
        }
        // Once all these are answered, the server has read the others.
        for _ in 0..50 {
            assert_eq!(server.connect().call("PING"), simple("PONG"));
        }
        let each = process.resident().saturating_sub(before) / 200;
        let shown = announced.escape_debug();
        println!("figure: 200 clients that announce `{shown}`: {each} KiB each");
        assert!(each <= 64, "{shown}: {each} KiB");
    }
}

/// KiB that a server needs besides the state of keys.
const OWN: usize = 8 * 1024;

/// A server full of keys: resident memory of the process, including the server itself.
fn full_server(name: &'static str, megabytes: usize) {
    let most = size("SLUICEGATE_SERVER_MEGABYTES", 64);
    if megabytes > most {
        return;
    }
    let Some(process) = process(name, 1024, |config, _| config.memory.max_bytes = megabytes << 20)
    else {
        return;
    };
    // These take a slot and as much again beside the table: few enough for an ordinary run.
    let (slots, eight) = ("fixed-window:1/12h", ["fixed-window:1/12h"; 8].join(","));
    let heavy = if most > 64 { slots } else { &*eight };
    let server = &process.server;
    let mut peer = server.connect();
    assert_eq!(peer.call("PING"), simple("PONG"));
    let base = process.resident();
    let mut keys = 0;
    while server.info_value("table_full") < 20_000 {
        for _ in 0..20 {
            let lines = (keys..keys + 1000).map(|key| {
                let policy = if key % 4 == 0 { slots } else { heavy };
                format!("SG.TAKE key{key} {policy}\r\n")
            });
            peer.send(lines.collect::<String>());
            (0..1000).for_each(|_| drop(peer.read_reply()));
            keys += 1000;
        }
    }
    let (resident, bound) = (process.resident(), megabytes * 1024);
    let allowed = bound + bound / 10 + OWN;
    println!(
        "figure: a server with --max-memory {megabytes}mb and {} keys: {resident} KiB resident of {allowed}, \
         {base} before the first key",
        server.info_value("keys"),
    );
    // The code of a build for tests is larger.
    let code = if cfg!(debug_assertions) { base.saturating_sub(OWN) } else { 0 };
    assert!(resident <= allowed + code);
}

#[test]
fn max_memory_of_64_mb_bounds_the_process() {
    full_server("process::max_memory_of_64_mb_bounds_the_process", 64);
}

#[test]
fn max_memory_of_128_mb_bounds_the_process() {
    full_server("process::max_memory_of_128_mb_bounds_the_process", 128);
}

#[test]
fn max_memory_of_256_mb_bounds_the_process() {
    full_server("process::max_memory_of_256_mb_bounds_the_process", 256);
}

#[test]
fn max_memory_of_1024_mb_bounds_the_process() {
    full_server("process::max_memory_of_1024_mb_bounds_the_process", 1024);
}
