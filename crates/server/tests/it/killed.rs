//! A server that is killed at any moment: the file it leaves is a whole one, and no key has more than
//! one burst too many for each time.

use std::{
    fs::File,
    io::{BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    panic::catch_unwind,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Clock;
use sluicegate_memory::{MemoryStore, SystemClock, WhenFull};
use sluicegate_resp::{Value, decode};
use sluicegate_testing::until;

use crate::{
    elsewhere::process,
    harness::{Random, Running, now, size},
};

/// Keys that all clients ask for at once, and what each may take at once and in a second.
const HOT: usize = 8;
const BURST: u64 = 50;
/// A key that was used up at the very beginning.
const OLD: &str = "SG.TAKE old gcra:3/366d";

/// What all clients have seen so far.
#[derive(Default)]
struct Seen {
    answered: AtomicU64,
    /// Units that each of the hot keys was given.
    admitted: [AtomicU64; HOT],
}

/// Asks for hot keys and for ever new ones, until the server is gone.
fn press(address: SocketAddr, seed: u64, seen: &Seen) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let mut random = Random(seed);
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let hot: Vec<_> = (0..16).map(|_| random.below(2 * HOT as u64)).collect();
        let lines = hot.iter().map(|&key| match key {
            0..8 => format!("SG.TAKE hot{key} gcra:{BURST}/1s\r\n"),
            _ => format!("SG.TAKE {}-{} gcra:2/366d\r\n", seed, random.below(1 << 30)),
        });
        if stream.write_all(lines.collect::<String>().as_bytes()).is_err() {
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

/// How many keys are in the file, if there is one; it must be whole.
fn keys(path: &Path) -> Option<u64> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        file => BufReader::new(file.unwrap()),
    };
    let now = SystemClock::new().now();
    let store = MemoryStore::load(file, now, MemoryStore::DEFAULT_MAX_BYTES, WhenFull::Deny);
    Some(store.unwrap().len() as u64)
}

fn until_written(server: &Running) {
    // One that began after all that was asked so far.
    let before = server.told("snapshots");
    server.until_at_least("snapshots", before + 2);
}

#[test]
fn killed_at_any_moment_it_leaves_a_whole_file() {
    let name = "killed::killed_at_any_moment_it_leaves_a_whole_file";
    let Some(mut process) = process(name, 1024, |config, folder| {
        config.state_file = Some(folder.join("state"));
        // Always while one is being written.
        config.snapshot_every = Duration::from_millis(1);
    }) else {
        return;
    };
    let kills = size("SLUICEGATE_KILLS", 50) as u64;
    let seen = Seen::default();
    let mut random = Random(7);
    let (mut loaded, mut last, mut empty) = (0, 0, 0);
    let start = now();
    for kill in 0..kills {
        // The first few die at once, when there may be no file yet.
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
            let asked = catch_unwind(|| {
                until("enough is answered", || seen.answered.load(Ordering::Relaxed) >= enough);
            });
            // Without a server the clients end, whatever failed.
            process.kill();
            asked.unwrap();
        });
        let found = keys(&process.folder.file("state"));
        process.start_again();
        // The hot keys may have recovered meanwhile.
        let held = process.server.told("keys");
        let most = found.unwrap_or(0);
        assert!((most.saturating_sub(HOT as u64)..=most).contains(&held), "{kill}: {held} {most}");
        loaded += u64::from(found.is_some());
        empty += u64::from(found.is_none());
        // What was in one snapshot is in all that follow.
        assert!(most + HOT as u64 >= last, "{kill}: {most} keys, and {last} before");
        last = most;
        if kill >= 5 {
            assert_eq!(process.server.connect().integers(OLD)[0], 0, "{kill}: an amnesty");
        }
    }
    // A second more, for the server's clock is another than ours.
    let span = start.elapsed() + Duration::from_secs(1);
    let bound = BURST + BURST * u64::try_from(span.as_millis()).unwrap() / 1000;
    let admitted = seen.admitted.map(AtomicU64::into_inner);
    let most = admitted.into_iter().max().unwrap();
    println!(
        "figure: killed {kills} times after {:?} replies: {loaded} files loaded, the last of {last} keys, \
         {empty} times there was none, 0 damaged; a key had {most} units at most, of {bound} by its limit \
         and {} by a burst for each loss",
        seen.answered,
        kills * BURST,
    );
    assert!(most <= bound + kills * BURST, "{admitted:?}");
    let names = process.folder.names();
    assert!(names.iter().all(|name| name == "state" || name == "state.tmp"), "{names:?}");
}
