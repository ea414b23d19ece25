//! Stopping: every request that has arrived is answered.

use std::{
    borrow::Cow,
    fs::File,
    io::ErrorKind,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::{Clock, Operation};
use sluicegate_memory::{MemoryStore, SystemClock};
use sluicegate_server::{Config, Server};
use sluicegate_testing::{eventually, eventually_true};

use crate::{
    harness::{Running, TempDir, any_port, config, free_address, now, simple, size},
    http,
};

#[test]
fn stop_answers_sent_commands_and_closes() {
    // Reserved, so that no other server listens there after the stop.
    let mut server = Running::with(|config| config.resp.address = free_address());
    let mut peers: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for peer in &mut peers {
        assert_eq!(peer.call("PING"), simple("PONG"));
    }
    for peer in &mut peers {
        peer.send("PING\r\n".repeat(100));
    }
    server.begin_to_stop();
    for peer in &mut peers {
        assert_eq!(peer.rest(), "+PONG\r\n".repeat(100));
    }
    let address = server.address;
    drop(server);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// `GET /healthz` over HTTP/2: the preface, empty settings, and the headers of one request.
const HTTP2_REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x17\x01\x05\0\0\0\x01\x82\x86\x04\x08/healthz\x01\x09localhost";

/// A client is connected, and may have sent requests, before the server accepts it.
#[test]
fn stop_answers_clients_that_are_not_accepted_yet() {
    let folder = TempDir::new();
    let unix = folder.file("socket");
    let mut config = config();
    // Reserved, so that no other server listens there after the stop.
    config.resp.address = free_address();
    config.http.address = Some(any_port());
    config.resp.unix = Some(unix.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::bind(config)).unwrap();
    let (resp, http) = (server.local_addr().unwrap(), server.http_addr().unwrap());
    let connect = |address| TcpStream::connect(address).unwrap();
    // A log, because its number of remaining units is the same if the workers read their clocks out of order.
    let take = b"SG.TAKE last sliding-log:20/1d\r\n";
    let mut clients: [Vec<_>; 4] = Default::default();
    for _ in 0..10 {
        let [mut takes, mut http1, mut http2] = [resp, http, http].map(connect);
        takes.write_all(take).unwrap();
        http1.write_all(OF_HTTP.text.as_bytes()).unwrap();
        http2.write_all(HTTP2_REQUEST).unwrap();
        let mut local = UnixStream::connect(&unix).unwrap();
        local.write_all(take).unwrap();
        clients[0].push(rest(takes));
        clients[1].push(rest(local));
        clients[2].push(rest(http1));
        clients[3].push(rest(http2));
    }
    // It stops before it accepts anyone.
    runtime.block_on(server.run(std::future::ready(()))).unwrap();
    let [takes, locals, http1, http2] = clients
        .map(|clients| clients.into_iter().map(|rest| rest.join().unwrap()).collect::<Vec<_>>());
    let remaining = |reply: &Vec<u8>| {
        let fields: Vec<_> = std::str::from_utf8(reply).unwrap().split("\r\n").collect();
        assert_eq!(fields[..3], ["*7", ":1", ":20"], "{fields:?}");
        fields[3][1..].parse().unwrap()
    };
    let mut units: Vec<u32> = takes.iter().chain(&locals).map(remaining).collect();
    units.sort_unstable();
    assert_eq!(units, Vec::from_iter(0..20), "each client took another unit");
    for reply in &http1 {
        assert!(reply.ends_with(OF_HTTP.end.as_bytes()), "{}", reply.escape_ascii());
    }
    for reply in &http2 {
        // The frame with the body, the last of stream 1.
        let body = b"\0\0\x03\0\x01\0\0\0\x01ok\n";
        assert!(reply.windows(body.len()).any(|it| it == body), "{}", reply.escape_ascii());
    }
    assert_eq!(TcpStream::connect(resp).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// Reads on a thread of its own until the server closes.
fn rest(mut stream: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // A reset ends a connection as well.
        let _ = stream.read_to_end(&mut rest);
        rest
    })
}

#[test]
fn stop_denies_waiting_commands() {
    let mut server = Running::new();
    let mut queue = server.connect();
    assert_eq!(queue.integers("SG.WAIT q leaky-queue:1/1h:capacity=5")[0], 1);
    queue.send_command("SG.WAIT q leaky-queue:1/1h:capacity=5 TIMEOUT 1125899906842624");
    queue.send_command("PING");
    let mut line = server.connect();
    assert_eq!(line.integers("SG.TAKE l gcra:1/1h")[0], 1);
    line.send_command("SG.WAIT l gcra:1/1h TIMEOUT 1125899906842624");
    line.send_command("PING");
    server.until_exactly("blocked_clients", 2);
    server.begin_to_stop();
    for mut peer in [queue, line] {
        let denied = crate::harness::integers(&peer.read_reply());
        assert_eq!(denied[0], 0);
        assert!(denied[3] > 3_000_000_000, "{denied:?}");
        assert_eq!(peer.rest(), "+PONG\r\n");
    }
}

#[test]
fn stop_does_not_wait_for_a_client_that_does_not_read() {
    let mut server = Running::new();
    let peer = server.connect();
    let mut sender = peer.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let line = format!("ECHO {}\r\n", "x".repeat(60_000));
        while std::io::Write::write_all(&mut sender, line.as_bytes()).is_ok() {}
    });
    // Once the buffers are full, no more replies arrive.
    let (mut echoed, mut same) = (0, 0);
    eventually("nothing is echoed any more", || {
        let actual = server.info_value("cmdstat_echo");
        same = if actual > 0 && actual == echoed { same + 1 } else { 0 };
        echoed = actual;
        if same < 50 { Err((echoed, same)) } else { Ok(()) }
    });
    server.begin_to_stop();
    drop(server); // joins the server's thread
    sending.join().unwrap();
    drop(peer);
}

