//! Holds under faults: replies that are lost with their connection, and keys that are renamed, copied and restored.

use std::io::{Read, Write};

use redis::Value;
use sluicegate_testing::{Engine, RawClient, Server, integers};

use crate::{
    on_both,
    replication::SeededRng,
    server::{serve, with_test_clock},
};

/// Sends a command on a connection of its own, which is closed before its reply is read, or before the command is whole.
fn lose(server: &Server, line: &str, is_whole: bool) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let words: Vec<_> = line.split(' ').collect();
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    let sent = if is_whole { text.len() } else { text.len() / 2 };
    stream.write_all(&text.as_bytes()[..sent]).unwrap();
    if is_whole {
        // It has been applied when its reply begins.
        stream.read_exact(&mut [0]).unwrap();
    }
}

/// A client that lost up to two replies sends the command again on another connection, until it has one.
fn call_again(server: &Server, draw: &mut SeededRng, line: &str, lost: &mut usize) -> bool {
    for _ in 0..draw.below(3) {
        lose(server, line, draw.below(3) > 0);
        *lost += 1;
    }
    match server.raw_client().call(line).unwrap_or_else(|error| panic!("{line}: {error}")) {
        Value::Array(each) if line.starts_with("SG.TAKEALL") => integers(&each[0])[0] == 1,
        reply => integers(&reply)[0] == 1,
    }
}

fn in_use(peer: &mut RawClient, key: &str, policy: &str) -> i64 {
    let actual = peer.integers(&format!("SG.PEEK {key} {policy} COST 0"));
    actual[1] - actual[2]
}

const RATE: &str = "fixed-window:1000000/365d";

fn hold_sent_again_after_a_cut_connection_counts_once(engine: Engine) {
    let server = serve(engine);
    let mut draw = SeededRng(5);
    let (mut lost, mut expected) = (0, [0_i64; 3]);
    for stream in 0..60 {
        let (cost, used) = (1 + draw.below(50), draw.below(80));
        let hold = match stream % 3 {
            0 => format!("SG.HOLD k0 {RATE} s{stream} COST {cost} TTL 3000000000"),
            1 => {
                format!(
                    "SG.HOLD k1 concurrency:5000/1h,{RATE} s{stream} COST {cost} TTL 3000000000"
                )
            }
            _ => format!(
                "SG.TAKEALL 2 k2 {RATE} {cost} k3 concurrency:100/1h 1 ID s{stream} TTL 3000000000"
            ),
        };
        let key = stream % 3;
        assert!(call_again(&server, &mut draw, &hold, &mut lost), "{hold}");
        let renew = format!("SG.RENEW k{key} {RATE} s{stream} TTL 3600000000");
        assert!(call_again(&server, &mut draw, &renew, &mut lost));
        // Some are never settled. The reply to a settle may be that its first copy has ended the hold.
        if stream % 5 > 0 {
            let settle = format!("SG.SETTLE k{key} {RATE} s{stream} USED {used}");
            call_again(&server, &mut draw, &settle, &mut lost);
        }
        expected[key] += i64::try_from(if stream % 5 > 0 { used } else { cost }).unwrap();
    }
    let mut peer = server.raw_client();
    let found = [0, 1, 2].map(|key| in_use(&mut peer, &format!("k{key}"), RATE));
    println!(
        "figure: {engine:?}: 60 streams, {lost} replies lost with their connections: {found:?} units in use"
    );
    assert_eq!(found, expected);
    // None of these was settled.
    assert_eq!(in_use(&mut peer, "k3", "concurrency:100/1h"), 20);
    assert_eq!(peer.info_value("sluicegate", "sluicegate_panics"), 0);
}

/// Open holds go with the key: they are settled under its new name, and the copy has its own.
fn key_with_open_holds_may_be_renamed_copied_and_restored(engine: Engine) {
    let server = with_test_clock(engine);
    let mut peer = server.raw_client();
    let at = 1_700_000_000_000_000_u64;
    let policy = "concurrency:9/1h,gcra:100/1h";
    for (id, cost) in [("a", 2), ("b", 3)] {
        let hold = format!("SG.HOLD old {policy} {id} COST {cost} AT {at}");
        assert_eq!(peer.integers(&hold)[0], 1);
    }
    let dumped = match peer.call("DUMP old").unwrap() {
        Value::BulkString(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    let ttl = peer.call("PTTL old").unwrap();
    let Value::Int(ttl) = ttl else { panic!("{ttl:?}") };
    assert!(ttl > 0);
    peer.call_bytes(&[b"RESTORE", b"restored", ttl.to_string().as_bytes(), &dumped]).unwrap();
    assert_eq!(peer.call("COPY old copied"), Ok(Value::Int(1)));
    peer.call("RENAME old renamed").unwrap();
    let keys = ["renamed", "copied", "restored"];
    for (number, key) in (1..).zip(keys) {
        let lives = peer.call(&format!("PTTL {key}")).unwrap();
        assert!(matches!(lives, Value::Int(1..)), "{key}: {lives:?}");
        let line = |rest: &str| format!("{rest} AT {}", at + 1_000);
        let peek = peer.integers(&line(&format!("SG.PEEK {key} concurrency:9/1h COST 0")));
        assert_eq!(peek[1] - peek[2], 5, "{key}");
        assert_eq!(peer.integers(&line(&format!("SG.RENEW {key} {policy} b")))[0], 1, "{key}");
        let settle = line(&format!("SG.SETTLE {key} {policy} a USED {number}"));
        assert_eq!(peer.integers(&settle)[0], 1, "{key}");
        assert_eq!(peer.integers(&settle)[3], -1, "{key}: it is settled once");
        let again = line(&format!("SG.HOLD {key} {policy} b COST 9"));
        assert_eq!(peer.integers(&again)[0], 1, "{key}: it is open");
    }
    // Each key has been charged for its settles, and holds the rest.
    for (number, key) in (1..).zip(keys) {
        let peek = peer.integers(&format!("SG.PEEK {key} gcra:100/1h COST 0 AT {}", at + 1_000));
        assert_eq!(peek[1] - peek[2], 3 + number, "{key}");
    }
    let old = peer.integers(&format!("SG.SETTLE old {policy} b AT {at}"));
    assert_eq!(old[3], -1, "nothing is left under the old name");
    assert_eq!(peer.call("EXISTS old"), Ok(Value::Int(0)));
}

on_both! {
    hold_sent_again_after_a_cut_connection_counts_once
    key_with_open_holds_may_be_renamed_copied_and_restored
}
