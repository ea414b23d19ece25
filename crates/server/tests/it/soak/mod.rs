//! All protocols at once for a while, beside reloads and an open dashboard: the server's counters equal its clients',
//! and it uses no more memory at the end than at the beginning. RELIABILITY 37.

mod grpc;
mod http;
mod resp;

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use sluicegate_testing::{SetOnDrop, eventually, pause};

use crate::{
    child_process::{Process, process},
    harness::{Running, any_port, now, size},
    http::client::Client,
};

/// Decisions and errors of one protocol, as its clients saw them or as the server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProtocolCounts {
    requests: u64,
    allowed: u64,
    denied: u64,
    errors: u64,
    /// Requests that are answered with no decision, or with several.
    other: u64,
    /// Decisions beyond the one of a request.
    more: u64,
}

impl ProtocolCounts {
    fn decided(&mut self, is_allowed: bool) {
        self.allowed += u64::from(is_allowed);
        self.denied += u64::from(!is_allowed);
    }

    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            errors: self.errors + other.errors,
            other: self.other + other.other,
            more: self.more + other.more,
        }
    }
}

/// Rules by which the gate and Envoy's calls are decided; the limits change with `version`.
fn rules(version: u64) -> String {
    let gate = 5 + version % 7;
    format!(
        "rules:
  - {{name: gate, match: {{path: '/**'}}, key: client, policy: 'gcra:{gate}/1s'}}
  - {{name: users, match: {{domain: shop, descriptor.user: '*'}}, key: descriptor.user, policy: 'gcra:3/1s'}}
"
    )
}

/// Writes rules in one step: a half-written file is never read.
fn write_rules(folder: &Path, version: u64) {
    fs::write(folder.join("rules.next"), rules(version)).unwrap();
    fs::rename(folder.join("rules.next"), folder.join("rules.yaml")).unwrap();
}

