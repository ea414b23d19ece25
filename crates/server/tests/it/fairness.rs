//! Clients with expensive commands, and others on the same worker (RELIABILITY 47, 55 and 62).

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use sluicegate_resp::{Value, encode_command};

use crate::harness::{RawClient, Running, any_port, integers, now, simple, size};

/// A server with one worker, so that all clients are on it.
fn one_worker() -> Running {
    Running::with(|config| config.workers = Some(1))
}

/// A key with `events` events in its log.
fn fill(server: &Running, key: &str, events: usize) {
    let mut peer = server.connect();
    let mut bytes = Vec::new();
    for _ in 0..500 {
        let policy = "sliding-log:10000000/1d";
        encode_command(&[b"SG.TAKE", key.as_bytes(), policy.as_bytes()], &mut bytes);
    }
    for _ in 0..events / 500 {
        peer.send(&bytes);
        (0..500).for_each(|_| drop(peer.read_reply()));
    }
}

/// Sends `PING` until `stop`, and returns the latency of each.
fn pings(server: &Running, stop: &AtomicBool) -> Vec<Duration> {
    let mut peer = server.connect();
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) || times.len() < 20 {
        let start = now();
        assert_eq!(peer.call("PING"), simple("PONG"));
        times.push(start.elapsed());
    }
    times
}

/// What another client saw while a server had work.
struct Beside {
    /// The latencies of its commands, sorted.
    waited: Vec<Duration>,
    /// How long the work took.
    took: Duration,
}

impl Beside {
    fn most(&self) -> Duration {
        self.waited[self.waited.len() - 1]
    }

    fn median(&self) -> Duration {
        self.waited[self.waited.len() / 2]
    }
}

/// Does `work` while another client sends commands.
fn beside(server: &Running, work: impl FnOnce()) -> Beside {
    let stop = AtomicBool::new(false);
    let mut took = Duration::ZERO;
    let mut waited = thread::scope(|scope| {
        let pings = scope.spawn(|| pings(server, &stop));
        let start = now();
        work();
        took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        pings.join().unwrap()
    });
    waited.sort_unstable();
    Beside { waited, took }
}

/// Whether one of a few measurements `is_fair`. Other load of the machine makes some figures worse. A worker that does not
/// yield makes all of them worse.
#[must_use]
fn fair(
    what: &str,
    mut measure: impl FnMut() -> Beside,
    is_fair: impl Fn(&Beside) -> bool,
) -> bool {
    (0..8).any(|_| {
        let beside = measure();
        println!(
            "figure: beside {what}, which took {:?}, {} replies to another client took p50 {:?}, p99 {:?}, at most {:?}",
            beside.took,
            beside.waited.len(),
            beside.median(),
            beside.waited[beside.waited.len() * 99 / 100],
            beside.most(),
        );
        is_fair(&beside)
    })
}

/// Opens `holds` holds of a key, which are charged when they expire: in another order than they are opened, unless `step` is 1.
fn hold(server: &Running, key: &str, holds: usize, step: usize) {
    let mut peer = server.connect();
    for first in (0..holds).step_by(500) {
        let ids = first..holds.min(first + 500);
        let count = ids.len();
        let commands = ids
            .map(|id| (id, 3_600_000_000 + id * step % holds))
            .map(|(id, ttl)| format!("SG.HOLD {key} gcra:100000/1h {id} TTL {ttl}\r\n"));
        peer.send(commands.collect::<String>());
        (0..count).for_each(|_| assert_eq!(integers(&peer.read_reply())[0], 1));
    }
}

