//! Stopping: every request that was read is answered.

use std::{
    io::ErrorKind,
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use crate::harness::{Peer, Running, now, simple, size};

#[test]
fn what_was_sent_is_answered_and_then_it_closes() {
    let mut server = Running::new();
    let mut peers: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for peer in &mut peers {
        assert_eq!(peer.say("PING"), simple("PONG"));
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

#[test]
fn those_who_wait_are_denied() {
    let mut server = Running::new();
    let mut queue = server.connect();
    assert_eq!(queue.integers("SG.WAIT q leaky-queue:1/1h:capacity=5")[0], 1);
    queue.ask("SG.WAIT q leaky-queue:1/1h:capacity=5 TIMEOUT 1125899906842624");
    queue.ask("PING");
    let mut line = server.connect();
    assert_eq!(line.integers("SG.TAKE l gcra:1/1h")[0], 1);
    line.ask("SG.WAIT l gcra:1/1h TIMEOUT 1125899906842624");
    line.ask("PING");
    server.until_told("blocked_clients", 2);
    server.begin_to_stop();
    for mut peer in [queue, line] {
        let denied = crate::harness::integers(&peer.hear());
        assert_eq!(denied[0], 0);
        assert!(denied[3] > 3_000_000_000, "{denied:?}");
        assert_eq!(peer.rest(), "+PONG\r\n");
    }
}

#[test]
fn a_client_that_takes_nothing_does_not_hold_it_up_for_ever() {
    let mut server = Running::new();
    let peer = server.connect();
    let mut sender = peer.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let line = format!("ECHO {}\r\n", "x".repeat(60_000));
        while std::io::Write::write_all(&mut sender, line.as_bytes()).is_ok() {}
    });
    // Once the buffers are full nothing is echoed any more.
    let (mut echoed, mut same) = (0, 0);
    while same < 50 {
        let told = server.told("cmdstat_echo");
        same = if told > 0 && told == echoed { same + 1 } else { 0 };
        echoed = told;
    }
    server.begin_to_stop();
    drop(server); // joins the server's thread
    sending.join().unwrap();
    drop(peer);
}

/// What a client sends at once, and how long each reply to it is.
const BATCH: (&str, usize) = ("PING\r\n", "+PONG\r\n".len());

/// Sends batch after batch until the server closes. Whatever was sent before `stopping` must have
/// been answered; how many batches that was, and how many came later and were not.
fn press(mut peer: Peer, stopping: &AtomicBool, answered: &AtomicU64) -> (u64, u64) {
    let (line, length) = BATCH;
    let batch = line.repeat(16);
    let mut heard = vec![0; length * 16];
    for sent in 0.. {
        let written = peer.stream.write_all(batch.as_bytes()).is_ok();
        let in_time = written && !stopping.load(Ordering::SeqCst);
        if peer.stream.read_exact(&mut heard).is_err() {
            assert!(!in_time, "what was sent before the stop got no reply");
            return (sent, 1);
        }
        assert_eq!(heard, "+PONG\r\n".repeat(16).as_bytes());
        answered.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("a server that stops closes")
}

#[test]
fn under_load_nothing_that_was_sent_goes_unanswered() {
    let (mut batches, mut late, mut longest) = (0, 0, Duration::ZERO);
    let stops = size("SLUICEGATE_STOPS", 20);
    for round in 0..stops as u64 {
        let mut server = Running::new();
        let (stopping, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let peers: Vec<_> = (0..8).map(|_| server.connect()).collect();
        std::thread::scope(|scope| {
            let pressing: Vec<_> = peers
                .into_iter()
                .map(|peer| scope.spawn(|| press(peer, &stopping, &answered)))
                .collect();
            // Each round stops at another moment.
            while answered.load(Ordering::Relaxed) < 200 + round * 37 {
                std::thread::yield_now();
            }
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
    println!(
        "figure: {stops} stops under load: {batches} batches answered, none of before the stop unanswered, \
         {late} sent while it closed; the longest took {longest:?}"
    );
    // Its grace is 5 seconds; the rest is for a machine that is busy.
    assert!(longest < Duration::from_secs(20), "{longest:?}");
}