/// The counters of one protocol in `/metrics`.
fn counted(metrics: &str, protocol: &str) -> [u64; 3] {
    let label = format!("=\"{protocol}\"");
    let sum = |name: &str, outcome: &str| {
        let lines = metrics.lines().filter(|line| {
            line.starts_with(name) && line.contains(&label) && line.contains(outcome)
        });
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    [
        sum("sluicegate_requests_total", ""),
        sum("sluicegate_decisions_total", "\"allowed\""),
        sum("sluicegate_decisions_total", "\"denied\""),
    ]
}

/// Resident memory in KiB, by seconds.
struct Resident(Vec<(f64, f64)>);

impl Resident {
    /// KiB per minute from the second `from` on, as the slope of a straight line through all samples.
    fn slope(&self, from: f64) -> f64 {
        let late: Vec<_> = self.0.iter().filter(|sample| sample.0 >= from).collect();
        let count = late.len() as f64;
        let x = late.iter().map(|it| it.0).sum::<f64>() / count;
        let y = late.iter().map(|it| it.1).sum::<f64>() / count;
        let [above, below] = late.iter().fold([0.0; 2], |[above, below], it| {
            [above + (it.0 - x) * (it.1 - y), below + (it.0 - x).powi(2)]
        });
        above / below * 60.0
    }
}

#[test]
fn server_under_mixed_load_counts_everything() {
    let name = "soak::server_under_mixed_load_counts_everything";
    let Some(process) = process(name, 1024, |config, folder| {
        write_rules(folder, 0);
        (config.http.address, config.envoy.address) = (Some(any_port()), Some(any_port()));
        config.rules = vec![folder.join("rules.yaml")];
        config.memory.state_file = Some(folder.join("state"));
        config.memory.snapshot_every = Duration::from_millis(100);
        config.memory.max_bytes = 64 << 20;
    }) else {
        return;
    };
    let seconds = size("SLUICEGATE_SOAK_SECONDS", 3) as f64;
    let server = &process.server;
    // The files of the watcher are open once it has noticed a change.
    let (loaded, mut version) = (server.info_value("rules_version"), 0);
    eventually("the rules files are watched", || {
        version += 1;
        write_rules(&process.folder.file(""), version);
        let reloaded = server.info_value("rules_version");
        if reloaded > loaded { Ok(()) } else { Err(reloaded) }
    });
    let files = process.open_files_at_rest();
    // The number of commands so far.
    let before = server.info_value("total_commands_processed");
    let mut control = Client::connect(server);
    let (seen, resident, reloads) = press(&process, seconds);
    let [_, of_http, _] = seen;

    let metrics = String::from_utf8(control.get("/metrics").body).unwrap();
    // It counts itself.
    let http =
        ProtocolCounts { requests: of_http.requests + 1, other: of_http.other + 1, ..of_http };
    let all = [("resp", seen[0]), ("http", http), ("grpc", seen[2])];
    for (protocol, seen) in all {
        println!("figure: {seconds} s of {protocol}: {seen:?}");
        let [requests, allowed, denied] = counted(&metrics, protocol);
        let own = if protocol == "resp" { before } else { 0 };
        assert_eq!(
            [requests - own, allowed, denied],
            [seen.requests, seen.allowed, seen.denied],
            "{protocol}"
        );
        assert_eq!(
            seen.requests + seen.more,
            seen.allowed + seen.denied + seen.errors + seen.other,
            "{protocol}"
        );
        assert!(seen.allowed > 0 && seen.denied > 0 && seen.errors > 0, "{protocol}: {seen:?}");
    }
    let errors: u64 = all.iter().map(|(_, seen)| seen.errors).sum();
    assert_eq!(server.info_value("total_error_replies"), errors);

    let [snapshots, failed, table_full] =
        ["snapshots", "snapshots_failed", "table_full"].map(|name| server.info_value(name));
    assert_eq!((failed, table_full), (0, 0));
    assert!(snapshots > 0 && reloads > 0);
    drop(control);
    server.until_exactly("connected_clients", 1);
    process.until_open_files(files);
    // First it grows: rules and keys are new. Growth after two minutes is a leak.
    let (first, last) = (resident.0[resident.0.len() / 4].1, resident.0.last().unwrap().1);
    let from = if seconds > 240.0 { 120.0 } else { seconds / 2.0 };
    let slope = resident.slope(from);
    println!(
        "figure: {seconds} s of all protocols: {reloads} reloads, {snapshots} snapshots, {files} files are open \
         as before; resident {first} KiB, at the end {last} KiB, {slope:.0} KiB a minute from second {from} on"
    );
    assert!(last - first <= 16.0 * 1024.0 + 1024.0 * seconds / 60.0, "{first} {last}");
    assert!(seconds <= 240.0 || slope <= 1024.0, "{slope} KiB a minute");
}

/// Runs clients of all protocols, reloads and a viewer; returns the results by protocol.
fn press(process: &Process, seconds: f64) -> ([ProtocolCounts; 3], Resident, u64) {
    let (server, folder) = (&process.server, process.folder.file(""));
    let (stop, reloads) = (&AtomicBool::new(false), AtomicU64::new(0));
    let mut resident = Resident(Vec::new());
    let start = now();
    let seen = thread::scope(|scope| {
        let ends = SetOnDrop(stop);
        let of = |client: fn(&Running, u64, &AtomicBool) -> ProtocolCounts, count: u64| {
            let clients =
                (0..count).map(move |seed| scope.spawn(move || client(server, seed, stop)));
            clients.collect::<Vec<_>>()
        };
        let mut clients = [of(resp::client, 4), of(http::client, 3), of(grpc::client, 1)];
        clients[1].push(scope.spawn(move || http::viewer(server, stop)));
        scope.spawn(|| {
            for version in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                write_rules(&folder, version);
                reloads.store(version, Ordering::Relaxed);
                pause(Duration::from_millis(100));
            }
        });
        while start.elapsed().as_secs_f64() < seconds {
            let sample = process.resident() as f64;
            resident.0.push((start.elapsed().as_secs_f64(), sample));
            pause(Duration::from_millis(100));
        }
        drop(ends);
        clients.map(|clients| {
            let seen = clients.into_iter().map(|client| client.join().unwrap());
            seen.fold(ProtocolCounts::default(), ProtocolCounts::add)
        })
    });
    (seen, resident, reloads.into_inner())
}