/// The work of a command does not grow with the stored events of a key, and little with its holds, and many commands give
/// way to others.
#[test]
fn fairness_commands_on_a_large_key_yield() {
    let server = one_worker();
    let events = size("SLUICEGATE_LARGE_EVENTS", 60_000);
    fill(&server, "large", events);
    hold(&server, "held", 60_000, 1);
    hold(&server, "scattered", 60_000, 7919);
    let eight = |algorithm: &str| {
        (0..8)
            .map(|less| format!("{algorithm}:{}/1h", 100_000 - less))
            .collect::<Vec<_>>()
            .join(",")
    };
    let names = vec!["large"; 1022].join(" ");
    for (command, times) in [
        (format!("EXISTS {names}"), 20),
        ("TTL large".to_owned(), 200),
        ("SG.INFO large".to_owned(), 200),
        // Another policy each time: the state is migrated without a copy.
        (
            "SG.TAKE large sliding-log:10000000/2d\r\nSG.TAKE large sliding-log:9000000/1d"
                .to_owned(),
            100,
        ),
        ("SG.PEEK large sliding-log:10000000/3d".to_owned(), 100),
        (format!("SG.PEEK held {} COST 99000", eight("sliding-log")), 2),
        (format!("SG.PEEK scattered {} COST 99000", eight("sliding-log")), 2),
        // Rates that the key does not keep.
        (format!("SG.PEEK scattered {}", eight("gcra")), 200),
        (format!("SG.PEEK scattered {} COST 99000", eight("gcra")), 200),
        (format!("SG.PEEK scattered {} COST 99000", eight("fixed-window")), 200),
        ("SG.RENEW scattered gcra:100000/1h 7 TTL 3600000000".to_owned(), 200),
    ] {
        let mut peer = server.connect();
        let text = format!("{command}\r\n").repeat(times);
        let replies = times * (1 + command.matches("\r\n").count());
        let measure = || {
            beside(&server, || {
                peer.send(&text);
                (0..replies).for_each(|_| drop(peer.read_reply()));
            })
        };
        let name: String = command.chars().take(30).collect();
        // Earlier versions occupied the worker until all of these were done.
        let what = format!("{replies} of `{name}` on {events} events");
        let judge =
            |beside: &Beside| beside.most() < (beside.took / 4).max(Duration::from_millis(100));
        assert!(fair(&what, measure, judge), "{what}");
    }
}

/// Number of takes of one command, under policies of one log and of eight in turn: half of them copy it seven times,
/// as long as it is too short to be shared.
const TAKES: usize = 256;
const COPIED: usize = 2_000;

fn policies() -> impl Iterator<Item = String> {
    let eight: Vec<_> = (1..=8).map(|days| format!("sliding-log:10000000/{days}d")).collect();
    [eight.join(","), "sliding-log:10000000/1d".to_owned()].into_iter().cycle()
}

/// Counts the replies to another client until `stream` has its own.
fn answered_before(server: &Running, stream: &TcpStream) -> usize {
    let mut other = server.connect();
    stream.set_nonblocking(true).unwrap();
    let mut count = 0;
    while stream.peek(&mut [0]).is_err_and(|it| it.kind() == ErrorKind::WouldBlock) {
        assert_eq!(other.call("PING"), simple("PONG"));
        count += 1;
    }
    stream.set_nonblocking(false).unwrap();
    count
}

/// One command that takes longer than a turn yields to others between its items, whose replies keep their order. A
/// command after it is decided after all of it. It takes a few milliseconds at most: long commands have many turns,
/// which `decide` tests.
#[test]
fn fairness_long_command_yields_between_its_items() {
    let server = one_worker();
    let events = COPIED;
    fill(&server, "large", events);
    let mut peer = server.connect();
    let takes: String = policies().take(TAKES).map(|policy| format!(" large {policy} 1")).collect();
    peer.send(format!("SG.MTAKE {TAKES}{takes}\r\nSG.PEEK large sliding-log:10000000/1d\r\n"));
    let others = answered_before(&server, &peer.stream);
    let Value::Array(replies) = peer.read_reply() else { panic!("no array") };
    let left = |reply: &Value| 10_000_000 - usize::try_from(integers(reply)[2]).unwrap();
    let used: Vec<_> = replies.iter().map(left).collect();
    let filled = events / 500 * 500;
    assert_eq!(used, (filled + 1..=filled + TAKES).collect::<Vec<_>>());
    assert_eq!(left(&peer.read_reply()), filled + TAKES, "behind it");
    println!(
        "figure: beside one SG.MTAKE of {TAKES} on {events} events, another client was answered {others} times"
    );
}

