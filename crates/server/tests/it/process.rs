//! What a server takes of its process: file descriptors and memory.

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use sluicegate_resp::Value;
use sluicegate_testing::{eventually, eventually_within};

use crate::{
    elsewhere::process,
    harness::{PATIENCE, simple, size},
};

#[test]
fn it_survives_running_out_of_file_descriptors() {
    let name = "process::it_survives_running_out_of_file_descriptors";
    let Some(process) = process(name, 64, |_, _| {}) else { return };
    let server = &process.server;
    let mut served = server.connect();
    assert_eq!(served.say("PING"), simple("PONG"));
    let many: Vec<_> = (0..100).map(|_| server.connect()).collect();
    eventually("connections fail to be accepted", || {
        let Value::Bulk(text) = served.say("INFO stats") else { panic!("no text") };
        let text = String::from_utf8(text).unwrap();
        if text.contains("accept_errors:0\r\n") { Err(text) } else { Ok(()) }
    });
    assert_eq!(served.say("PING"), simple("PONG"), "who is connected is served");
    drop(many);
    server.until_told("connected_clients", 2);
}

#[test]
fn clients_that_come_and_go_leave_nothing_open() {
    let name = "process::clients_that_come_and_go_leave_nothing_open";
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
    // One at a time may be refused as long as those before have not been seen to leave.
    eventually("a client is served", || {
        let mut heard = Vec::new();
        let mut peer = server.connect();
        let _ = peer.stream.write_all(b"PING\r\nQUIT\r\n");
        let _ = peer.stream.read_to_end(&mut heard);
        let heard = String::from_utf8(heard).unwrap();
        if heard.starts_with("+PONG\r\n") { Ok(()) } else { Err(heard) }
    });
    server.until_told("connected_clients", 1);
    let refused = server.told("rejected_connections");
    assert!(refused > 0);
    // The connection of `INFO` may still be open.
    process.until_open_files(before);
    // All permits are free again, and no more than there were.
    let peers = eventually("as many clients are served as may be", || {
        let mut peers: Vec<_> = (0..50).map(|_| server.connect()).collect();
        let replies = peers.iter_mut().map(|peer| peer.say("PING"));
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
fn clients_that_take_nothing_cost_little_and_are_closed() {
    let name = "process::clients_that_take_nothing_cost_little_and_are_closed";
    let Some(process) =
        process(name, 1024, |config, _| config.output_timeout = Duration::from_secs(1))
    else {
        return;
    };
    let server = &process.server;
    let readers = size("SLUICEGATE_SLOW_READERS", 100);
    assert_eq!(server.connect().say("PING"), simple("PONG"));
    let before = process.resident();
    let line = format!("ECHO {}\r\n", "x".repeat(60_000));
    let mut peers: Vec<_> = (0..readers).map(|_| (server.connect().stream, 0)).collect();
    for (stream, _) in &peers {
        stream.set_nonblocking(true).unwrap();
    }
    // All send what the system takes, over and over, until all are closed.
    let mut most = before;
    eventually_within(PATIENCE, "all clients are closed", || {
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
    server.until_told("closed_slow", readers as u64);
    let each = (most - before) / readers;
    // Of what is given back, the allocator keeps a little for later.
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

/// A length is a claim: memory goes for what has come.
#[test]
fn what_is_only_announced_costs_nothing() {
    let name = "process::what_is_only_announced_costs_nothing";
    let Some(process) = process(name, 1024, |_, _| {}) else { return };
    let server = &process.server;
    assert_eq!(server.connect().say("PING"), simple("PONG"));
    for announced in
        ["*1000000000\r\n", "*1\r\n$536870912\r\n", "*1024\r\n$131072\r\nx", "*2\r\n$131072\r\nx"]
    {
        let before = process.resident();
        let mut peers: Vec<_> = (0..200).map(|_| server.connect()).collect();
        for peer in &mut peers {
            peer.send(announced);
        }
        // By the time that all these are answered it has read those.
        for _ in 0..50 {
            assert_eq!(server.connect().say("PING"), simple("PONG"));
        }
        let each = process.resident().saturating_sub(before) / 200;
        let shown = announced.escape_debug();
        println!("figure: 200 clients that announce `{shown}`: {each} KiB each");
        assert!(each <= 64, "{shown}: {each} KiB");
    }
}
