//! `redis`, and `simulate` over a Redis.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use crate::run::{output, run, scenarios};

/// A Redis on a port of its own.
struct Redis {
    child: Child,
    url: String,
}

impl Redis {
    fn start() -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "--",
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ]);
        command.args(["--port", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "redis-server has ended");
            std::thread::yield_now();
        }
        Self { child, url: format!("redis://127.0.0.1:{port}") }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn functions_are_installed_told_of_and_taken_away() {
    let redis = Redis::start();
    let version = env!("CARGO_PKG_VERSION");
    let ended = run(&["redis", "status", &redis.url], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("Redis 7.0") && ended.out.contains("no functions"), "{}", ended.out);
    assert!(ended.out.ends_with("nothing is wrong\n"), "{}", ended.out);

    let ended = run(&["redis", "install", &redis.url], "");
    assert!(ended.out.contains(&format!("functions of version {version} are installed")));
    assert!(
        run(&["redis", "status", &redis.url], "")
            .out
            .contains(&format!("functions of version {version}"))
    );
    assert_eq!(run(&["redis", "uninstall", &redis.url], "").code, Some(0));
    let ended = run(&["redis", "uninstall", &redis.url], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("Library not found"), "{}", ended.err);

    let ended = run(&["redis", "status", "redis://127.0.0.1:1"], "");
    assert_eq!((ended.code, &*ended.out), (Some(2), ""));
    assert!(ended.err.contains("127.0.0.1:1"), "{}", ended.err);
}

#[test]
fn every_scenario_is_decided_as_in_memory() {
    let redis = Redis::start();
    for scenario in ["boundary-burst", "late-rush", "across-minutes"] {
        let path = scenarios().join(format!("{scenario}.csv"));
        let path = path.to_str().unwrap();
        for policy in [
            "gcra:30/1m:burst=16",
            "fixed-window:100/60s:align=clock",
            "sliding-log:30/1m,fixed-window:9/day",
        ] {
            let simulate = ["simulate", "--format", "csv", "--policy", policy, path];
            let here = output(&simulate, "");
            let there = output(&[&simulate[..], &["--store", &redis.url]].concat(), "");
            assert_eq!(here, there, "{scenario} {policy}");
        }
    }
}