#[test]
fn fairness_long_http_request_yields_between_its_takes() {
    let server = Running::with(|config| {
        config.workers = Some(1);
        config.http.address = Some(any_port());
    });
    fill(&server, "large", COPIED);
    let take = |policy| format!(r#"{{"key":"large","policy":"{policy}"}}"#);
    let takes: Vec<_> = policies().take(TAKES).map(take).collect();
    let body = format!(r#"{{"requests":[{}]}}"#, takes.join(","));
    let mut stream = TcpStream::connect(server.http.unwrap()).unwrap();
    let length = body.len();
    let head =
        "POST /v1/take_many HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let others = answered_before(&server, &stream);
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply.matches("\"allowed\":true").count(), TAKES, "{reply}");
    println!("figure: beside one take_many of {TAKES}, another client was answered {others} times");
}

/// A stop does not wait for all commands on a large key.
#[test]
fn stop_behind_expensive_commands_ends_within_five_seconds() {
    let mut server = one_worker();
    fill(&server, "large", size("SLUICEGATE_LARGE_EVENTS", 60_000));
    let names = vec!["large"; 1022].join(" ");
    let mut peers: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for peer in &mut peers {
        peer.send(format!("EXISTS {names}\r\n").repeat(40));
    }
    let start = now();
    server.begin_to_stop();
    for peer in &mut peers {
        // Input that had not arrived is not answered, and the connection ends.
        let _ = peer.stream.read_to_end(&mut Vec::new());
    }
    drop(server);
    let took = start.elapsed();
    println!("figure: a stop behind 160 commands of 1022 names took {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Clients that send as much as they can have turns as short as others.
#[test]
fn fairness_greedy_pipelines_yield() {
    let server = one_worker();
    let seconds = size("SLUICEGATE_GREEDY_SECONDS", 1);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in 0..4 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut bytes = Vec::new();
                let key = format!("greedy{client}");
                while bytes.len() < 1024 * 1024 {
                    encode_command(&[b"SG.TAKE", key.as_bytes(), b"gcra:1000/1s"], &mut bytes);
                }
                let mut peer = server.connect();
                let mut reader = peer.stream.try_clone().unwrap();
                let drain = thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
                while !stop.load(Ordering::Relaxed) {
                    peer.send(&bytes);
                }
                peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
                drain.join().unwrap().unwrap();
            });
        }
        let measure = || {
            beside(&server, || {
                let start = now();
                while start.elapsed() < Duration::from_secs(seconds as u64) {
                    sluicegate_testing::pause(Duration::from_millis(10));
                }
            })
        };
        // Clients keep all processors busy: the test only asserts that it has a turn at all.
        let is_fair = fair("four clients with pipelines of 1 MiB", measure, |beside| {
            beside.median() < Duration::from_millis(50)
        });
        stop.store(true, Ordering::Relaxed);
        assert!(is_fair);
    });
}

/// Sends `text` on new connections and reads all replies, one client after the other, while another client sends commands.
fn beside_pipelines(server: &Running, clients: usize, text: &str, replies: usize) -> Beside {
    let mut peers: Vec<_> = (0..clients).map(|_| server.connect()).collect();
    beside(server, || {
        peers.iter_mut().for_each(|peer| peer.send(text));
        for peer in &mut peers {
            (0..replies).for_each(|_| drop(peer.read_reply()));
        }
    })
}

/// A turn is as short with long replies: it spans all writes.
#[test]
fn fairness_long_replies_yield() {
    let server = one_worker();
    let clients = size("SLUICEGATE_LISTED_CLIENTS", 600);
    let idle: Vec<_> = (0..clients).map(|_| server.connect()).collect();
    for (command, greedy, times) in [
        ("CLIENT LIST", 1, 300),
        // Each for the first time in its turn.
        ("CLIENT LIST", 150, 1),
        ("COMMAND DOCS", 4, 100),
        ("INFO", size("SLUICEGATE_GREEDY_CLIENTS", 150), 100),
    ] {
        let text = format!("{command}\r\n").repeat(times);
        // Earlier versions occupied the worker until all of these were done.
        let measure = || beside_pipelines(&server, greedy, &text, times);
        let what = format!("{greedy} clients with {times} of `{command}`");
        assert!(fair(&what, measure, |beside| beside.most() < beside.took / 2), "{what}");
    }
    drop(idle);
}

