//! Everything at once for a while: what the server tells of it is what its clients saw, and it takes
//! no more at the end than at the beginning.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sluicegate_resp::Value;

use crate::{
    elsewhere::process,
    harness::{Peer, Random, Running, now, size},
};

/// What the clients saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    commands: u64,
    allowed: u64,
    denied: u64,
    errors: u64,
}

impl Seen {
    /// Counts what came for `line`.
    fn note(&mut self, line: &str, heard: &Value) {
        self.commands += 1;
        match heard {
            Value::Error(_) => self.errors += 1,
            Value::Array(elements) if line.starts_with("SG.MTAKE") => {
                elements.iter().for_each(|element| self.decided(element, 1));
            }
            Value::Array(_) if line.starts_with("CL.") => self.decided(heard, 0),
            Value::Array(_) => self.decided(heard, 1),
            _ => {}
        }
    }

    fn decided(&mut self, decision: &Value, allowed: i64) {
        let Value::Array(integers) = decision else { panic!("no decision: {decision:?}") };
        let allowed = integers[0] == Value::Integer(allowed);
        self.allowed += u64::from(allowed);
        self.denied += u64::from(!allowed);
    }

    fn add(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            errors: self.errors + other.errors,
        }
    }
}

/// A command of any kind. Policies change from `round` to `round`, under keys that live on.
fn line(random: &mut Random, round: u64) -> String {
    let key = random.below(1_000);
    let policy = match random.below(7) {
        0 => "gcra:100/1s:burst=10".to_owned(),
        1 => format!("gcra:{}/1m", 1 + round % 10_000),
        2 => format!("sliding-log:{}/10s", 1 + round % 50),
        3 => "fixed-window:20/1s".to_owned(),
        4 => format!("sliding-counter:{}/1m,gcra:5/1s", 1 + round % 100),
        5 => "token-bucket:50/1s:borrow".to_owned(),
        _ => "leaky-queue:100/1s:capacity=20".to_owned(),
    };
    match random.below(14) {
        0..5 => format!("SG.TAKE k{key} {policy}"),
        5 => format!("SG.PEEK k{key} {policy}"),
        6 => format!("SG.CHARGE k{key} {policy} COST 2"),
        7 => format!("SG.REFUND k{key} {policy} COST 3"),
        8 => format!("SG.MTAKE 3 k{key} {policy} 1 a{key} {policy} 2 b{key} gcra:9/1m 1"),
        9 => format!("CL.THROTTLE t{key} 15 30 60"),
        10 => format!("SG.RESERVE r{key} gcra:10/1s MAXWAIT 100000"),
        11 => format!("SG.WAIT w{key} gcra:10/1s TIMEOUT 0"),
        12 => format!("SG.RESET k{key}"),
        _ => match random.below(4) {
            0 => "PING".to_owned(),
            1 => format!("SG.TAKE k{key} gcra:0/1s"),
            2 => format!("SG.TAKE k{key} {policy} COST x"),
            _ => format!("EXISTS k{key}"),
        },
    }
}

/// One client, until told to stop: pipelines of all lengths, now and then on a new connection.
fn client(server: &Running, seed: u64, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut random = Random(seed);
    let mut peer = server.connect();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        if random.below(500) == 0 {
            peer = server.connect();
        }
        let lines: Vec<_> =
            (0..=random.below(100)).map(|_| line(&mut random, round / 20)).collect();
        peer.send(lines.join("\r\n") + "\r\n");
        for line in &lines {
            seen.note(line, &peer.hear());
        }
    }
    seen
}

/// The numbers under these names that `INFO` tells.
fn told<const N: usize>(peer: &mut Peer, names: [&str; N]) -> [u64; N] {
    let Value::Bulk(text) = peer.say("INFO") else { panic!("no text") };
    let text = String::from_utf8(text).unwrap();
    names.map(|name| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| *found == name).unwrap().1.parse().unwrap()
    })
}

#[test]
fn what_is_told_after_a_while_is_what_was_seen() {
    let name = "soak::what_is_told_after_a_while_is_what_was_seen";
    let Some(process) = process(name, 1024, |config, folder| {
        config.state_file = Some(folder.join("state"));
        config.snapshot_every = Duration::from_millis(100);
        config.max_memory = 64 << 20;
    }) else {
        return;
    };
    let seconds = size("SLUICEGATE_SOAK_SECONDS", 4);
    let server = &process.server;
    let mut control = server.connect();
    told(&mut control, ["uptime_in_seconds"]);
    let files = process.open_files();
    let stop = AtomicBool::new(false);
    let mut resident = Vec::new();
    let start = now();
    let seen = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|seed| {
                scope.spawn({
                    let stop = &stop;
                    move || client(server, seed, stop)
                })
            })
            .collect();
        let (mut asked, whole) = (1, Duration::from_secs(seconds as u64));
        while start.elapsed() < whole {
            // Asked for as long as it takes: no timer of the test's own.
            told(&mut control, ["uptime_in_seconds"]);
            asked += 1;
            let quarter = start.elapsed().as_millis() * 8 / whole.as_millis();
            if resident.len() as u128 <= quarter {
                resident.push(process.resident());
            }
        }
        stop.store(true, Ordering::Relaxed);
        let seen = clients.into_iter().map(|client| client.join().unwrap());
        let seen = seen.fold(Seen::default(), Seen::add);
        Seen { commands: seen.commands + asked, ..seen }
    });
    let names = ["total_commands_processed", "allowed", "denied", "total_error_replies"];
    let [commands, allowed, denied, errors] = told(&mut control, names);
    let found = Seen { commands: commands - 1, allowed, denied, errors };
    let [snapshots, failed, turned_away] =
        told(&mut control, ["snapshots", "snapshots_failed", "turned_away"]);
    // First it grows: rules and keys are new. What goes on at the end would go on for ever.
    let [first, late, last] = [1, 3, 4].map(|quarter| resident[(resident.len() - 1) * quarter / 4]);
    let slope = (last as f64 - late as f64) / (seconds as f64 / 4.0 / 60.0);
    println!(
        "figure: {seconds} s: {found:?} as seen by the clients; {snapshots} snapshots, {failed} failed; \
         resident {resident:?} KiB, {slope:.0} KiB a minute in the last quarter"
    );
    assert_eq!(found, seen);
    assert_eq!((failed, turned_away), (0, 0));
    assert!(snapshots > 0);
    server.until_told("connected_clients", 2);
    // The connection of `INFO` may still be open.
    process.until_open_files(files);
    // A leak of a byte a command would be many megabytes in two minutes; the store itself is bounded.
    let most = 16 * 1024 + 1024 * seconds / 60;
    assert!(last.saturating_sub(first) <= most, "{resident:?}");
}
