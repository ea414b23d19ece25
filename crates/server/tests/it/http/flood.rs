//! Clients that make the server hold as much memory as they can: bodies, unread replies, and
//! connections. The memory is bounded in each case, and other clients are
//! served at the same time.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use sluicegate_testing::eventually;

use super::{
    client::Client,
    frames::{Frames, frame, head, post},
};
use crate::{
    child_process::{Process, process},
    harness::{Running, any_port, now, size},
};

/// Bound on the memory of the server under attack, in KiB.
const BOUND: usize = 128 * 1024;
/// KiB for memory that the allocator keeps, and for code that had not run before.
const SLACK: usize = 8 * 1024;
/// Requests of one client at a time.
const STREAMS: u32 = 256;
/// INITIAL_WINDOW_SIZE, by its number.
const INITIAL_WINDOW: u16 = 4;

/// Resident memory now and at most, in KiB.
struct Memory<'a> {
    process: &'a Process,
    before: usize,
    most: usize,
}

impl<'a> Memory<'a> {
    fn of(process: &'a Process) -> Self {
        // Memory that the first clients need is allocated already.
        for _ in 0..20 {
            assert_eq!(Client::connect(&process.server).get("/openapi.json").status, 200);
            is_served(process);
        }
        let before = process.resident();
        Self { process, before, most: before }
    }

    fn look(&mut self) {
        self.most = self.most.max(self.process.resident());
    }

    /// The largest increase, in MiB.
    fn more(&self) -> usize {
        (self.most - self.before) / 1024
    }

    /// Waits until memory is as before, within a tenth and [`SLACK`]; returns how long that took.
    fn until_back(&self) -> Duration {
        let (start, most) = (now(), self.before + self.before / 10 + SLACK);
        loop {
            let resident = self.process.resident();
            if resident <= most {
                return start.elapsed();
            }
            let more = resident - self.before;
            assert!(start.elapsed() < Duration::from_secs(10), "{more} KiB are still held");
            std::thread::yield_now();
        }
    }
}