/// A request at the end of a long queue costs no more than one at the end of a short queue.
#[test]
fn wait_arrival_cost_is_independent_of_queue_length() {
    let server = one_worker();
    let policy =
        (1..=8).map(|hours| format!("sliding-log:1000/{hours}h")).collect::<Vec<_>>().join(",");
    let mut peer = server.connect();
    assert_eq!(peer.integers(&format!("SG.TAKE line {policy} COST 500"))[0], 1);
    for _ in 0..500 {
        assert_eq!(peer.integers(&format!("SG.TAKE line {policy}"))[0], 1);
    }
    // The median of the times of some arrivals.
    let mut arrive = || {
        let mut times: Vec<_> = (0..51)
            .map(|_| {
                let start = now();
                assert_eq!(peer.integers(&format!("SG.WAIT line {policy} TIMEOUT 1"))[0], 0);
                start.elapsed()
            })
            .collect();
        *times.select_nth_unstable(25).1
    };
    let mut waiting = Vec::new();
    let wait = |waiting: &mut Vec<RawClient>, count: usize| {
        while waiting.len() < count {
            let mut peer = server.connect();
            peer.send_command(&format!("SG.WAIT line {policy} TIMEOUT 86400000000"));
            waiting.push(peer);
        }
        server.until_exactly("blocked_clients", count as u64);
    };
    wait(&mut waiting, 20);
    let short = arrive();
    wait(&mut waiting, size("SLUICEGATE_WAITERS", 400).min(999));
    let long = arrive();
    println!(
        "figure: an arrival took {short:?} behind 20 waiters, {long:?} behind {}",
        waiting.len()
    );
    assert!(long < short * 5 + Duration::from_millis(2), "{short:?} {long:?}");
}

/// Input after a waiting command stays in the buffers of the system until the wait ends.
#[test]
fn waiting_client_that_sends_on_is_answered_and_noticed_when_it_leaves() {
    let server = one_worker();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE k gcra:1/200ms")[0], 1);
    let echo = format!("ECHO {}\r\n", "x".repeat(1000));
    peer.send("SG.WAIT k gcra:1/200ms\r\n");
    peer.send(echo.repeat(100));
    assert_eq!(integers(&peer.read_reply())[0], 1);
    for _ in 0..100 {
        assert!(matches!(peer.read_reply(), Value::Bulk(text) if text.len() == 1000));
    }
    peer.send("SG.WAIT k gcra:1/1h TIMEOUT 7200000000\r\n");
    peer.send(echo.repeat(100));
    server.until_exactly("blocked_clients", 1);
    drop(peer);
    server.until_exactly("blocked_clients", 0);
    assert_eq!(server.info_value("buffer_bytes"), 0);
}

/// The server notices the end of a client that sends more than is kept; the client gets the error after the wait.
#[test]
fn waiting_client_that_sends_more_than_is_kept_is_answered_and_closed() {
    is_answered_and_closed(&one_worker(), "262144 bytes behind a command that waits\r\n");
}

#[test]
fn waiting_client_for_whose_bytes_is_no_memory_is_answered_and_closed() {
    let server = Running::with(|config| {
        config.workers = Some(1);
        config.max_buffer_memory = 32 * 1024;
    });
    is_answered_and_closed(&server, "\r\n-ERR max buffer memory reached\r\n");
}

/// The server notices that a client has closed its side although each of its next commands waits for less than the time after
/// which the server reads on. The replies still arrive: an error does not end the connection.
#[test]
fn waiting_client_that_leaves_more_short_waits_than_are_kept_is_noticed() {
    let server = one_worker();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE w gcra:1/1s")[0], 1);
    peer.send("SG.WAIT w gcra:1/1s TIMEOUT 3600000000\r\n".repeat(12_000));
    server.until_exactly("blocked_clients", 1);
    peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
    server.until_exactly("connected_clients", 1);
    assert_eq!(server.info_value("blocked_clients"), 0);
    assert_eq!(server.info_value("buffer_bytes"), 0);
}

