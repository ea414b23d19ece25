//! Latency of a take at half of the maximum throughput: RELIABILITY 36.
//!
//! The load is open-loop: each take has a scheduled time, independent of earlier
//! replies, and its latency counts from that time. A stall of the server (or a client) therefore shows in all takes
//! that were scheduled during the stall, not only in one (coordinated omission).

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use sluicegate_testing::pause;

use crate::{
    child_process::process,
    harness::{Running, now, size},
};

const CONNECTIONS: u32 = 4;
/// Commands in flight on a connection while the maximum is measured.
const PIPELINE: usize = 4;
const TAKE: &str = "SG.TAKE 00000000 gcra:100/1s\r\n";
/// Lines of a reply: an array of seven integers.
const LINES: usize = 8;

/// Takes of keys in turn, a million of them for each connection.
struct Takes {
    stream: TcpStream,
    next: u32,
    bytes: Vec<u8>,
}

impl Takes {
    fn connect(server: &Running, connection: u32) -> Self {
        let stream = server.connect().stream;
        Self { stream, next: connection * 1_000_000, bytes: Vec::new() }
    }

    /// Sends requests.
    fn send(&mut self, count: usize) {
        self.bytes.clear();
        for _ in 0..count {
            let key = self.next.to_string();
            self.next =
                if self.next % 1_000_000 == 999_999 { self.next - 999_999 } else { self.next + 1 };
            let start = self.bytes.len();
            self.bytes.extend_from_slice(TAKE.as_bytes());
            let end = start + "SG.TAKE 00000000".len();
            self.bytes[end - key.len()..end].copy_from_slice(key.as_bytes());
        }
        self.stream.write_all(&self.bytes).unwrap();
    }
}

/// Reads available bytes; returns how many replies have ended with them.
fn replies(stream: &mut TcpStream, chunk: &mut [u8], lines: &mut usize) -> usize {
    let count = stream.read(chunk).unwrap();
    assert!(count > 0, "the server closed");
    assert!(!chunk[..count].contains(&b'-'), "an error");
    *lines += chunk[..count].iter().filter(|byte| **byte == b'\n').count();
    let ended = *lines / LINES;
    *lines %= LINES;
    ended
}

/// Takes per second, by clients that always have some in flight.
fn maximum(server: &Running, span: Duration) -> f64 {
    let start = now();
    let done: usize = thread::scope(|scope| {
        let clients = (0..CONNECTIONS).map(|connection| {
            let mut takes = Takes::connect(server, connection);
            scope.spawn(move || {
                let (mut chunk, mut lines, mut done) = (vec![0; 65_536], 0, 0);
                takes.send(PIPELINE);
                while start.elapsed() < span {
                    let ended = replies(&mut takes.stream, &mut chunk, &mut lines);
                    takes.send(ended);
                    done += ended;
                }
                done
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    done as f64 / start.elapsed().as_secs_f64()
}

/// The scheduled time of a take.
fn due(start: Instant, number: u32, each: Duration) -> Instant {
    start + each * number
}

/// Sends takes on one connection, one every `each`; returns their latencies in microseconds.
fn open_loop(server: &Running, connection: u32, each: Duration, count: u32) -> Vec<u32> {
    let mut takes = Takes::connect(server, connection);
    let mut stream = takes.stream.try_clone().unwrap();
    let start = now();
    thread::scope(|scope| {
        let hearing = scope.spawn(move || {
            let (mut chunk, mut lines, mut done) = (vec![0; 65_536], 0, Vec::new());
            while done.len() < count as usize {
                let ended = replies(&mut stream, &mut chunk, &mut lines);
                let at = now();
                for _ in 0..ended {
                    let number = u32::try_from(done.len()).unwrap();
                    let took = at.saturating_duration_since(due(start, number, each));
                    done.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                }
            }
            done
        });
        let mut sent = 0;
        while sent < count {
            let until = due(start, sent, each).saturating_duration_since(now());
            if !until.is_zero() {
                pause(until);
            }
            // All that are due; none is sent early.
            let mut many = 0;
            while sent + many < count && due(start, sent + many, each) <= now() {
                many += 1;
            }
            takes.send(many as usize);
            sent += many;
        }
        hearing.join().unwrap()
    })
}

#[test]
fn take_at_half_the_maximum_rate_is_fast() {
    let name = "latency::take_at_half_the_maximum_rate_is_fast";
    let Some(process) = process(name, 1024, |_, _| {}) else { return };
    let server = &process.server;
    let seconds = size("SLUICEGATE_LATENCY_SECONDS", 1) as f64;
    let maximum = maximum(server, Duration::from_millis(500));
    let each = Duration::from_secs_f64(f64::from(CONNECTIONS) * 2.0 / maximum);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousand")]
    let count = (seconds / each.as_secs_f64()) as u32;
    let start = now();
    let mut latencies: Vec<u32> = thread::scope(|scope| {
        let clients = (0..CONNECTIONS)
            .map(|connection| scope.spawn(move || open_loop(server, connection, each, count)));
        let clients: Vec<_> = clients.collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let took = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: usize| latencies[(latencies.len() - 1) * part / 10_000];
    println!(
        "figure: open loop at half of {maximum:.0} takes/s for {took:.1} s, {} takes: p50 {} us, p99 {} us, p99.9 {} us, \
         max {} us",
        latencies.len(),
        at(5_000),
        at(9_900),
        at(9_990),
        at(10_000),
    );
    // All are answered at about the scheduled rate: no queue grows.
    assert_eq!(latencies.len(), count as usize * CONNECTIONS as usize);
    assert!(took < seconds * 2.0 + 5.0, "{took} s");
}