/// The input of a client, and the end of its replies.
struct Batch {
    protocol: &'static str,
    text: Cow<'static, str>,
    times: usize,
    end: &'static str,
    connect: fn(&Running) -> TcpStream,
    /// Batches that are answered before the first stop, and further ones before each later stop.
    load: (u64, u64),
}

const OF_RESP: Batch = Batch {
    protocol: "RESP",
    text: Cow::Borrowed("PING\r\n"),
    times: 16,
    end: "+PONG\r\n",
    connect: |server| server.connect().stream,
    load: (200, 37),
};
/// One at a time: a server may leave further requests of an HTTP/1.1 client unanswered.
const OF_HTTP: Batch = Batch {
    protocol: "HTTP",
    text: Cow::Borrowed("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    times: 1,
    end: "\r\n\r\nok\n",
    connect: |server| http::client::Client::connect(server).stream,
    load: (200, 37),
};

impl Batch {
    /// Reads all its replies; `false`: the server closed before.
    fn read_reply(&self, stream: &mut TcpStream) -> bool {
        let mut received = Vec::new();
        let mut read = [0; 4096];
        loop {
            match stream.read(&mut read) {
                Ok(0) | Err(_) => return false,
                Ok(count) => received.extend_from_slice(&read[..count]),
            }
            let text = std::str::from_utf8(&received).unwrap();
            if text.matches(self.end).count() == self.times {
                assert!(text.ends_with(self.end), "{text}");
                return true;
            }
        }
    }
}

/// Sends batches until the server closes. Everything that was sent before `stopping` must be
/// answered; returns how many batches that was, and how many later ones were not answered.
fn press(
    mut stream: TcpStream,
    batch: &Batch,
    stopping: &AtomicBool,
    answered: &AtomicU64,
) -> (u64, u64) {
    let text = batch.text.repeat(batch.times);
    for sent in 0.. {
        let written = stream.write_all(text.as_bytes()).is_ok();
        let in_time = written && !stopping.load(Ordering::SeqCst);
        if !batch.read_reply(&mut stream) {
            assert!(!in_time, "a batch that was sent before the stop got no reply");
            return (sent, 1);
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("a server that stops closes")
}

#[test]
fn stop_under_load_answers_all_sent_commands() {
    stops_under_load(&OF_RESP, size("SLUICEGATE_STOPS", 20), |_| {});
}

/// RELIABILITY 38, with the commands of 47.
#[test]
fn stop_is_not_delayed_by_expensive_commands() {
    let folder = TempDir::new();
    let path = folder.file("state");
    let events = size("SLUICEGATE_BIG_STATE", 100_000);
    let policy = format!("sliding-log:{}/1d", 2 * events).parse().unwrap();
    let (store, now) = (MemoryStore::new(), SystemClock::new().now());
    for event in 0..events as u64 {
        let at = now + Duration::from_micros(event);
        assert!(store.apply(b"big", &policy, at, Operation::Take(1)).unwrap().allowed());
    }
    store.save(File::create(&path).unwrap(), now).unwrap();
    let bytes = path.metadata().unwrap().len();
    println!("figure: expensive commands look at a state of {bytes} bytes");
    assert!(bytes > events as u64, "{bytes}");
    let exists = "EXISTS".to_owned() + &" big".repeat(1000);
    let batch = Batch {
        protocol: "RESP, expensive commands",
        text: format!("{exists}\r\nTTL big\r\nSG.INFO big\r\nPING\r\n").into(),
        load: (4, 3),
        ..OF_RESP
    };
    stops_under_load(&batch, size("SLUICEGATE_STOPS", 5), |config| {
        config.memory.state_file = Some(path.clone());
    });
}

#[test]
fn stop_under_load_answers_all_http_requests() {
    stops_under_load(&OF_HTTP, size("SLUICEGATE_STOPS", 10), |_| {});
}

fn stops_under_load(batch: &Batch, stops: usize, configure: impl Fn(&mut Config)) {
    let (mut batches, mut late, mut longest) = (0, 0, Duration::ZERO);
    for round in 0..stops as u64 {
        let mut server = Running::with(|config| {
            config.http.address = Some(any_port());
            configure(config);
        });
        let (stopping, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let streams: Vec<_> = (0..8).map(|_| (batch.connect)(&server)).collect();
        std::thread::scope(|scope| {
            let pressing: Vec<_> = streams
                .into_iter()
                .map(|stream| scope.spawn(|| press(stream, batch, &stopping, &answered)))
                .collect();
            // Each round stops at another moment.
            let load = batch.load.0 + batch.load.1 * round;
            eventually_true("the load is on", || answered.load(Ordering::Relaxed) >= load);
            stopping.store(true, Ordering::SeqCst);
            let start = now();
            server.begin_to_stop();
            drop(server); // joins the server's thread
            longest = longest.max(start.elapsed());
            for client in pressing {
                let (answered, unanswered) = client.join().unwrap();
                batches += answered;
                late += unanswered;
            }
        });
    }
    let protocol = batch.protocol;
    println!(
        "figure: {stops} stops under load ({protocol}): {batches} batches answered, none of before the stop \
         unanswered, {late} sent while it closed; the longest took {longest:?}"
    );
    // The grace period is 5 seconds; the rest is for a busy machine.
    assert!(longest < Duration::from_secs(10), "{longest:?}");
}