/// Sends more behind a command that waits than the server keeps. `error` is the end of its last reply.
fn is_answered_and_closed(server: &Running, error: &str) {
    let line = format!("ECHO {}\r\n", "x".repeat(1000)).repeat(1000);
    let mut left = server.connect();
    assert_eq!(left.integers("SG.TAKE k gcra:1/1h")[0], 1);
    let wait = |peer: &mut RawClient, blocked| {
        peer.send("SG.WAIT k gcra:1/1h TIMEOUT 7200000000\r\n");
        peer.send(&line);
        server.until_exactly("blocked_clients", blocked);
    };
    let mut stays = server.connect();
    wait(&mut left, 1);
    drop(left);
    server.until_exactly("blocked_clients", 0);
    wait(&mut stays, 1);
    // The server reads everything, though it keeps only a part: more than the buffers of the system hold.
    let mut sent = 0;
    stays.stream.set_nonblocking(true).unwrap();
    sluicegate_testing::eventually("all that is sent is taken", || {
        use std::io::Write as _;
        sent += stays.stream.write(&[b'x'; 65_536]).unwrap_or(0);
        if sent > 32 << 20 { Ok(()) } else { Err(sent) }
    });
    stays.stream.set_nonblocking(false).unwrap();
    assert!(server.info_value("buffer_bytes") <= 256 * 1024);
    assert_eq!(server.connect().call("SG.RESET k"), Value::Integer(1));
    assert_eq!(integers(&stays.read_reply())[0], 1);
    let rest = stays.rest();
    let end = &rest[rest.len().saturating_sub(200)..];
    assert!(end.ends_with(error), "{end}");
}

/// Requests that could wait and are answered immediately take no longer turns than others.
#[test]
fn fairness_waits_answered_at_once_yield() {
    let server = one_worker();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE w sliding-log:100/1h COST 100")[0], 1);
    let (clients, times) = (size("SLUICEGATE_GREEDY_CLIENTS", 150), 150);
    let text = "SG.WAIT w sliding-log:100/1h TIMEOUT 1\r\n".repeat(times);
    let measure = || beside_pipelines(&server, clients, &text, times);
    let what = format!("{clients} clients with {times} of `SG.WAIT`");
    assert!(fair(&what, measure, |beside| beside.most() < beside.took / 2));
}

/// Few of many slow commands have a turn before other connections are polled.
#[test]
fn fairness_many_long_commands_yield_to_other_clients() {
    let server = one_worker();
    fill(&server, "large", size("SLUICEGATE_LARGE_EVENTS", 60_000));
    let clients = size("SLUICEGATE_GREEDY_CLIENTS", 150);
    let takes: String = policies().take(TAKES).map(|policy| format!(" large {policy} 1")).collect();
    let text = format!("SG.MTAKE {TAKES}{takes}\r\n");
    let measure = || {
        let mut peers: Vec<_> = (0..clients).map(|_| server.connect()).collect();
        beside(&server, || {
            peers.iter_mut().for_each(|peer| peer.send(&text));
            for peer in &mut peers {
                let Value::Array(replies) = peer.read_reply() else { panic!("no array") };
                assert_eq!(replies.len(), TAKES);
            }
        })
    };
    // One or two wait for the first turns of all, the others for turns in the lane.
    let judge = |beside: &Beside| beside.waited[beside.waited.len() - 3] < beside.took / 10;
    assert!(fair(&format!("{clients} clients with a long SG.MTAKE"), measure, judge));
}

/// Looks at a key with many holds under rates that the key does not keep: each reads all holds for each limit.
#[test]
fn fairness_looks_at_many_holds_by_many_clients_yield() {
    let server = one_worker();
    hold(&server, "scattered", 60_000, 7919);
    let (clients, times) = (30, 20);
    let rates: Vec<_> = (1..=8).map(|hours| format!("gcra:100000/{hours}h")).collect();
    let text = format!("SG.PEEK scattered {}\r\n", rates.join(",")).repeat(times);
    let measure = || beside_pipelines(&server, clients, &text, times);
    // One waits for the first looks of all, the others for looks in the lane.
    let judge = |beside: &Beside| {
        beside.most() < beside.took / 4 && beside.waited[beside.waited.len() - 2] < beside.took / 10
    };
    assert!(fair(&format!("{clients} clients with {times} looks"), measure, judge));
}
