//! The log while a store fails: one line for each outage, and one for its end.

use sluicegate_core::{OnError, PreparedPolicy, Source, Store};
use std::{
    fmt::Write as _,
    sync::{Mutex, Once},
    time::Duration,
};

use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, free_port};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::servers::{eventually_true, pass};

/// Lines of the level INFO and above, of all tests.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("sluicegate")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                write!(self.0, " {field}={value:?}").unwrap();
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        LINES.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
}

/// Lines about the node at this port that contain `text`.
fn lines(port: u16, text: &str) -> Vec<String> {
    let node = format!("node=127.0.0.1:{port} ");
    let is_it = |line: &&String| format!("{line} ").contains(&node) && line.contains(text);
    LINES.lock().unwrap().iter().filter(is_it).cloned().collect()
}

/// Several workers and connections, each kind of outage twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_has_one_line_for_each_outage_and_one_for_its_end() {
    listen();
    let mut server = Server::start(Engine::Redis70);
    let port = server.port();
    let mut options = Options::default();
    options.on_error = OnError::Allow;
    // A server that has just started may pause on a busy machine: with 15 ms, that is an outage of its own.
    options.deadline = Duration::from_millis(250);
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    let policy = "gcra:1000000/1s".parse::<PreparedPolicy>().unwrap().on_error(OnError::Allow);
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (store, policy) = (store.clone(), policy.clone());
            tokio::spawn(async move {
                loop {
                    let _ = store.take(b"k", &policy, 1).await;
                    pass(Duration::from_micros(500)).await;
                }
            })
        })
        .collect();
    let mut outages = 0;
    for _ in 0..2 {
        for outage in ["kill", "stop", "demotion", "memory", "scripts", "commands", "keys"] {
            match outage {
                "kill" => server.kill(),
                "stop" => server.signal("-STOP"),
                "memory" => server.query("CONFIG SET maxmemory 1"),
                "scripts" => server.query("ACL SETUSER default -evalsha -eval -del"),
                "commands" => server.query("ACL SETUSER default -set"),
                "keys" => server.query("ACL SETUSER default resetkeys ~limits:*"),
                _ => server.query("REPLICAOF 127.0.0.1 1"),
            }
            outages += 1;
            eventually_true("it is logged", async || lines(port, "WARN").len() >= outages).await;
            // Other events of the same outage.
            pass(Duration::from_millis(300)).await;
            match outage {
                "kill" => tokio::task::block_in_place(|| server.restart()),
                "stop" => server.signal("-CONT"),
                "memory" => server.query("CONFIG SET maxmemory 0"),
                "scripts" | "commands" => server.query("ACL SETUSER default +@all"),
                "keys" => server.query("ACL SETUSER default allkeys"),
                _ => server.query("REPLICAOF NO ONE"),
            }
            eventually_true("it is logged", async || lines(port, "answers again").len() >= outages)
                .await;
            pass(Duration::from_millis(100)).await;
            let warnings = lines(port, "WARN");
            assert_eq!(warnings.len(), outages, "{outage}: {warnings:#?}");
            assert!(warnings.last().unwrap().contains("requests are allowed without a limit"));
            let all = lines(port, "");
            assert_eq!(all.len(), 2 * outages, "{outage}: {all:#?}");
        }
    }
    load.iter().for_each(tokio::task::JoinHandle::abort);
    println!(
        "figure: {outages} outages under load: {outages} warnings, as many lines for their ends, no other"
    );
}

/// A store that is unavailable at its first request, as when a server starts before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_a_store_that_is_unavailable_at_start_has_one_line() {
    listen();
    let port = free_port();
    let store = RedisStore::new(&format!("redis://127.0.0.1:{port}/"), Options::default()).unwrap();
    assert!(store.inspect().await.is_err());
    let policy: PreparedPolicy = "gcra:10/1s".parse().unwrap();
    for _ in 0..50 {
        assert_eq!(store.take(b"k", &policy, 1).await.unwrap().source, Source::Fallback);
        pass(Duration::from_millis(5)).await;
    }
    let all = lines(port, "");
    assert_eq!(all.len(), 1, "{all:#?}");
    assert!(all[0].starts_with("WARN") && all[0].contains("requests are denied"), "{all:?}");
    let nodes: Vec<_> = (0..3).map(|_| free_port()).collect();
    let hosts: Vec<_> = nodes.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redis+cluster://{}", hosts.join(","));
    let cluster = RedisStore::new(&url, Options::default()).unwrap();
    let before = cluster_lines().len();
    for _ in 0..50 {
        assert_eq!(cluster.take(b"k", &policy, 1).await.unwrap().source, Source::Fallback);
        pass(Duration::from_millis(5)).await;
    }
    assert!(cluster.unavailable().is_some());
    assert_eq!(cluster_lines().len() - before, 1);
    assert!(nodes.iter().all(|port| lines(*port, "").is_empty()));
}

fn cluster_lines() -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| line.contains("node=cluster")).cloned().collect()
}
