//! Stopping: every request that was read is answered.

use std::{io::ErrorKind, net::TcpStream};

use crate::harness::{Running, simple};

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
