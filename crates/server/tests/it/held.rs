//! Memory that RESP clients can make the server hold (RELIABILITY 48): a process of its own, with default
//! settings.

use std::{
    env,
    io::{self, Write},
    net::TcpStream,
};

use sluicegate_server::StoreConfig;
use sluicegate_testing::{Engine, Server, eventually, eventually_within};

use crate::{
    child_process::{Process, most_files, process, process_with},
    harness::{TEST_TIMEOUT, TempDir, simple, size},
};

/// Bound on the memory of the process under attack, in KiB.
const MAX_HELD: usize = 128 * 1024;

/// The number of clients: the size of the test, limited by the files that this process may open.
fn clients(name: &str, usual: usize) -> usize {
    size(name, usual).min(most_files() - 100)
}

/// Connects clients, and sends `text` on each until the system accepts no more.
fn flood(process: &Process, count: usize, text: &[u8]) -> Vec<(TcpStream, usize)> {
    let mut peers: Vec<_> = (0..count)
        .map(|_| {
            let stream = TcpStream::connect(process.server.address).unwrap();
            stream.set_nonblocking(true).unwrap();
            (stream, 0)
        })
        .collect();
    let mut still = 0;
    eventually_within(TEST_TIMEOUT, "the server takes nothing more", || {
        let mut moved = false;
        for (stream, sent) in &mut peers {
            while *sent < text.len() {
                match stream.write(&text[*sent..]) {
                    Ok(count) => *sent += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // It is closed and must not be retried.
                    Err(_) => *sent = text.len(),
                }
                moved = true;
            }
        }
        still = if moved { 0 } else { still + 1 };
        if still > 100 { Ok(()) } else { Err(still) }
    });
    peers
}

/// Checks that the server holds little more memory than `before` once all clients have left.
fn all_is_returned(process: &Process, before: usize) -> usize {
    process.server.until_exactly("connected_clients", 1);
    process.server.until_exactly("buffer_bytes", 0);
    let most = before + before / 10 + 8 * 1024;
    eventually("memory goes back to the system", || {
        let now = process.resident();
        if now <= most { Ok(now.saturating_sub(before)) } else { Err((now, most)) }
    })
}

#[test]
fn wait_clients_that_keep_sending_hold_little_memory() {
    let name = "held::wait_clients_that_keep_sending_hold_little_memory";
    let Some(process) = process(name, 20_000, |_, _| {}) else { return };
    let count = clients("SLUICEGATE_WAITING_CLIENTS", 300);
    assert_eq!(process.server.connect().call("PING"), simple("PONG"));
    let before = process.resident();
    let mut streams = Vec::new();
    // A thousand may wait for one key.
    for (key, part) in (0..count).step_by(900).enumerate() {
        let text = format!("SG.WAIT k{key} gcra:1/1h TIMEOUT 9000000000000\r\n");
        let mut text = text.into_bytes();
        text.resize(1024 * 1024, b'x');
        assert_eq!(process.server.connect().integers(&format!("SG.TAKE k{key} gcra:1/1h"))[0], 1);
        streams.extend(flood(&process, 900.min(count - part), &text));
    }
    // Beyond the budget they are rejected.
    eventually_within(TEST_TIMEOUT, "all wait or are rejected", || {
        let [waiting, rejected] =
            ["blocked_clients", "buffer_rejections"].map(|name| process.server.info_value(name));
        if waiting + rejected >= count as u64 { Ok(()) } else { Err((waiting, rejected)) }
    });
    let held = process.resident().saturating_sub(before);
    drop(streams);
    let left = all_is_returned(&process, before);
    println!(
        "figure: {count} waiting clients with 1 MB behind hold {held} KiB, {left} KiB after they left"
    );
    assert!(held <= MAX_HELD, "{held} KiB");
}

