//! Resident memory of the process: it must stay within the bound, whatever the store counts.
//!
//! Each flood runs in a process of its own, so that no other test's memory is counted.

use std::{
    env, fs,
    process::{Command, Stdio},
    time::Duration,
};

use sluicegate_core::{Operation, Policy};
use sluicegate_memory::{MemoryStore, NumberedPolicy, WhenFull};

use super::{at, policy, size, take};

const FLOOD: &str = "SLUICEGATE_TEST_FLOOD";

/// The settings of a flood.
#[derive(Clone, Copy)]
struct Flood {
    name: &'static str,
    /// The policy of the key with this number.
    policy: fn(u64) -> Policy,
    /// How often each key is requested, in turn with `together` others.
    requests: u64,
    together: u64,
    /// Microseconds between two requests.
    pace: u64,
    /// Units charged to each key once the table is full.
    charged: u32,
    /// Whether each request holds a unit under an id of its own, instead of a take.
    holds: bool,
}

const USUAL: Flood = Flood {
    name: "",
    policy: |_| policy("gcra:5/1d"),
    requests: 1,
    together: 1,
    pace: 0,
    charged: 0,
    holds: false,
};

/// Every way of keeping a key, few and many bytes of it, for ever and for a second.
const FLOODS: [Flood; 18] = [
    Flood { name: "gcra", ..USUAL },
    Flood { name: "fixed-window", policy: |_| policy("fixed-window:5/1d"), ..USUAL },
    Flood { name: "sliding-counter", policy: |_| policy("sliding-counter:5/1d"), ..USUAL },
    Flood { name: "sliding-log", policy: |_| policy("sliding-log:5/1d"), ..USUAL },
    Flood {
        name: "sliding-log, 100 events",
        policy: |_| policy("sliding-log:1000/1d"),
        requests: 100,
        together: 1000,
        ..USUAL
    },
    Flood {
        name: "sliding-log, 5000 events",
        policy: |_| policy("sliding-log:100000/1d"),
        requests: 5000,
        together: 10,
        ..USUAL
    },
    Flood {
        name: "sliding-log, 100000 events",
        policy: |_| policy("sliding-log:100000/1d"),
        requests: 100_000,
        together: 3,
        ..USUAL
    },
    Flood {
        name: "two limits",
        policy: |_| policy("gcra:5/1d,sliding-log:50/1d"),
        requests: 3,
        together: 100,
        ..USUAL
    },
    Flood {
        name: "eight limits",
        policy: |_| policy(&["fixed-window:5/1d"; 8].join(",")),
        ..USUAL
    },
    Flood { name: "recovers", policy: |_| policy("fixed-window:5/1s"), pace: 10, ..USUAL },
    Flood {
        name: "logs that recover",
        policy: |_| policy("sliding-log:100/1s"),
        requests: 20,
        together: 500,
        pace: 1,
        ..USUAL
    },
    Flood { name: "holds", policy: |_| policy("concurrency:9/1d"), holds: true, ..USUAL },
    Flood {
        name: "holds under a rate, 9 a key",
        policy: |_| policy("gcra:9/1d"),
        requests: 9,
        together: 1000,
        holds: true,
        ..USUAL
    },
    Flood {
        name: "holds, 500 a key",
        policy: |_| policy("concurrency:500/1d"),
        requests: 500,
        together: 1000,
        holds: true,
        ..USUAL
    },
    Flood { name: "gcra, then debts", charged: 1000, ..USUAL },
    Flood {
        name: "gcra, a policy a key",
        policy: |key| policy(&format!("gcra:{}/1d", key + 1)),
        ..USUAL
    },
    Flood { name: "a policy a key", policy: |key| invented(key, "fixed-window:5/1d"), ..USUAL },
    Flood {
        name: "eight limits, a policy a key",
        policy: |key| invented(key, &["fixed-window:5/1d"; 7].join(",")),
        ..USUAL
    },
];

/// A policy that no other key has.
fn invented(key: u64, text: &str) -> Policy {
    policy(&format!("fixed-window:{}/1d,{text}", key + 2))
}

/// Kilobytes that the process has in memory, and the most that it ever had.
fn resident() -> [usize; 2] {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    })
}

/// Floods a store until it has rejected many keys, or for long enough, and returns its usage.
fn flood(flood: Flood, bound: usize) -> sluicegate_core::TableUsage {
    let store = MemoryStore::bounded(bound, WhenFull::Deny);
    let turn = flood.requests * flood.together;
    let (mut now, mut keys) = (0, 0);
    let mut known: Option<(Policy, NumberedPolicy)> = None;
    // Enough for all to be full, even if a request added no more than sixteen bytes.
    for request in 0..bound as u64 / 16 {
        let key = request / turn * flood.together + request % flood.together;
        let policy = (flood.policy)(if flood.requests == 1 { key } else { 0 });
        if known.as_ref().is_none_or(|(last, _)| *last != policy) {
            known = Some((policy.clone(), store.prepare(&policy, at(now))));
        }
        let (_, prepared) = known.as_ref().unwrap();
        if flood.holds {
            let (id, ttl) = (format!("request {request:08}"), Some(Duration::from_secs(86_400)));
            let hold = Operation::Hold { id: id.as_bytes(), cost: 1, ttl };
            let _ = store.apply_numbered(&key.to_le_bytes(), prepared, at(now), hold).unwrap();
        } else {
            take(&store, &key.to_le_bytes(), prepared, now);
        }
        now += flood.pace;
        keys = keys.max(key + 1);
        if store.usage().table_full > 50_000 {
            break;
        }
    }
    if flood.charged > 0 {
        let prepared = store.prepare(&(flood.policy)(0), at(now));
        for key in 0..keys {
            let (key, operation) = (&key.to_le_bytes(), Operation::Charge(flood.charged));
            let charged = store.apply_numbered(key, &prepared, at(now), operation);
            assert!(charged.unwrap().allowed());
        }
    }
    store.usage()
}

#[test]
fn store_flood_resident_memory_stays_within_bound() {
    let bound = usize::try_from(size("SLUICEGATE_RESIDENT_BYTES", 32 << 20)).unwrap();
    if let Ok(name) = env::var(FLOOD) {
        let of = FLOODS.into_iter().find(|flood| flood.name == name).unwrap();
        let [before, _] = resident();
        let usage = flood(of, bound);
        let [_, most] = resident();
        let (took, keys) = ((most - before) * 1024, usage.keys.max(1));
        println!(
            "\nfigure: {name}: {keys} keys of {} B by its own count and {} B resident, {} % of the bound",
            usage.bytes / keys,
            took / keys,
            took * 100 / bound,
        );
        assert!(took <= bound / 10 * 11, "{usage:?} took {took}");
        return;
    }
    let start = |Flood { name, .. }: Flood| {
        let test = "resident::store_flood_resident_memory_stays_within_bound";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(FLOOD, name);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (name, child)
    };
    for floods in FLOODS.chunks(2) {
        let started: Vec<_> = floods.iter().copied().map(start).collect();
        for (name, child) in started {
            let output = child.wait_with_output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            let figure = printed.lines().find(|line| line.starts_with("figure"));
            println!("{}", figure.unwrap_or_default());
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {printed}{complained}");
        }
    }
}