/// Checks that another client is answered, and returns how long that takes.
fn is_served(process: &Process) -> Duration {
    let start = now();
    let mut other = Client::connect(&process.server);
    let reply = other.post("/v1/take", r#"{"key":"k","policy":"gcra:9/1s"}"#);
    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
    start.elapsed()
}

#[test]
fn flood_bodies_of_many_streams_are_bounded() {
    let name = "http::flood::flood_bodies_of_many_streams_are_bounded";
    let Some(process) = process(name, 1024, |config, _| config.http.address = Some(any_port()))
    else {
        return;
    };
    let mut memory = Memory::of(&process);
    let many = size("SLUICEGATE_FLOOD_CONNECTIONS", 3);
    let mut connections: Vec<_> =
        (0..many).map(|_| Frames::connect(&process.server, &[])).collect();
    let ids = || (0..STREAMS).map(|number| number * 2 + 1);
    for connection in &mut connections {
        ids().for_each(|id| connection.request(id, &post("/v1/take"), false));
    }
    let (mut sent, mut slowest) = (0, Duration::ZERO);
    // Until the server accepts no more.
    let mut quiet = now();
    while quiet.elapsed() < Duration::from_millis(700) {
        for connection in &mut connections {
            connection.read();
            for id in ids() {
                let count = connection.data(id, 16_384);
                sent += count;
                if count > 0 {
                    quiet = now();
                }
                if sent > many << 28 {
                    break;
                }
            }
        }
        memory.look();
        slowest = slowest.max(is_served(&process));
    }
    let refused: usize =
        connections.iter().map(|it| it.streams.values().filter(|it| it.answered).count()).sum();
    drop(connections);
    let back = memory.until_back();
    println!(
        "figure: {many} clients with {STREAMS} bodies at a time: {} MiB sent, {refused} refused, {} MiB \
         more at most, given back after {back:?}; another was answered within {slowest:?}",
        sent >> 20,
        memory.more(),
    );
    assert!(refused > 0, "4 MiB a connection is all");
    assert!(memory.most - memory.before < BOUND, "{} MiB", memory.more());
}

#[test]
fn flood_unread_replies_are_bounded_and_closed() {
    let name = "http::flood::flood_unread_replies_are_bounded_and_closed";
    let output_timeout = Duration::from_secs(2);
    let Some(process) = process(name, 1024, |config, _| {
        config.http.address = Some(any_port());
        config.timeouts.output = output_timeout;
    }) else {
        return;
    };
    let server = &process.server;
    let mut memory = Memory::of(&process);
    let paths = ["/metrics", "/openapi.json", "/healthz"];
    let mut clients: Vec<_> = paths
        .iter()
        .map(|path| {
            let mut client = Frames::connect(server, &[(INITIAL_WINDOW, 0)]);
            for number in 0..STREAMS - 6 {
                client.request(number * 2 + 1, &head(path), true);
            }
            client
        })
        .collect();
    let start = now();
    let mut lasted = vec![None; clients.len()];
    let mut rounds = 0_u32;
    while lasted.contains(&None) {
        for (client, lasted) in clients.iter_mut().zip(&mut lasted) {
            // It also sends settings, pings and window updates of the connection.
            if lasted.is_none() && rounds.is_multiple_of(1 << 6) {
                client.send(&frame(4, 0, 0, &[]));
                client.send(&frame(6, 0, 0, &[7; 8]));
                client.send(&frame(8, 0, 0, &[0, 0, 0, 1]));
            }
            client.read();
            if client.is_closed && lasted.is_none() {
                *lasted = Some(start.elapsed());
            }
        }
        memory.look();
        rounds += 1;
        assert!(start.elapsed() < output_timeout * 5, "not closed: {lasted:?}");
    }
    server.until_exactly("closed_slow", clients.len() as u64);
    drop(clients);
    let back = memory.until_back();
    let lasted: Vec<_> = lasted.into_iter().flatten().collect();
    println!(
        "figure: clients that take no byte of 250 replies each ({paths:?}): {} MiB more at most, closed \
         after {lasted:?} (bound {output_timeout:?} and a quarter), given back after {back:?}",
        memory.more(),
    );
    assert!(lasted.iter().all(|lasted| *lasted >= output_timeout), "{lasted:?}");
    assert!(memory.most - memory.before < BOUND, "{} MiB", memory.more());
}

/// One reply is never read, while others are: the client is closed because of that one.
#[test]
fn flood_each_reply_must_be_read() {
    let running = super::client::server(|config| {
        config.timeouts.output = Duration::from_secs(1);
    });
    let mut client = Frames::connect(&running, &[(INITIAL_WINDOW, 0)]);
    client.request(1, &head("/healthz"), true);
    let (start, mut id, mut taken) = (now(), 1, 0);
    while !client.is_closed {
        id += 2;
        client.request(id, &head("/healthz"), true);
        client.send(&frame(8, 0, id, &[0, 0, 1, 0]));
        while !client.is_closed && !client.streams[&id].ended {
            client.read();
        }
        taken += 1;
        assert!(start.elapsed() < Duration::from_secs(10), "one that is not taken is kept");
    }
    println!(
        "figure: {taken} replies were taken beside one that was not, in {:?}",
        start.elapsed()
    );
    running.until_exactly("closed_slow", 1);
}

#[test]
fn flood_bodies_of_many_connections_are_bounded() {
    let name = "http::flood::flood_bodies_of_many_connections_are_bounded";
    let Some(process) = process(name, 4096, |config, _| config.http.address = Some(any_port()))
    else {
        return;
    };
    let mut memory = Memory::of(&process);
    let many = size("SLUICEGATE_FLOOD_BODIES", 300);
    let body = vec![b' '; 1_000_000];
    let mut slowest = Duration::ZERO;
    let mut refused = 0;
    let mut clients: Vec<TcpStream> = Vec::new();
    for number in 0..many {
        let mut client = Client::connect(&process.server).stream;
        // A body without its end: it is rejected while it arrives, or waits for the rest.
        let head =
            b"POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                     Content-Length: 1048576\r\n\r\n";
        let sent = client.write_all(head).and_then(|()| client.write_all(&body));
        refused += usize::from(sent.is_err());
        clients.push(client);
        memory.look();
        if number % 20 == 0 {
            slowest = slowest.max(is_served(&process));
        }
    }
    slowest = slowest.max(is_served(&process));
    memory.look();
    for client in &mut clients {
        client.set_nonblocking(true).unwrap();
        refused += usize::from(matches!(client.read(&mut [0; 64]), Ok(1..)));
    }
    drop(clients);
    let back = memory.until_back();
    println!(
        "figure: {many} bodies of 1 MB over HTTP/1.1: {refused} refused, {} MiB more at most, \
         given back after {back:?}; another was answered within {slowest:?}",
        memory.more()
    );
    assert!(refused > 0);
    assert!(memory.most - memory.before < BOUND, "{} MiB", memory.more());
}

/// The most connections of both versions, each after one request.
#[test]
fn flood_connections_are_bounded() {
    let name = "http::flood::flood_connections_are_bounded";
    let Some(process) = process(name, 20_000, |config, _| config.http.address = Some(any_port()))
    else {
        return;
    };
    let many = size("SLUICEGATE_FLOOD_IDLE", 1_500);
    for (version, asks) in [
        ("HTTP/1.1", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        (
            "HTTP/2",
            [super::frames::PREFACE, super::frames::SETTINGS, &frame(1, 5, 1, &head("/healthz"))]
                .concat(),
        ),
    ] {
        let mut memory = Memory::of(&process);
        let address = process.server.http.unwrap();
        let mut refused = 0;
        let mut clients = Vec::with_capacity(many);
        for number in 0..many {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(&asks).unwrap();
            let mut answer = [0; 12];
            let reply = client.read(&mut answer).unwrap_or(0);
            refused += usize::from(reply == 0 || answer.starts_with(b"HTTP/1.1 503"));
            clients.push(client);
            if number % 100 == 0 {
                memory.look();
            }
        }
        memory.look();
        let slowest = is_served(&process);
        let each = (memory.most - memory.before) as f64 / many as f64;
        drop(clients);
        process.server.until_exactly("connected_clients", 1);
        let back = memory.until_back();
        println!(
            "figure: {many} connections of {version}: {refused} refused, {each:.1} KiB each, {} MiB in \
             all, given back after {back:?}; another was answered within {slowest:?}",
            memory.more()
        );
        assert!(memory.most - memory.before < BOUND, "{} MiB", memory.more());
    }
}

/// Many concurrent requests on each of many connections: their memory is bounded,
/// whether they are answered, rejected or invalid, and whether their replies are read.
#[test]
fn flood_requests_of_many_connections_are_bounded() {
    type Request = fn(u32) -> Vec<u8>;
    let name = "http::flood::flood_requests_of_many_connections_are_bounded";
    let budget = 16 << 20;
    let Some(process) = process(name, 4096, |config, _| {
        config.http.address = Some(any_port());
        config.max_buffer_memory = budget;
    }) else {
        return;
    };
    let many = size("SLUICEGATE_FLOOD_STREAMS", 180);
    let body = |id| [frame(1, 4, id, &post("/v1/take")), frame(0, 0, id, &[b' '; 240])].concat();
    let small = |id| frame(1, 5, id, &head("/healthz"));
    // No such field belongs in HTTP/2.
    let wrong =
        |id| frame(1, 5, id, &[&head("/healthz")[..], b"\0\x0aconnection\x05close"].concat());
    let floods: [(&str, Request, u32, u32, bool); 4] = [
        ("bodies that do not end", body, 250, 65_535, false),
        ("small replies that are not taken", small, 250, 0, false),
        ("small replies that are taken", small, 250, 65_535, true),
        ("requests that are wrong", wrong, 120, 65_535, false),
    ];
    for (what, request, streams, window, reads) in floods {
        let requests: Vec<u8> = (0..streams).flat_map(|number| request(number * 2 + 1)).collect();
        let mut memory = Memory::of(&process);
        let mut clients = Vec::with_capacity(many);
        let mut slowest = is_served(&process);
        for _ in 0..many {
            let mut client = Frames::connect(&process.server, &[(INITIAL_WINDOW, window)]);
            client.send(&requests);
            let taken = |client: &Frames| client.streams.values().filter(|it| it.is_over()).count();
            while reads && !client.is_closed && taken(&client) < streams as usize {
                client.read();
            }
            if clients.len() % 25 == 0 {
                slowest = slowest.max(is_served(&process));
            }
            clients.push(client);
            memory.look();
        }
        let sent = now();
        while sent.elapsed() < Duration::from_millis(500) {
            memory.look();
        }
        clients.iter_mut().for_each(Frames::read);
        let closed = clients.iter().filter(|it| it.is_closed).count();
        let used = process.server.info_value("buffer_bytes") >> 20;
        drop(clients);
        process.server.until_exactly("connected_clients", 1);
        let back = memory.until_back();
        println!(
            "figure: {many} clients with {streams} requests at a time, {what}: {closed} closed, {used} MiB \
             reserved, {} MiB more at most, given back after {back:?}; another was answered within {slowest:?}",
            memory.more(),
        );
        assert!(memory.most - memory.before < budget / 512, "{} MiB: {what}", memory.more());
    }
}

/// Replies of metrics to many concurrent requests: their memory is bounded, whether the client
/// reads nothing, a first part, or stops reading.
#[test]
fn flood_metrics_of_many_connections_are_bounded() {
    let name = "http::flood::flood_metrics_of_many_connections_are_bounded";
    metrics_of_many_connections_are_bounded(name, 0);
}

#[test]
fn flood_metrics_of_many_rules_are_bounded() {
    let name = "http::flood::flood_metrics_of_many_rules_are_bounded";
    metrics_of_many_connections_are_bounded(name, 2_000);
}

fn metrics_of_many_connections_are_bounded(name: &'static str, rules: u32) {
    let Some(process) = process(name, 4096, |config, folder| {
        config.http.address = Some(any_port());
        config.rules = vec![folder.join("rules.yaml")];
        let long = "n".repeat(58);
        let rule = |number| {
            format!("  - {{name: {long}{number}, match: {{path: /}}, policy: fixed-window:1/1h}}\n")
        };
        let text = match rules {
            0 => "rules: []\n".to_owned(),
            _ => format!("rules:\n{}", (0..rules).map(rule).collect::<String>()),
        };
        fs::write(&config.rules[0], text).unwrap();
    }) else {
        return;
    };
    let many = size("SLUICEGATE_FLOOD_STREAMS", 200);
    let streams = STREAMS - 6;
    let request = |first: u32| -> Vec<u8> {
        (first..first + streams).flat_map(|it| frame(1, 5, it * 2 + 1, &head("/metrics"))).collect()
    };
    for (what, window) in [("nothing", 0), ("a part", 10_000), ("all, and do not read", 1 << 30)] {
        let mut memory = Memory::of(&process);
        let mut clients = Vec::with_capacity(many);
        let mut slowest = is_served(&process);
        for _ in 0..many {
            let mut client = Frames::connect(&process.server, &[(INITIAL_WINDOW, window)]);
            client.send(&frame(8, 0, 0, &u32::to_be_bytes(1 << 30)));
            client.send(&request(0));
            if clients.len() % 25 == 0 {
                slowest = slowest.max(is_served(&process));
            }
            clients.push(client);
            memory.look();
        }
        // While replies arrive, and a little longer; then once more if the system has accepted the first ones.
        let (mut used, mut bytes, mut quiet, mut batches) = (0, 0, now(), 1);
        while quiet.elapsed() < Duration::from_millis(500) {
            let before = bytes;
            if window == 10_000 {
                clients.iter_mut().for_each(Frames::read);
                bytes = clients.iter().flat_map(|it| it.streams.values()).map(|it| it.data).sum();
            }
            memory.look();
            used = used.max(process.server.info_value("buffer_bytes") >> 20);
            if bytes > before {
                quiet = now();
            }
            if window == 1 << 30 && batches < 4 && quiet.elapsed() > Duration::from_millis(400) {
                let more = request(streams * batches);
                clients.iter_mut().for_each(|it| it.send(&more));
                (batches, quiet) = (batches + 1, now());
            }
        }
        slowest = slowest.max(is_served(&process));
        drop(clients);
        process.server.until_exactly("connected_clients", 1);
        let back = memory.until_back();
        println!(
            "figure: {many} clients with {streams} requests of /metrics with {rules} rules, that take {what}: \
             {used} MiB reserved, {} MiB more at most, given back after {back:?}; another was answered within \
             {slowest:?}",
            memory.more(),
        );
        assert!(memory.most - memory.before < BOUND, "{} MiB: {what}", memory.more());
    }
}

/// A client may use all concurrent requests that the server offers.
#[test]
fn lone_client_many_requests_are_all_answered() {
    let running = super::client::server(|_| {});
    let mut client = Frames::connect(&running, &[]);
    let body = br#"{"key":"k","policy":"gcra:9/1s"}"#;
    let ids = || (0..STREAMS).map(|number| number * 2 + 1);
    // Room for all replies at a time.
    client.send(&frame(8, 0, 0, &[0, 16, 0, 0]));
    for first in [0, 2 * STREAMS] {
        ids().for_each(|id| client.request(first + id, &post("/v1/take"), false));
        ids().for_each(|id| client.send(&frame(0, 1, first + id, body)));
        eventually("every request is answered", || {
            client.read();
            let streams = ids().map(|id| client.streams[&(first + id)]);
            let open = streams.filter(|it| !it.ended || it.reset).count();
            if open == 0 { Ok(()) } else { Err(open) }
        });
    }
}

/// Idle clients of HTTP/2 hold memory that others need: they receive GOAWAY.
#[test]
fn flood_idle_connections_release_memory_for_others() {
    let name = "http::flood::flood_idle_connections_release_memory_for_others";
    let Some(process) = process(name, 1024, |config, _| {
        config.http.address = Some(any_port());
        config.max_buffer_memory = 2 << 20;
        config.timeouts.output = Duration::from_millis(500);
    }) else {
        return;
    };
    let mut clients: Vec<_> =
        (0..200).map(|_| Frames::connect(&process.server, &[(INITIAL_WINDOW, 1)])).collect();
    let start = now();
    let mut refused = 0;
    while process.server.info_value("buffer_rejections") == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "200 clients fit");
    }
    // No other client is accepted until some have left.
    while Client::connect(&process.server).get("/openapi.json").status != 200 {
        refused += 1;
        clients.iter_mut().for_each(Frames::read);
        assert!(start.elapsed() < Duration::from_secs(20), "no idle client leaves");
    }
    let lasted = start.elapsed();
    println!(
        "figure: 200 idle clients of HTTP/2 in a budget of 2 MiB: another is served after {lasted:?} and \
         {refused} tries"
    );
}

#[test]
fn health_while_no_memory_is_left_for_connections_is_answered() {
    let server = Running::with(|config| {
        config.http.address = Some(any_port());
        config.max_buffer_memory = 32 << 10;
    });
    let unfinished: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(server.http.unwrap()).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
            stream
        })
        .collect();
    server.until_exactly("buffer_bytes", 32 << 10);
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/openapi.json", 503)] {
        assert_eq!(Client::connect(&server).get(path).status, status, "{path}");
    }
    drop(unfinished);
}