/// Clients that wait for their worker, or do not read replies, hold no buffers besides the reserved ones.
#[test]
fn pipeline_clients_hold_little_memory() {
    let name = "held::pipeline_clients_hold_little_memory";
    let budget = 16 << 20;
    let process = process(name, 20_000, |config, _| {
        config.max_buffer_memory = budget;
        config.workers = Some(2);
    });
    let Some(process) = process else { return };
    let count = clients("SLUICEGATE_PIPELINING_CLIENTS", 1500);
    assert_eq!(process.server.connect().call("PING"), simple("PONG"));
    let before = process.resident();
    let names = (0..20).map(|number| format!("name{number}")).collect::<Vec<_>>().join(" ");
    let text = format!("EXISTS {names}\r\n").repeat(120);
    let streams = flood(&process, count, text.as_bytes());
    let commands = count as u64 * 120;
    process.server.until_at_least("total_commands_processed", commands);
    let held = process.peak().saturating_sub(before);
    let rejected = process.server.info_value("buffer_rejections");
    drop(streams);
    let left = all_is_returned(&process, before);
    println!(
        "figure: {count} clients with 120 commands hold at most {held} KiB, {rejected} were rejected; \
         {left} KiB after they left"
    );
    assert_eq!(rejected, 0);
    assert!(held <= (budget >> 10) + count * 6, "{held} KiB");
}

/// A key of 64 000 bytes, different for each number.
fn long_key(number: usize) -> String {
    format!("{number:x>64000}")
}

#[test]
fn wait_long_keys_stay_within_the_budget() {
    let name = "held::wait_long_keys_stay_within_the_budget";
    let Some(process) = process(name, 20_000, |_, _| {}) else { return };
    let count = 1300.min(most_files() - 100);
    assert_eq!(process.server.connect().call("PING"), simple("PONG"));
    let before = process.resident();
    let server = &process.server;
    let mut peer = server.connect();
    for number in 0..count {
        let take = format!("SG.TAKE {} fixed-window:1/1h", long_key(number));
        assert_eq!(peer.integers(&take)[0], 1);
    }
    let peers: Vec<_> = (0..count)
        .map(|number| {
            let key = long_key(number);
            let mut waits = server.connect();
            waits.send(format!("SG.WAIT {key} fixed-window:1/1h TIMEOUT 4000000000000\r\n"));
            // It waits or is rejected before the next one is sent, so that more of them are accepted.
            eventually("it waits or is rejected", || {
                let actual =
                    server.info_value("blocked_clients") + server.info_value("buffer_rejections");
                if actual > number as u64 { Ok(()) } else { Err(actual) }
            });
            waits
        })
        .take_while(|_| server.info_value("buffer_rejections") == 0)
        .collect();
    let (waiting, rejected) =
        (server.info_value("blocked_clients"), server.info_value("buffer_rejections"));
    let held = process.resident().saturating_sub(before);
    let (bytes, most) = (server.info_value("buffer_bytes"), server.info_value("buffer_max_bytes"));
    assert!(rejected > 0 && waiting * 64_000 <= most && bytes <= most, "{waiting} {bytes} {most}");
    drop((peers, peer));
    let left = all_is_returned(&process, before);
    println!(
        "figure: {waiting} clients that wait under keys of 64 KB hold {held} KiB, {rejected} were rejected; \
         {left} KiB after they left"
    );
    assert!(held <= MAX_HELD, "{held} KiB");
}

