//! Clients that do not complete requests, do not read replies, or reset their
//! requests. An ordinary run has few of them; `cargo xtask soak` has thousands.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sluicegate_testing::{SetOnDrop, eventually_within};

use super::{
    client::{Client, server},
    frames::{PREFACE, SETTINGS, frame, head},
};
use crate::{
    child_process::process,
    harness::{Running, TEST_TIMEOUT, any_port, now, size},
    slow::{Dribble, late, until_closed},
};

#[test]
fn slow_http_head_is_closed() {
    // The byte belongs to a header, a body, an invalid preface, or a frame.
    let begun = vec![
        b"GET /healthz HTTP/1.1\r\nHost: ".to_vec(),
        b"POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{".to_vec(),
        b"PRI * HTTP".to_vec(),
        [PREFACE, SETTINGS, &frame(1, 0, 1, &head("/healthz"))].concat(),
    ];
    let dribble = Dribble {
        name: "http::slow::slow_http_head_is_closed",
        clients: size("SLUICEGATE_SLOW_HTTP_CLIENTS", 400),
        configure: |config| {
            config.http.address = Some(any_port());
            config.timeouts.input = Duration::from_secs(1);
        },
        address: |server| server.http.unwrap(),
        begun,
        request: ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "\r\n\r\nok\n"),
    };
    dribble.all_are_closed();
}

#[test]
fn idle_http_client_is_not_closed() {
    let running = server(|config| config.timeouts.input = Duration::from_millis(20));
    let mut rests = Client::connect(&running);
    assert_eq!(rests.get("/healthz").status, 200);
    let mut dribbles = Client::connect(&running);
    dribbles.send("GET /");
    // When the first is closed, the other has been idle for as long.
    until_closed(&mut dribbles.stream);
    assert_eq!(rests.get("/healthz").status, 200);
}

/// The p99 latency of another client, in microseconds: alone, and beside
/// `attack`; and the result of `attack`.
fn beside<T>(running: &Running, attack: impl FnOnce() -> T) -> ([u128; 2], T) {
    let mut other = Client::connect(running);
    let mut latency = || {
        let start = now();
        assert_eq!(other.get("/healthz").status, 200);
        start.elapsed()
    };
    let alone = late((0..500).map(|_| latency()).collect());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = SetOnDrop(&over);
        let other = scope.spawn(|| {
            let mut times = vec![latency()];
            while !over.load(Ordering::Relaxed) {
                times.push(latency());
            }
            late(times)
        });
        let latencies = attack();
        drop(ends);
        ([alone, other.join().unwrap()], latencies)
    })
}

#[test]
fn reset_streams_cost_little() {
    let name = "http::slow::reset_streams_cost_little";
    let Some(process) = process(name, 1024, |config, _| {
        config.http.address = Some(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    }) else {
        return;
    };
    let running = &process.server;
    let before = process.resident();
    let streams = u32::try_from(size("SLUICEGATE_RESETS", 20_000)).unwrap();
    let (resets_late, sent) = beside(running, || {
        let mut stream = Client::connect(running).stream;
        stream.write_all(&[PREFACE, SETTINGS].concat()).unwrap();
        let mut sent = 0;
        for number in 0..streams {
            let id = number * 2 + 1;
            let both =
                [frame(1, 5, id, &head("/healthz")), frame(3, 0, id, &[0, 0, 0, 8])].concat();
            if stream.write_all(&both).is_err() {
                break;
            }
            sent += 1;
        }
        until_closed(&mut stream);
        sent
    });
    let resets = process.resident().saturating_sub(before);
    // Endless heads: header after header, each in a frame of its own.
    let (floods_late, continued) = beside(running, || {
        let mut flood = Client::connect(running).stream;
        flood.write_all(&[PREFACE, SETTINGS, &frame(1, 0, 1, &head("/healthz"))].concat()).unwrap();
        let field = [&[0x00, 1][..], b"x", &[127, 0x81, 0x1f], &vec![b'y'; 4096]].concat();
        let mut continued = 0;
        while flood.write_all(&frame(9, 0, 1, &field)).is_ok() {
            continued += 1;
            assert!(continued < 100_000, "it takes fields without end");
        }
        continued
    });
    let floods = process.resident().saturating_sub(before);
    let latencies = |[alone, beside]: [u128; 2]| format!("{beside} us, alone {alone} us");
    println!(
        "figure: {sent} of {streams} requests taken back at once, {resets} KiB more, 99 % of another's \
         answered within {}; {continued} frames of one head, {floods} KiB more, another's within {}; \
         both were closed",
        latencies(resets_late),
        latencies(floods_late),
    );
    assert!(resets < 50 * 1024 && floods < 50 * 1024, "{resets} and {floods} KiB");
}

#[test]
fn http_client_that_does_not_read_is_closed() {
    let name = "http::slow::http_client_that_does_not_read_is_closed";
    let Some(process) = process(name, 1024, |config, _| {
        config.http.address = Some(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        config.timeouts.output = Duration::from_secs(1);
    }) else {
        return;
    };
    let running = &process.server;
    let many = size("SLUICEGATE_SLOW_READERS", 50);
    assert_eq!(Client::connect(running).get("/healthz").status, 200);
    let before = process.resident();
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut streams: Vec<_> =
        (0..many).map(|_| (Client::connect(running).stream, 0_usize)).collect();
    for (stream, _) in &streams {
        stream.set_nonblocking(true).unwrap();
    }
    let mut most = before;
    eventually_within(TEST_TIMEOUT, "all clients are closed", || {
        streams.retain_mut(|(stream, sent)| match stream.write(&request[*sent..]) {
            Ok(count) => {
                *sent = (*sent + count) % request.len();
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
        most = most.max(process.resident());
        if streams.is_empty() { Ok(()) } else { Err(format!("{} are open", streams.len())) }
    });
    running.until_exactly("closed_slow", many as u64);
    let each = (most - before) / many;
    let after = process.resident().saturating_sub(before);
    println!(
        "figure: {many} clients of HTTP that take nothing: {each} KiB each at most, all closed; \
         {after} KiB more than before are left in all"
    );
    assert!(each < 1126, "{each} KiB");
}
