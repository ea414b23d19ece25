//! Concurrent processes, and scripts that are flushed while they run (RELIABILITY 13, 14).

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use sluicegate_core::{Entry, PreparedPolicy, Source, Store, Timestamp};
use sluicegate_redis::RedisStore;

use sluicegate_testing::{Engine, Server, now, size};

use crate::servers::{patient, store_of};

const POLICY: &str = "gcra:1000/1s:burst=100";

/// Longest wait between two requests of a process that counts as served.
const HEALTHY: Duration = Duration::from_millis(20);

/// The body of a process of the test; not a test by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker() {
    let Ok(url) = std::env::var("SLUICEGATE_WORKER") else { return };
    let span = Duration::from_millis(std::env::var("SLUICEGATE_SPAN").unwrap().parse().unwrap());
    let chunk = std::env::var("SLUICEGATE_CHUNK").unwrap().parse().unwrap();
    let store = RedisStore::connect_with(&url, patient()).await.unwrap();
    let policy = POLICY.parse::<PreparedPolicy>().unwrap().lease(chunk).unwrap();
    let start = now();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (store, policy) = (store.clone(), policy.clone());
            tokio::spawn(async move {
                let (mut admitted, mut held_up, mut last) = (0_u64, Duration::ZERO, Duration::ZERO);
                while last < span {
                    admitted += u64::from(store.take(b"k", &policy, 1).await.unwrap().allowed());
                    crate::servers::pass(Duration::from_micros(500)).await;
                    let elapsed = start.elapsed();
                    held_up += (elapsed - last).saturating_sub(HEALTHY);
                    last = elapsed;
                }
                (admitted, held_up)
            })
        })
        .collect();
    let (mut admitted, mut held_up) = (0, Duration::ZERO);
    for task in tasks {
        let (its, span) = task.await.unwrap();
        admitted += its;
        held_up = held_up.max(span);
    }
    store.close().await;
    println!("admitted: {admitted} {}", held_up.as_millis());
}

/// Runs `count` processes. Returns what they admitted together, and the most milliseconds for which the machine held
/// one of them up.
fn processes(count: usize, url: &str, span: Duration, chunk: u32) -> (u64, u64) {
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["load::worker", "--exact", "--nocapture"]);
        command.env("SLUICEGATE_WORKER", url).env("SLUICEGATE_CHUNK", chunk.to_string());
        command.env("SLUICEGATE_SPAN", span.as_millis().to_string());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..count).map(|_| start()).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let admitted = outputs.map(|output| {
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|it| it.split_once("admitted: "));
        let (admitted, held_up) =
            line.unwrap_or_else(|| panic!("{text}")).1.split_once(' ').unwrap();
        (admitted.parse::<u64>().unwrap(), held_up.trim().parse::<u64>().unwrap())
    });
    admitted.fold((0, 0), |all, one| (all.0 + one.0, all.1.max(one.1)))
}

fn micros(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = server.query("TIME");
    seconds * 1_000_000 + micros
}

/// RELIABILITY 13: by the server's own clock, and by its stored state, every admitted unit was charged, exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_four_processes_on_one_key_are_exact() {
    for engine in [Engine::Redis70, Engine::Valkey91] {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        let policy: PreparedPolicy = POLICY.parse().unwrap();
        let span = Duration::from_millis(size("SLUICEGATE_PROCESSES_MS", 1500));
        // Used up, so that from now on each unit is a millisecond.
        let before = micros(&server);
        assert!(store.take(b"k", &policy, 100).await.unwrap().allowed());
        let after = micros(&server);
        let admitted = 100 + processes(4, &server.url(), span, 0).0;
        let end = micros(&server);
        let mut connection = server.connect();
        let bytes: Vec<u8> = redis::cmd("GET").arg("k").query(&mut connection).unwrap_or_default();
        let bound = 100 + (end - before) / 1000;
        println!(
            "figure: {engine:?}, 4 processes on one key for {} ms: {admitted} admitted (bound {bound})",
            (end - before) / 1000
        );
        assert!(admitted <= bound);
        // The theoretical arrival time is the begin and a millisecond for each admitted request, unless the key was
        // idle in between.
        if let Ok(entry) = Entry::decode(&bytes) {
            let at = Timestamp::from_micros(before).unwrap();
            let tat = before + u64::try_from(entry.debt(at).unwrap()).unwrap();
            assert!(
                tat >= before + admitted * 1000,
                "{admitted} admitted, {} charged",
                tat - before
            );
            let idle = tat - (after + admitted * 1000).min(tat);
            println!("figure: charged to the microsecond; idle for {} ms of it", idle / 1000);
        }
    }
}

/// RELIABILITY 14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_under_load_causes_no_error() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let span = Duration::from_millis(size("SLUICEGATE_FLUSHES_MS", 1500));
    let (before, start) = (micros(&server), now());
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let policy: PreparedPolicy = POLICY.parse().unwrap();
                let (mut admitted, mut other) = (0_u64, 0_u64);
                while start.elapsed() < span {
                    let answer = store.take(b"k", &policy, 1).await.unwrap();
                    admitted += u64::from(answer.allowed());
                    other += u64::from(answer.source == Source::Fallback);
                    tokio::task::yield_now().await;
                }
                (admitted, other)
            })
        })
        .collect();
    let mut flushes = 0;
    while start.elapsed() < span {
        server.query::<()>("SCRIPT FLUSH");
        flushes += 1;
        crate::servers::pass(Duration::from_millis(50)).await;
    }
    let (mut admitted, mut other) = (0, 0);
    for task in tasks {
        let (its, others) = task.await.unwrap();
        admitted += its;
        other += others;
    }
    let bound = 100 + (micros(&server) - before) / 1000;
    let counters = store.counters();
    println!(
        "figure: {flushes} flushes in {} ms: {} decisions, {other} errors, {admitted} admitted (bound \
         {bound}), {} scripts sent again",
        span.as_millis(),
        counters.store + counters.cache,
        counters.scripts_sent
    );
    assert!(other == 0 && admitted <= bound && counters.scripts_sent > 0);
}

/// RELIABILITY 42, with real processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_several_processes_stay_in_bounds_and_use_all_units() {
    let server = Server::start(Engine::Redis70);
    let count = usize::try_from(size("SLUICEGATE_LEASE_PROCESSES", 3)).unwrap();
    let span = Duration::from_millis(size("SLUICEGATE_LEASE_MS", 2000));
    let before = micros(&server);
    let (admitted, held_up) = processes(count, &server.url(), span, 20);
    let elapsed = micros(&server) - before;
    let (can, bound) = (100 + elapsed / 1000, 100 + elapsed / 1000 + 20 * count as u64);
    // They do not send requests all of that time: they start one after the other, and a busy machine holds them up.
    let least = 100 + u64::try_from(span.as_millis()).unwrap().saturating_sub(held_up);
    let part = admitted as f64 / least as f64;
    println!(
        "figure: leases of {count} processes: {admitted} admitted of {can} (bound {bound}); of what could \
         be while all request, {:.1} %; held up for {held_up} ms",
        part * 100.0
    );
    assert!(admitted <= bound && part >= 0.95, "{admitted} of {least}..{bound}");
}