/// Denials of a store are cached by a hash of the key, therefore the length of the key does not matter.
#[test]
fn denial_of_long_keys_holds_little_memory() {
    const STORE: &str = "SLUICEGATE_TEST_STORE";
    let name = "held::denial_of_long_keys_holds_little_memory";
    let mut store = None;
    let start = |_: &TempDir| {
        let started = Server::start(Engine::Redis70);
        let url = started.url();
        store = Some(started);
        vec![(STORE, url)]
    };
    let process = process_with(name, 1024, start, |config, _| {
        let mut at = StoreConfig::new(env::var(STORE).unwrap());
        at.redis.deadline = TEST_TIMEOUT;
        config.store = Some(at);
    });
    let Some(process) = process else { return };
    let mut peer = process.server.connect();
    let mut denied = |number| {
        let reply = peer.integers(&format!("SG.TAKE {} gcra:1/1s COST 2", long_key(number)));
        assert_eq!((reply[0], reply[3]), (0, -1));
    };
    denied(0);
    let before = process.resident();
    let keys = 1000;
    (1..=keys).for_each(&mut denied);
    let held = process.resident().saturating_sub(before);
    println!("figure: {keys} remembered denials of keys of 64 KB hold {held} KiB");
    assert!(held <= 8 * 1024, "{held} KiB");
}

/// Clients whose commands wait for an unavailable store keep little besides their reservation.
#[test]
fn redis_store_pending_requests_hold_little_memory() {
    const STORE: &str = "SLUICEGATE_TEST_STORE";
    let name = "held::redis_store_pending_requests_hold_little_memory";
    let budget = 16 << 20;
    let word = |word: String| format!("${}\r\n{word}\r\n", word.len());
    let takes = (0..15).flat_map(|number| [long_key(number), "gcra:1/1h".into(), "1".into()]);
    let words = ["SG.MTAKE".to_owned(), "15".to_owned()].into_iter().chain(takes).map(word);
    let long = format!("*47\r\n{}", words.collect::<String>());
    let take = "SG.TAKE k fixed-window:9000000/1h\r\n";
    // The allocator keeps more where pieces are large.
    for (what, count, slack, text) in [
        ("one command", clients("SLUICEGATE_STORE_CLIENTS", 2_000), 4, take.to_owned()),
        ("400 commands", 200, 4, take.repeat(400)),
        ("a command of 1 MB", 60, 26, long),
    ] {
        let mut store = None;
        let start = |_: &TempDir| {
            let started = Server::start(Engine::Redis70);
            let url = started.url();
            store = Some(started);
            vec![(STORE, url)]
        };
        let process = process_with(name, 20_000, start, |config, _| {
            let mut at = StoreConfig::new(env::var(STORE).unwrap());
            at.redis.deadline = TEST_TIMEOUT;
            config.store = Some(at);
            config.max_buffer_memory = budget;
            config.workers = Some(2);
        });
        let (Some(process), Some(store)) = (process, store) else { return };
        assert_eq!(process.server.connect().integers(take.trim())[0], 1);
        let before = process.resident();
        store.signal("-STOP");
        // Requests that the store does not answer time out after about a second.
        let streams = flood(&process, count, text.as_bytes());
        let held = process.peak().saturating_sub(before);
        let rejected = process.server.info_value("buffer_rejections");
        store.signal("-CONT");
        drop(streams);
        let left = all_is_returned(&process, before);
        println!(
            "figure: {count} clients that wait for a store, {what} each, hold at most {held} KiB; {rejected} were \
             rejected; {left} KiB after they left"
        );
        assert!(held <= (budget >> 10) + count * 6 + slack * 1024, "{held} KiB: {what}");
    }
}

