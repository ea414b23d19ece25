//! A server that is killed at any moment: the file is complete and has every key of the previous one, and
//! each kill admits at most one burst more per key.

use std::{
    fs,
    io::{Cursor, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Range,
    panic::catch_unwind,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use sluicegate_core::Clock;
use sluicegate_memory::{MemoryStore, SystemClock, WhenFull};
use sluicegate_resp::{Value, decode};
use sluicegate_testing::eventually_true;

use crate::{
    child_process::process,
    harness::{Random, RawClient, Running, integers, now, size},
};

/// Keys that all clients use, their burst, and their refill per second.
const HOT: usize = 8;
const BURST: u64 = 50;
/// A key that was used up at the start.
const OLD: &str = "SG.TAKE old gcra:3/366d";

/// The results of all clients so far.
#[derive(Default)]
struct ClientResults {
    answered: AtomicU64,
    /// Keys that were used once, and may be used once.
    keys: Mutex<Vec<String>>,
    /// Units that were taken from each hot key.
    admitted: [AtomicU64; HOT],
}

/// Takes from hot keys and from new ones, until the server has ended.
fn press(address: SocketAddr, seed: u64, seen: &ClientResults) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let mut random = Random(seed);
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let hot: Vec<_> = (0..16).map(|_| random.below(2 * HOT as u64)).collect();
        let mut keys = Vec::new();
        let lines = hot.iter().map(|&key| match key {
            0..8 => format!("SG.TAKE hot{key} gcra:{BURST}/1s\r\n"),
            _ => {
                keys.push(format!("{seed}-{}", random.below(1 << 30)));
                format!("SG.TAKE {} gcra:1/366d\r\n", keys[keys.len() - 1])
            }
        });
        let lines: String = lines.collect();
        seen.keys.lock().unwrap().append(&mut keys);
        if stream.write_all(lines.as_bytes()).is_err() {
            return;
        }
        for key in hot {
            let decision = loop {
                if let Some((value, taken)) = decode(&received).unwrap() {
                    received.drain(..taken);
                    break value;
                }
                match stream.read(&mut chunk) {
                    Ok(count @ 1..) => received.extend_from_slice(&chunk[..count]),
                    Ok(_) | Err(_) => return,
                }
            };
            let Value::Array(integers) = decision else { panic!("no decision: {decision:?}") };
            if let Some(admitted) = seen.admitted.get(usize::try_from(key).unwrap()) {
                admitted.fetch_add((integers[0] == Value::Integer(1)).into(), Ordering::Relaxed);
            }
            seen.answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The content of the file, if there is one; it must be complete.
fn saved(path: &Path) -> Option<MemoryStore> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        file => Some(loaded(file.unwrap())),
    }
}

fn loaded(file: Vec<u8>) -> MemoryStore {
    let (now, most) = (SystemClock::new().now(), MemoryStore::DEFAULT_MAX_BYTES);
    MemoryStore::load(Cursor::new(file), now, most, WhenFull::Deny).unwrap()
}

fn has(store: &MemoryStore, key: &str) -> bool {
    store.with_entry(key.as_bytes(), |_| ()).is_some()
}

fn until_written(server: &Running) {
    // One that began after all takes so far.
    server.until_more_than("snapshots", server.info_value("snapshots") + 1);
}

#[test]
fn server_killed_at_any_moment_leaves_a_complete_file() {
    let name = "killed::server_killed_at_any_moment_leaves_a_complete_file";
    let Some(mut process) = process(name, 1024, |config, folder| {
        config.memory.state_file = Some(folder.join("state"));
        // Always while a file is being written.
        config.memory.snapshot_every = Duration::from_millis(1);
        // In full size it is used up.
        config.memory.max_bytes = 3 << 20;
    }) else {
        return;
    };
    let kills = size("SLUICEGATE_KILLS", 50) as u64;
    let seen = ClientResults::default();
    let mut random = Random(7);
    let (mut loaded, mut empty, mut again) = (0, 0, 0);
    // Keys that were in the last file.
    let mut last: Vec<String> = Vec::new();
    let start = now();
    for kill in 0..kills {
        // The first few are killed at once, when there may be no file yet.
        if kill == 5 {
            for _ in 0..3 {
                assert_eq!(process.server.connect().integers(OLD)[0], 1);
            }
            until_written(&process.server);
        }
        let enough = seen.answered.load(Ordering::Relaxed) + random.below(4_000);
        let address = process.server.address;
        std::thread::scope(|scope| {
            for client in 0..4 {
                let seen = &seen;
                scope.spawn(move || press(address, kill * 4 + client, seen));
            }
            let requested = catch_unwind(|| {
                eventually_true("enough is answered", || {
                    seen.answered.load(Ordering::Relaxed) >= enough
                });
            });
            // The clients end without a server, also if something failed.
            process.kill();
            requested.unwrap();
        });
        let found = saved(&process.folder.file("state"));
        loaded += u64::from(found.is_some());
        empty += u64::from(found.is_none());
        let found = found.unwrap_or_default();
        // Keys of one snapshot are in all later ones.
        let missing: Vec<_> = last.iter().filter(|key| !has(&found, key)).collect();
        assert!(missing.is_empty(), "{kill}: {missing:?} of {} keys", last.len());
        let requested = seen.keys.lock().unwrap().clone();
        last = requested.into_iter().filter(|key| has(&found, key)).collect();
        process.start_again();
        // The hot keys may have recovered since.
        let held = usize::try_from(process.server.info_value("keys")).unwrap();
        assert!((last.len()..=found.len()).contains(&held), "{kill}: {held} of {}", found.len());
        // Some of them are used again, different ones each time.
        let mut peer = process.server.connect();
        let first = usize::try_from(random.below(97)).unwrap();
        let some: Vec<_> = last.iter().skip(first).step_by(97).collect();
        again += some.iter().filter(|key| allowed(&mut peer, key, "gcra:1/366d")).count();
        if kill >= 5 {
            assert_eq!(process.server.connect().integers(OLD)[0], 0, "{kill}: usage was reset");
        }
    }
    assert_eq!(again, 0, "keys that were in the file are admitted again");
    // One more second, because the clock of the server differs from the test's.
    let span = start.elapsed() + Duration::from_secs(1);
    let bound = BURST + BURST * u64::try_from(span.as_millis()).unwrap() / 1000;
    let admitted = seen.admitted.map(AtomicU64::into_inner);
    let most = admitted.into_iter().max().unwrap();
    println!(
        "figure: killed {kills} times after {:?} replies: {loaded} files loaded, the last of {} keys, \
         {empty} times there was none, 0 damaged, 0 keys of one missing in the next; a key had {most} units at most, of {bound} by its limit \
         and {} by a burst for each loss",
        seen.answered,
        last.len(),
        kills * BURST,
    );
    assert!(most <= bound + kills * BURST, "{admitted:?}");
    let names = process.folder.names();
    // The next server removes the leftovers of the last one.
    let expected =
        |name: &String| name == "state" || name == "state.lock" || name.starts_with("state.tmp-");
    assert!(names.len() <= 3 && names.iter().all(expected), "{names:?}");
}

fn allowed(peer: &mut RawClient, key: &str, policy: &str) -> bool {
    peer.integers(&format!("SG.TAKE {key} {policy}"))[0] == 1
}

/// Takes once from each numbered key, all in one write; returns how many were allowed.
fn take_all(peer: &mut RawClient, name: &str, keys: Range<usize>) -> usize {
    let lines = keys.clone().map(|key| format!("SG.TAKE {name}{key} fixed-window:1/12h\r\n"));
    peer.send(lines.collect::<String>());
    keys.map(|_| integers(&peer.read_reply())[0]).filter(|&allowed| allowed == 1).count()
}

#[test]
fn snapshot_of_a_growing_table_has_every_older_key() {
    const AT_ONCE: usize = 2_000;
    const CLIENTS: usize = 3;
    let name = "killed::snapshot_of_a_growing_table_has_every_older_key";
    let Some(mut process) = process(name, 1024, |config, folder| {
        config.memory.state_file = Some(folder.join("state"));
        config.memory.snapshot_every = Duration::from_millis(1);
        config.memory.max_bytes = 64 << 20;
    }) else {
        return;
    };
    let old = size("SLUICEGATE_GROWING_KEYS", 30_000);
    let snapshots = size("SLUICEGATE_GROWING_SNAPSHOTS", 5);
    let path = process.folder.file("state");
    let mut peer = process.server.connect();
    for start in (0..old).step_by(AT_ONCE) {
        assert_eq!(take_all(&mut peer, "old", start..start + AT_ONCE), AT_ONCE);
    }
    until_written(&process.server);
    let stop = AtomicBool::new(false);
    let requested = [const { AtomicUsize::new(0) }; CLIENTS];
    let files = std::thread::scope(|scope| {
        for (client, requested) in requested.iter().enumerate() {
            let (stop, server) = (&stop, &process.server);
            scope.spawn(move || {
                let mut peer = server.connect();
                for start in (0..).step_by(AT_ONCE) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    take_all(&mut peer, &format!("new{client}-"), start..start + AT_ONCE);
                    requested.store(start + AT_ONCE, Ordering::Relaxed);
                }
            });
        }
        let mut files: Vec<Vec<u8>> = Vec::new();
        let start = now();
        while files.len() < snapshots {
            assert!(start.elapsed() < Duration::from_secs(300), "{} snapshots", files.len());
            let file = fs::read(&path).unwrap();
            if files.last().is_none_or(|last| *last != file) {
                files.push(file);
            }
        }
        stop.store(true, Ordering::Relaxed);
        files
    });
    // Each has the old keys, and all keys of the previous file.
    let requested = requested.map(AtomicUsize::into_inner);
    let new = (0..CLIENTS).flat_map(|client| (0..requested[client]).map(move |key| (client, key)));
    let new = new.map(|(client, key)| format!("new{client}-{key}"));
    let names: Vec<String> = (0..old).map(|key| format!("old{key}")).chain(new).collect();
    let mut before: Vec<bool> = (0..names.len()).map(|key| key < old).collect();
    let mut sizes = Vec::new();
    for file in &files {
        let store = loaded(file.clone());
        let found: Vec<bool> = names.iter().map(|key| has(&store, key)).collect();
        let missing =
            before.iter().zip(&found).filter(|(before, found)| **before && !**found).count();
        assert_eq!(missing, 0, "keys of the file before are missing in one of {}", store.len());
        sizes.push(store.len());
        before = found;
    }
    assert!(sizes[sizes.len() - 1] > sizes[0], "the table did not grow: {sizes:?}");
    let mut again = 0;
    for file in [&files[0], &files[files.len() / 2], &files[files.len() - 1]] {
        process.kill();
        fs::write(&path, file).unwrap();
        process.start_again();
        let mut peer = process.server.connect();
        for start in (0..old).step_by(AT_ONCE) {
            again += take_all(&mut peer, "old", start..start + AT_ONCE);
        }
    }
    println!(
        "figure: {snapshots} snapshots of {sizes:?} keys under a flood of new ones: 0 of {old} old keys missing, nor any of one \
         file in the next; \
         after 3 kills {again} admitted again"
    );
    assert_eq!(again, 0);
}

#[test]
fn state_file_is_never_shared_by_two_processes() {
    let name = "killed::state_file_is_never_shared_by_two_processes";
    let Some(mut process) = process(name, 1024, |config, folder| {
        config.memory.state_file = Some(folder.join("state"));
        config.memory.snapshot_every = Duration::ZERO;
    }) else {
        return;
    };
    let second = process.start_second();
    let printed = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    let path = process.folder.file("state");
    assert!(
        printed.contains(&format!("state file `{}` is unavailable", path.display())),
        "{printed}"
    );
    // The first is not disturbed, and the system releases the lock of a killed one.
    assert!(allowed(&mut process.server.connect(), "k", "gcra:1/366d"));
    process.kill();
    process.start_again();
    assert!(allowed(&mut process.server.connect(), "k", "gcra:1/366d"), "nothing was saved");
    println!(
        "figure: a second process on one state file: does not start; after a kill the next one does"
    );
}
