//! The module on a cluster of three primaries with replicas: keys are on the node of their slot, waiting clients leave
//! with a slot that moves, and failovers admit at most the bound (RELIABILITY, C.2).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Value;
use sluicegate_testing::{Cluster, Engine, RawClient, eventually_true, now, pause, size};

use crate::{on_both, server::module};

/// Duration of the load before and after each failover.
const BETWEEN: Duration = Duration::from_millis(300);

fn start(engine: Engine) -> Cluster {
    Cluster::start(engine, &["--loadmodule", module()])
}

fn cluster_keys_belong_to_the_node_of_their_slot(engine: Engine) {
    let mut cluster = start(engine);
    let (home, slot) = cluster.node_of_key("{user7}");
    let other = (home + 1) % 3;
    let (mut here, mut elsewhere) =
        (cluster.nodes[home].raw_client(), cluster.nodes[other].raw_client());
    let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes[home].port());
    for line in [
        "CL.THROTTLE {user7} 1 1 3600",
        "SG.TAKE {user7} gcra:2/1h",
        "SG.PEEK {user7} gcra:2/1h",
        "SG.WAIT {user7} gcra:2/1h TIMEOUT 0",
        "SG.RESET {user7}",
        "SG.INFO {user7}",
        "SG.MTAKE 2 {user7} gcra:2/1h 1 {user7}b gcra:2/1h 1",
    ] {
        assert_eq!(elsewhere.error(line), moved, "{line}");
        here.call(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    // A batch of takes has one slot.
    let crossed = here.error("SG.MTAKE 2 {user7} gcra:2/1h 1 {user8} gcra:2/1h 1");
    assert!(crossed.starts_with("CROSSSLOT"), "{crossed}");
    let crossed = here.error("SG.MTAKE 2 {user7} gcra:2/1h 1 {user8} nonsense 1");
    assert!(crossed.starts_with("CROSSSLOT"), "{crossed}");

    move_slot_with_waiting_clients(&cluster);
    fail_over_under_load(&mut cluster);
}

/// Waiting clients get an error that names the new node, and nothing is decided on state that has moved.
fn move_slot_with_waiting_clients(cluster: &Cluster) {
    let (from, slot) = cluster.node_of_key("{wait}");
    let to = (from + 1) % 3;
    let (node, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let policy = "gcra:1/10m";
    assert_eq!(node.raw_client().integers(&format!("SG.TAKE {{wait}} {policy}"))[0], 1);
    let waiters: Vec<_> = (0..3)
        .map(|place| {
            let mut peer = node.raw_client();
            let line = format!("SG.WAIT {{wait}} {policy} TIMEOUT {}", 10_000_000_000_u64);
            let thread = std::thread::spawn(move || peer.call(&line));
            node.raw_client().eventually_true(|it| {
                it.info_value("sluicegate", "sluicegate_waiting") == place + 1
            });
            thread
        })
        .collect();
    let ids = [from, to].map(|it| cluster.nodes[it].query::<String>("CLUSTER MYID"));
    target.query::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    node.query::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    node.query::<()>(&format!("MIGRATE 127.0.0.1 {} {{wait}} 0 5000", target.port()));
    for waiter in waiters {
        let actual = waiter.join().unwrap().unwrap_err();
        assert!(actual.starts_with("TRYAGAIN"), "{actual}");
    }
    // A retry is redirected, and finds the usage.
    let redirect = node.raw_client().error(&format!("SG.TAKE {{wait}} {policy}"));
    assert_eq!(redirect, format!("ASK {slot} 127.0.0.1:{}", target.port()));
    for node in &cluster.nodes[..3] {
        node.query::<()>(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    }
    assert_eq!(target.raw_client().integers(&format!("SG.TAKE {{wait}} {policy}"))[0], 0);
    assert_eq!(node.query::<u64>(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), 0);
    cluster.settled();
}

/// At most `b + r*T + F*b` with `F` failovers, the last of them by a kill.
fn fail_over_under_load(cluster: &mut Cluster) {
    let key = "{hot}";
    let (home, _) = cluster.node_of_key(key);
    let stop = Arc::new(AtomicBool::new(false));
    let ports = [home, home + 3].map(|node| cluster.nodes[node].url());
    let begin = now();
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let (stop, ports) = (Arc::clone(&stop), ports.clone());
            std::thread::spawn(move || take_until(&stop, &ports))
        })
        .collect();
    let mut failovers = 0;
    let mut primary = home;
    for _ in 0..size("SLUICEGATE_FAILOVERS", 1) {
        let heir = (primary + 3) % 6;
        pause(BETWEEN);
        let mut actual = None;
        eventually_true("the replica takes over", || {
            // An attempt ends after five seconds, and is then repeated.
            if actual.is_none_or(|it: std::time::Instant| it.elapsed() > Duration::from_secs(6)) {
                let _ = cluster.nodes[heir].try_query::<()>("CLUSTER FAILOVER");
                actual = Some(now());
            }
            pause(Duration::from_millis(10));
            cluster.is_primary(heir) && !cluster.is_primary(primary)
        });
        failovers += 1;
        primary = heir;
        cluster.settled();
    }
    let heir = (primary + 3) % 6;
    pause(BETWEEN);
    cluster.nodes[primary].kill();
    failovers += 1;
    eventually_true("the replica takes over", || {
        pause(Duration::from_millis(10));
        cluster.is_primary(heir)
    });
    let mut peer = cluster.nodes[heir].raw_client();
    peer.eventually_true(|it| it.call(&format!("SG.PEEK {key} gcra:200/1s:burst=50")).is_ok());
    pause(BETWEEN);
    stop.store(true, Ordering::Relaxed);
    let admitted: u64 = takers.into_iter().map(|it| it.join().unwrap()).sum();
    let seconds = begin.elapsed().as_secs_f64();
    let bound = 50.0 + 200.0 * seconds + 50.0 * f64::from(failovers);
    println!(
        "figure: {failovers} failovers in {seconds:.1} s: {admitted} admitted of a key (bound {bound:.0})"
    );
    assert!(admitted > 50, "{admitted}");
    assert!(u32::try_from(admitted).is_ok_and(|it| f64::from(it) <= bound), "{admitted}");
}

/// Takes at the server of two that decides, until stopped. Returns the number of allowed takes.
fn take_until(stop: &AtomicBool, urls: &[String]) -> u64 {
    let mut admitted = 0;
    let mut peers: [Option<RawClient>; 2] = [None, None];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        let connect = || redis::Client::open(&*urls[at]).and_then(|it| it.get_connection());
        let peer = match &mut peers[at] {
            Some(peer) => peer,
            none => match connect() {
                Ok(connection) => none.insert(RawClient(connection)),
                Err(_) => {
                    at = 1 - at;
                    continue;
                }
            },
        };
        match peer.call("SG.TAKE {hot} gcra:200/1s:burst=50") {
            Ok(Value::Array(actual)) => admitted += u64::from(actual[0] == Value::Int(1)),
            other => {
                let moved = matches!(&other, Err(error) if error.starts_with("MOVED") || error.starts_with("READONLY"));
                if !moved {
                    peers[at] = None;
                }
                at = 1 - at;
            }
        }
        pause(Duration::from_millis(1));
    }
    admitted
}

on_both! { cluster_keys_belong_to_the_node_of_their_slot }
