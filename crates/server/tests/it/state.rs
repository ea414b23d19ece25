//! State survives a restart, and a damaged file is handled.

use std::{fs, fs::File, io::BufReader, path::Path, time::Duration};

use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_testing::eventually_true;

use crate::harness::{RawClient, Running, TempDir, config};

const POLICY: &str = "gcra:1/366d:burst=3";

fn with_state(path: &Path) -> Running {
    Running::with(|config| {
        config.memory.state_file = Some(path.to_owned());
        config.memory.snapshot_every = Duration::ZERO;
    })
}

/// `remaining` after one more take, or -1 if it was denied.
fn take(server: &Running, key: &str) -> i64 {
    let actual = server.connect().integers(&format!("SG.TAKE {key} {POLICY}"));
    if actual[0] == 1 { actual[2] } else { -1 }
}

#[test]
fn restart_keeps_usage() {
    let folder = TempDir::new();
    let path = folder.file("state");
    for (round, left) in [2, 1, 0, -1, -1].into_iter().enumerate() {
        let server = with_state(&path);
        assert_eq!(take(&server, "k"), left);
        assert_eq!(take(&server, &format!("round-{round}")), 2);
        drop(server);
        assert_eq!(folder.names(), ["state", "state.lock"]);
    }
    let server = with_state(&path);
    assert_eq!(server.info_value("keys"), 6);
}

#[test]
fn state_file_damaged_is_renamed() {
    let folder = TempDir::new();
    let path = folder.file("state");
    let server = with_state(&path);
    for key in 0..20 {
        assert_eq!(take(&server, &format!("k{key}")), 2);
    }
    drop(server);
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let mut begins_with_another_byte = good.clone();
    begins_with_another_byte[0] ^= 1;
    let mut begins_with_zeros = good.clone();
    begins_with_zeros[..512].fill(0);
    let cuts = (0..10).map(|tenth| good[..good.len() * tenth / 10].to_vec());
    let others = [
        flipped,
        [&good[..], b"x"].concat(),
        good[..5].to_vec(),
        begins_with_another_byte,
        begins_with_zeros,
        vec![0; good.len()],
    ];
    for damaged in cuts.chain(others) {
        fs::write(&path, &damaged).unwrap();
        let server = with_state(&path);
        assert_eq!(server.info_value("keys"), 0);
        assert_eq!(take(&server, "k1"), 2);
        let names = folder.names();
        let aside = names.iter().find(|name| name.starts_with("state.damaged-")).unwrap();
        assert!(aside["state.damaged-".len()..].parse::<u64>().is_ok(), "{names:?}");
        assert_eq!(fs::read(folder.file(aside)).unwrap(), damaged);
        fs::remove_file(folder.file(aside)).unwrap();
        drop(server);
        assert_eq!(folder.names(), ["state", "state.lock"]);
    }
}

