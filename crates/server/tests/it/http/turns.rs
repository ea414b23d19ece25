//! Clients that send without end, and others on the same worker.

use std::{
    io::{ErrorKind, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::{
    client::server,
    frames::{PREFACE, SETTINGS, frame},
};
use crate::harness::{now, simple, size};

const PRIORITY: u8 = 2;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// Frames that request nothing and cost a client next to nothing do not occupy a worker.
#[test]
fn fairness_http_2_frames_without_a_request_yield() {
    let server = server(|config| config.workers = Some(1));
    let clients = size("SLUICEGATE_GREEDY_CLIENTS", 60);
    for (name, one) in [
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])),
        ("PING", frame(PING, 0, 0, b"12345678")),
        ("SETTINGS", SETTINGS.to_vec()),
    ] {
        let many = one.repeat(64 * 1024 / one.len());
        let mut peers: Vec<_> = (0..clients)
            .map(|_| {
                let mut peer = TcpStream::connect(server.http.unwrap()).unwrap();
                peer.write_all(&[PREFACE, SETTINGS].concat()).unwrap();
                peer.set_nonblocking(true).unwrap();
                (peer, 0)
            })
            .collect();
        let stop = AtomicBool::new(false);
        let mut waited = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (peer, sent) in &mut peers {
                        match peer.write(&many[*sent..]) {
                            Ok(count) => *sent = (*sent + count) % many.len(),
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                            // One that floods may be closed.
                            Err(_) => *sent = 0,
                        }
                    }
                }
            });
            let (start, mut other, mut waited) = (now(), server.connect(), Vec::new());
            while start.elapsed() < Duration::from_secs(1) || waited.len() < 10 {
                let began = now();
                assert_eq!(other.call("PING"), simple("PONG"));
                waited.push(began.elapsed());
            }
            stop.store(true, Ordering::Relaxed);
            waited
        });
        waited.sort_unstable();
        let [short, typical, most] =
            [waited.len() / 4, waited.len() / 2, waited.len() - 1].map(|index| waited[index]);
        println!(
            "figure: beside {clients} clients that flood with {name}, another waited for {typical:?}, at most \
             {most:?}"
        );
        // The longer ones depend on other load of the machine.
        assert!(short < Duration::from_millis(500), "{name}: {short:?}");
    }
}
