//! State outlives the server, and a damaged file harms nobody.

use std::{fs, fs::File, io::BufReader, path::Path, time::Duration};

use sluicegate_memory::{MemoryStore, WhenFull};

use crate::harness::{Folder, Peer, Running, config};

const POLICY: &str = "gcra:1/366d:burst=3";

fn with_state(path: &Path) -> Running {
    Running::with(|config| {
        config.state_file = Some(path.to_owned());
        config.snapshot_every = Duration::ZERO;
    })
}

/// What is left of the burst after one more take, or -1 if it was denied.
fn take(server: &Running, key: &str) -> i64 {
    let told = server.connect().integers(&format!("SG.TAKE {key} {POLICY}"));
    if told[0] == 1 { told[2] } else { -1 }
}

#[test]
fn a_restart_is_no_amnesty() {
    let folder = Folder::new();
    let path = folder.file("state");
    for (round, left) in [2, 1, 0, -1, -1].into_iter().enumerate() {
        let server = with_state(&path);
        assert_eq!(take(&server, "k"), left);
        assert_eq!(take(&server, &format!("round-{round}")), 2);
        drop(server);
        assert_eq!(folder.names(), ["state"]);
    }
    let server = with_state(&path);
    assert_eq!(server.told("keys"), 6);
}

#[test]
fn a_damaged_file_is_set_aside() {
    let folder = Folder::new();
    let path = folder.file("state");
    let server = with_state(&path);
    for key in 0..20 {
        assert_eq!(take(&server, &format!("k{key}")), 2);
    }
    drop(server);
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let cuts = (0..10).map(|tenth| good[..good.len() * tenth / 10].to_vec());
    for damaged in cuts.chain([flipped, [&good[..], b"x"].concat()]) {
        fs::write(&path, &damaged).unwrap();
        let server = with_state(&path);
        assert_eq!(server.told("keys"), 0);
        assert_eq!(take(&server, "k1"), 2);
        let names = folder.names();
        let aside = names.iter().find(|name| name.starts_with("state.damaged-")).unwrap();
        assert!(aside["state.damaged-".len()..].parse::<u64>().is_ok(), "{names:?}");
        assert_eq!(fs::read(folder.file(aside)).unwrap(), damaged);
        fs::remove_file(folder.file(aside)).unwrap();
        drop(server);
        assert_eq!(folder.names(), ["state"]);
    }
}

/// The state that is there at any moment is what a process that is killed then leaves behind.
#[test]
fn whenever_it_is_killed_the_file_is_whole() {
    let folder = Folder::new();
    let path = folder.file("state");
    let server = Running::with(|config| {
        config.state_file = Some(path.clone());
        config.snapshot_every = Duration::from_micros(100);
    });
    let mut peer = server.connect();
    let mut keys = 0;
    for round in 0..50 {
        let before = server.told("snapshots");
        flood(&mut peer, round * 200..(round + 1) * 200).for_each(|allowed| assert!(allowed));
        let left = folder.file("left");
        if fs::copy(&path, &left).is_ok() {
            let file = BufReader::new(File::open(&left).unwrap());
            let store = MemoryStore::load(file, now(), 1 << 30, WhenFull::Deny);
            keys = store.unwrap_or_else(|error| panic!("round {round}: {error}")).len();
        }
        // And one of the next round is another than this one.
        server.until_at_least("snapshots", before + 1);
    }
    assert!(keys > 200, "{keys}");
    println!("50 copies were whole, the last of {keys} keys");
    drop(server);

    // What a snapshot that was cut short left behind is in nobody's way.
    fs::write(folder.file("state.tmp"), b"half").unwrap();
    let server = with_state(&path);
    assert_eq!(server.told("keys"), 10_000);
    assert_eq!(take(&server, "flood0"), 1);
}

fn now() -> sluicegate_core::Timestamp {
    use sluicegate_core::Clock;
    sluicegate_memory::SystemClock::new().now()
}

#[test]
fn snapshots_are_told_and_failed_ones_too() {
    let folder = Folder::new();
    let path = folder.file("gone/state");
    fs::create_dir(folder.file("gone")).unwrap();
    let server = Running::with(|config| {
        config.state_file = Some(path.clone());
        config.snapshot_every = Duration::from_millis(1);
    });
    assert_eq!(take(&server, "k"), 2);
    let mut since = server.told("snapshots");
    server.until_at_least("snapshots", since + 2);
    assert_eq!(server.told("last_snapshot_keys"), 1);
    assert!(server.told("last_snapshot_time") > 1_500_000_000);
    fs::rename(folder.file("gone"), folder.file("elsewhere")).unwrap();
    server.until_at_least("snapshots_failed", 1);
    assert_eq!(take(&server, "k"), 1, "decisions go on");
    fs::rename(folder.file("elsewhere"), folder.file("gone")).unwrap();
    since = server.told("snapshots");
    server.until_at_least("snapshots", since + 1);
}

/// Asks once for each of many keys, in one write. Which of them were allowed.
fn flood(peer: &mut Peer, keys: std::ops::Range<u32>) -> impl Iterator<Item = bool> {
    let lines: String =
        keys.clone().map(|key| format!("SG.TAKE flood{key} {POLICY}\r\n")).collect();
    peer.send(lines);
    keys.map(|_| crate::harness::integers(&peer.hear())[0] == 1)
}

#[test]
fn memory_is_bounded_and_told() {
    let server = Running::with(|config| config.max_memory = 2 << 20);
    assert_eq!(server.told("max_bytes"), 2 << 20);
    let mut peer = server.connect();
    let (mut denied, mut sent) = (0, 0);
    while denied < 1000 {
        assert!(sent < 1_000_000, "{denied} of {sent} were denied");
        denied += flood(&mut peer, sent..sent + 1000).filter(|allowed| !allowed).count() as u64;
        sent += 1000;
    }
    assert_eq!(server.told("turned_away"), denied);
    assert_eq!(server.told("denied"), denied);
    assert!(server.told("bytes") <= (2 << 20) * 11 / 10);

    let open = Running::with(|config| {
        config.max_memory = 2 << 20;
        config.when_full = WhenFull::Allow;
    });
    let mut peer = open.connect();
    let mut sent = 0;
    while open.told("turned_away") == 0 {
        assert!(sent < 1_000_000, "the table is not full after {sent} keys");
        flood(&mut peer, sent..sent + 1000).for_each(|allowed| assert!(allowed));
        sent += 1000;
    }
    assert_eq!(open.told("denied"), 0);
}

#[test]
fn a_test_clock_keeps_no_state() {
    let mut config = config();
    config.test_clock = true;
    config.state_file = Some("state".into());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(sluicegate_server::Server::bind(config)).unwrap_err();
    assert_eq!(error.to_string(), "a state file and a test clock exclude each other");
}