/// A path that was confused with another one.
#[test]
fn state_file_of_another_kind_fails_the_start_and_is_unchanged() {
    let folder = TempDir::new();
    let path = folder.file("myrules.yaml");
    for other in [&b"policies:\n  gold: gcra:30/1m\n"[..], b"x", &[0xff; 4096], b"\0not zeros only"]
    {
        fs::write(&path, other).unwrap();
        let error = refused(|config| config.memory.state_file = Some(path.clone()));
        let expected = format!(
            "invalid state file `{}`: expected a file that Sluicegate wrote; choose another path, or \
             remove the file",
            path.display()
        );
        assert_eq!(error, expected);
        assert_eq!(fs::read(&path).unwrap(), other);
        assert_eq!(folder.names(), ["myrules.yaml", "myrules.yaml.lock"]);
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(take(&with_state(&path), "k"), 2);
}

/// A killed process leaves the state file as it is at that moment.
#[test]
fn state_file_of_a_killed_server_is_complete() {
    let folder = TempDir::new();
    let path = folder.file("state");
    let server = Running::with(|config| {
        config.memory.state_file = Some(path.clone());
        config.memory.snapshot_every = Duration::from_micros(100);
    });
    let mut peer = server.connect();
    let mut keys = 0;
    for round in 0..50 {
        let before = server.info_value("snapshots");
        flood(&mut peer, round * 200..(round + 1) * 200).for_each(|allowed| assert!(allowed));
        let left = folder.file("left");
        if fs::copy(&path, &left).is_ok() {
            let file = BufReader::new(File::open(&left).unwrap());
            let store = MemoryStore::load(file, now(), 1 << 30, WhenFull::Deny);
            keys = store.unwrap_or_else(|error| panic!("round {round}: {error}")).len();
        }
        // The file of the next round differs from this one.
        server.until_at_least("snapshots", before + 1);
    }
    assert!(keys > 200, "{keys}");
    println!("50 copies were whole, the last of {keys} keys");
    drop(server);

    // Leftovers of interrupted snapshots are removed, and nothing else.
    let left = ["state.tmp", "state.tmp-0123456789abcdef"];
    let kept = ["state.tmp-0", "state.tmp-0123456789abcdeg", "other.tmp-0123456789abcdef"];
    for name in left.into_iter().chain(kept) {
        fs::write(folder.file(name), b"half").unwrap();
    }
    let server = with_state(&path);
    let names = folder.names();
    assert!(left.iter().all(|name| !names.contains(&(*name).to_owned())), "{names:?}");
    assert!(kept.iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
    assert_eq!(server.info_value("keys"), 10_000);
    assert_eq!(take(&server, "flood0"), 1);
}

fn now() -> sluicegate_core::Timestamp {
    use sluicegate_core::Clock;
    sluicegate_memory::SystemClock::new().now()
}

#[test]
fn info_counts_snapshots_and_failures() {
    let folder = TempDir::new();
    let path = folder.file("gone/state");
    fs::create_dir(folder.file("gone")).unwrap();
    let server = Running::with(|config| {
        config.memory.state_file = Some(path.clone());
        config.memory.snapshot_every = Duration::from_millis(1);
    });
    assert_eq!(take(&server, "k"), 2);
    let mut since = server.info_value("snapshots");
    server.until_at_least("snapshots", since + 2);
    assert_eq!(server.info_value("last_snapshot_keys"), 1);
    assert!(server.info_value("last_snapshot_time") > 1_500_000_000);
    fs::rename(folder.file("gone"), folder.file("elsewhere")).unwrap();
    server.until_at_least("snapshots_failed", 1);
    assert_eq!(take(&server, "k"), 1, "decisions go on");
    fs::rename(folder.file("elsewhere"), folder.file("gone")).unwrap();
    since = server.info_value("snapshots");
    server.until_at_least("snapshots", since + 1);
}

/// Takes once from each of many keys, in one write. Returns whether each was allowed.
fn flood(peer: &mut RawClient, keys: std::ops::Range<u32>) -> impl Iterator<Item = bool> {
    let lines: String =
        keys.clone().map(|key| format!("SG.TAKE flood{key} {POLICY}\r\n")).collect();
    peer.send(lines);
    keys.map(|_| crate::harness::integers(&peer.read_reply())[0] == 1)
}

#[test]
fn max_memory_is_applied_and_reported() {
    let server = Running::with(|config| config.memory.max_bytes = 2 << 20);
    assert_eq!(server.info_value("max_bytes"), 2 << 20);
    let mut peer = server.connect();
    let (mut denied, mut sent) = (0, 0);
    while denied < 1000 {
        assert!(sent < 1_000_000, "{denied} of {sent} were denied");
        denied += flood(&mut peer, sent..sent + 1000).filter(|allowed| !allowed).count() as u64;
        sent += 1000;
    }
    assert_eq!(server.info_value("table_full"), denied);
    assert_eq!(server.info_value("denied"), denied);
    assert!(server.info_value("bytes") <= (2 << 20) * 11 / 10);

    let open = Running::with(|config| {
        config.memory.max_bytes = 2 << 20;
        config.memory.when_full = WhenFull::Allow;
    });
    let mut peer = open.connect();
    let mut sent = 0;
    while open.info_value("table_full") == 0 {
        assert!(sent < 1_000_000, "the table is not full after {sent} keys");
        flood(&mut peer, sent..sent + 1000).for_each(|allowed| assert!(allowed));
        sent += 1000;
    }
    assert_eq!(open.info_value("denied"), 0);
}

#[test]
fn test_clock_with_state_file_is_rejected() {
    let mut config = config();
    config.test_clock = true;
    config.memory.state_file = Some("state".into());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(sluicegate_server::Server::bind(config)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid --state-file together with --test-clock: remove one of them"
    );
}

/// The error of a server that does not start.
fn refused(configure: impl FnOnce(&mut sluicegate_server::Config)) -> String {
    let mut config = config();
    configure(&mut config);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(sluicegate_server::Server::bind(config));
    server.map(|_| ()).unwrap_err().to_string()
}

#[test]
fn state_file_not_writable_fails_the_start() {
    let folder = TempDir::new();
    fs::write(folder.file("file"), b"").unwrap();
    fs::create_dir(folder.file("folder")).unwrap();
    let at = |path: &Path| refused(|config| config.memory.state_file = Some(path.to_owned()));
    let unwritable = "expected a file in a folder that exists and can be written to (";
    for (path, expected) in [
        (folder.file("gone/state"), unwritable),
        (folder.file("file/state"), unwritable),
        ("/proc/1/state".into(), unwritable),
        ("/sys/state".into(), unwritable),
        (folder.file("folder"), "expected a file, not a folder"),
        (folder.file(".."), "expected"),
    ] {
        let error = at(&path);
        let start = format!("invalid state file `{}`: ", path.display());
        assert!(error.starts_with(&start), "{error}");
        assert!(error[start.len()..].starts_with(expected), "{error}");
    }
    assert_eq!(folder.names(), ["file", "folder"], "nothing is left behind");
}

#[test]
#[cfg(unix)]
fn state_file_symbolic_links_are_not_followed() {
    let folder = TempDir::new();
    let target = folder.file("target");
    fs::write(&target, b"precious").unwrap();
    let link = |name: &str| std::os::unix::fs::symlink(&target, folder.file(name)).unwrap();
    // Older versions wrote to these paths.
    link("state.tmp");
    let path = folder.file("state");
    let server = with_state(&path);
    assert_eq!(take(&server, "k"), 2);
    drop(server);
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(folder.names(), ["state", "state.lock", "state.tmp", "target"]);
    // Nor the file itself, or its lock.
    link("other");
    let other = refused(|config| config.memory.state_file = Some(folder.file("other")));
    assert!(other.ends_with("expected a file, not a symbolic link: name its target"), "{other}");
    link("third.lock");
    let third = refused(|config| config.memory.state_file = Some(folder.file("third")));
    assert!(third.contains("third.lock`: expected a regular file"), "{third}");
    // A link that is created later is replaced, and its target is unchanged.
    let server = with_state(&path);
    fs::remove_file(&path).unwrap();
    link("state");
    drop(server);
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    println!(
        "figure: symbolic links at 5 places of a state file: 0 followed, the target unchanged"
    );
}

#[test]
fn state_file_in_use_fails_the_start() {
    let folder = TempDir::new();
    let path = folder.file("state");
    let server = with_state(&path);
    assert_eq!(take(&server, "k"), 2);
    let error = refused(|config| config.memory.state_file = Some(path.clone()));
    let expected =
        format!("state file `{}` is unavailable: another server uses it", path.display());
    assert!(error.starts_with(&expected), "{error}");
    drop(server);
    assert_eq!(take(&with_state(&path), "k"), 1);
}

/// Someone removes the lock, or renames it, and starts another server.
#[test]
#[cfg(unix)]
fn lock_file_removed_keeps_the_state_file_to_one_writer() {
    let folder = TempDir::new();
    let (path, lock) = (folder.file("state"), folder.file("state.lock"));
    for is_renamed in [false, true] {
        let first = with_state(&path);
        assert_eq!(take(&first, if is_renamed { "b" } else { "a" }), 2);
        match is_renamed {
            true => fs::rename(&lock, folder.file("moved")).unwrap(),
            false => fs::remove_file(&lock).unwrap(),
        }
        let second = with_state(&path);
        assert_eq!(take(&second, "k"), if is_renamed { 1 } else { 2 });
        drop(second);
        let written = fs::read(&path).unwrap();
        // It would otherwise write its own state at the end.
        drop(first);
        assert_eq!(fs::read(&path).unwrap(), written, "renamed: {is_renamed}");
    }
    assert_eq!(take(&with_state(&path), "k"), 0);
    println!(
        "figure: 2 servers on one state file after its lock was removed or renamed: 1 writes it"
    );
}

/// Once no other server has the lock, the server takes it again and goes on.
#[test]
#[cfg(unix)]
fn lock_file_removed_is_locked_again() {
    let folder = TempDir::new();
    let (path, lock) = (folder.file("state"), folder.file("state.lock"));
    let server = Running::with(|config| {
        config.memory.state_file = Some(path.clone());
        config.memory.snapshot_every = Duration::from_millis(20);
    });
    eventually_true("the first snapshot is there", || server.info_value("snapshots") > 0);
    fs::remove_file(&lock).unwrap();
    eventually_true("a snapshot is not written", || server.info_value("snapshots_failed") == 1);
    let before = server.info_value("snapshots");
    eventually_true("the next ones are", || server.info_value("snapshots") > before);
    assert_eq!(server.info_value("snapshots_failed"), 1);
    let error = refused(|config| config.memory.state_file = Some(path.clone()));
    assert!(error.contains("another server uses it"), "{error}");
}

#[test]
#[cfg(unix)]
fn state_file_with_hard_links_is_rejected() {
    let folder = TempDir::new();
    let (path, other) = (folder.file("state"), folder.file("other"));
    drop(with_state(&path));
    fs::hard_link(&path, &other).unwrap();
    for name in [&path, &other] {
        let error = refused(|config| config.memory.state_file = Some(name.clone()));
        assert!(error.contains("expected a file with one name"), "{error}");
    }
    fs::remove_file(&other).unwrap();
    drop(with_state(&path));
}

/// A server does not start with less memory than its file needs. It says how much is enough, and the file stays.
#[test]
fn restart_with_too_little_memory_fails_and_names_enough() {
    let folder = TempDir::new();
    let config = |max_memory| {
        let mut config = config();
        config.memory.state_file = Some(folder.file("state"));
        config.memory.snapshot_every = Duration::ZERO;
        config.memory.max_bytes = max_memory;
        config
    };
    let start = |max_memory| Running::with(|it| it.memory = config(max_memory).memory);
    let full = start(4 << 20);
    let mut peer = full.connect();
    let mut sent = 0;
    let mut allowed = Vec::new();
    while full.info_value("table_full") < 1_000 {
        allowed.extend(flood_once(&mut peer, sent..sent + 5_000));
        sent += 5_000;
    }
    let held = full.info_value("keys");
    drop((peer, full));
    let saved = std::fs::read(folder.file("state")).unwrap();

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(sluicegate_server::Server::bind(config(2 << 20))).unwrap_err();
    let path = folder.file("state");
    let expected = format!(
        "invalid --max-memory of 2097152 bytes: expected at least 4mb, which the state file `{}` needs; raise it, or \
         remove the file to start empty",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(std::fs::read(&path).unwrap(), saved);

    let enough = start(4 << 20);
    assert_eq!(enough.info_value("keys"), held);
    let mut peer = enough.connect();
    let mut again = Vec::new();
    for first in (0..sent).step_by(5_000) {
        again.extend(flood_once(&mut peer, first..first + 5_000));
    }
    assert_eq!(again.iter().zip(&allowed).filter(|(again, first)| **again && **first).count(), 0);
}

/// Takes from keys that may be used once: whether each was allowed.
fn flood_once(peer: &mut RawClient, keys: std::ops::Range<u32>) -> impl Iterator<Item = bool> {
    let lines = keys.clone().map(|key| format!("SG.TAKE once{key} fixed-window:1/12h\r\n"));
    peer.send(lines.collect::<String>());
    let allowed: Vec<_> =
        keys.map(|_| crate::harness::integers(&peer.read_reply())[0] == 1).collect();
    allowed.into_iter()
}

/// A snapshot that cannot be written to its end, as on a disk that is full, leaves the file before it and nothing else.
#[test]
#[cfg(target_os = "linux")]
fn snapshot_without_space_keeps_the_previous_one() {
    const LIMITED: &str = "SLUICEGATE_TEST_NO_SPACE";
    if std::env::var_os(LIMITED).is_none() {
        // Files of at most 32 KiB, in a process of its own.
        let name = "state::snapshot_without_space_keeps_the_previous_one";
        let script = format!("trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact {name} --nocapture");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, std::env::current_exe().unwrap().to_str().unwrap()]);
        let output = command.env(LIMITED, "").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let folder = TempDir::new();
    let path = folder.file("state");
    let server = Running::with(|config| {
        config.memory.state_file = Some(path.clone());
        config.memory.snapshot_every = Duration::from_millis(1);
    });
    assert_eq!(take(&server, "early"), 2);
    let written = server.info_value("snapshots");
    server.until_more_than("snapshots", written + 1);
    flood(&mut server.connect(), 0..3_000).for_each(|allowed| assert!(allowed));
    server.until_more_than("snapshots_failed", 3);
    drop(server);
    assert_eq!(folder.names(), ["state", "state.lock"]);
    let store = MemoryStore::load(File::open(&path).unwrap(), now(), 1 << 30, WhenFull::Deny);
    assert!(store.unwrap().with_entry(b"early", |_| ()).is_some());
}