#[test]
fn command_unfinished_stays_within_the_budget() {
    let name = "held::command_unfinished_stays_within_the_budget";
    let Some(process) = process(name, 20_000, |_, _| {}) else { return };
    let count = clients("SLUICEGATE_UNFINISHED_CLIENTS", 1500);
    let mut served = process.server.connect();
    assert_eq!(served.call("PING"), simple("PONG"));
    let before = process.resident();
    let mut text = b"*2\r\n$4\r\nECHO\r\n$131072\r\n".to_vec();
    text.resize(61_000, b'x');
    let streams = flood(&process, count, &text);
    let info = |name| process.server.info_value(name);
    // The kernel may hold what the clients sent when the server has yet to read it.
    let (mut last, mut times) = (0, 0);
    let what = "clients are rejected, and the server has read the rest";
    eventually_within(TEST_TIMEOUT, what, || {
        let (bytes, rejected) = (info("buffer_bytes"), info("buffer_rejections"));
        times = if rejected > 0 && bytes == last { times + 1 } else { 0 };
        last = bytes;
        if times == 100 { Ok(()) } else { Err((bytes, rejected)) }
    });
    let held = process.resident().saturating_sub(before);
    let (bytes, most) = (info("buffer_bytes"), info("buffer_max_bytes"));
    let rejected = info("buffer_rejections");
    assert!(
        bytes <= most / 4 * 3 && most == 64 << 20,
        "{bytes} of {most}: none is left for other clients"
    );
    assert_eq!(served.integers("SG.TAKE k gcra:1/1h")[0], 1, "others are served");
    drop((streams, served));
    let left = all_is_returned(&process, before);
    println!(
        "figure: {count} clients with 60 KB of a command hold {held} KiB, {rejected} were rejected; {left} KiB \
         after they left"
    );
    assert!(held <= MAX_HELD, "{held} KiB");
}

#[test]
fn idle_clients_hold_no_buffers() {
    let name = "held::idle_clients_hold_no_buffers";
    let Some(process) = process(name, 20_000, |_, _| {}) else { return };
    let count = clients("SLUICEGATE_IDLE_CLIENTS", 1500).min(9_990);
    assert_eq!(process.server.connect().call("PING"), simple("PONG"));
    let before = process.resident();
    // All clients have sent their requests, and one has received many replies.
    let text = "SG.TAKE k gcra:30/1m\r\n".repeat(400);
    let streams: Vec<_> = (0..count)
        .map(|_| {
            let mut peer = process.server.connect();
            peer.send(&text);
            (0..400).for_each(|_| drop(peer.read_reply()));
            peer
        })
        .collect();
    let held = process.resident().saturating_sub(before);
    println!("figure: {count} idle clients hold {held} KiB, {} bytes each", held * 1024 / count);
    assert!(held * 1024 / count <= 7_000, "{} bytes each", held * 1024 / count);
    drop(streams);
    let left = all_is_returned(&process, before);
    println!("figure: {left} KiB after they left");
}

#[test]
fn max_buffer_memory_is_applied() {
    let name = "held::max_buffer_memory_is_applied";
    let Some(process) = process(name, 1024, |config, _| config.max_buffer_memory = 1 << 20) else {
        return;
    };
    let info = |name| process.server.info_value(name);
    // The number of rejected clients once the server has read what a client sent: it then holds more bytes than
    // `held`, or has rejected the client.
    let read_after = |held: u64| {
        eventually("the server has read what the client sent", || {
            let (bytes, rejected) = (info("buffer_bytes"), info("buffer_rejections"));
            if bytes >= held + 90_000 || rejected > 0 { Ok(rejected) } else { Err((bytes, held)) }
        })
    };
    let command = [b"*2\r\n$4\r\nECHO\r\n$131072\r\n", &[b'x'; 131_072][..], b"\r\n"].concat();
    let (start, rest) = command.split_at(100_000);
    let mut first = process.server.connect();
    first.send(start);
    assert_eq!(read_after(0), 0, "the first client is rejected");
    let mut peers = Vec::new();
    while peers.len() < 20 {
        let held = info("buffer_bytes");
        let mut peer = process.server.connect();
        let _ = peer.stream.write_all(start);
        peers.push(peer);
        if read_after(held) > 0 {
            break;
        }
    }
    assert!(peers.len() < 20, "no client is rejected");
    // The earlier client is served to the end.
    drop(peers);
    process.server.until_exactly("connected_clients", 2);
    first.send(rest);
    assert!(
        matches!(first.read_reply(), sluicegate_resp::Value::Bulk(text) if text.len() == 131_072)
    );
}
