//! `redis`, and `simulate` over a Redis.

use sluicegate_testing::{Engine, Server};

use crate::run::{output, run, scenarios};

#[test]
fn functions_are_installed_told_of_and_taken_away() {
    let redis = Server::start(Engine::Redis70);
    let version = env!("CARGO_PKG_VERSION");
    let ended = run(&["redis", "status", &redis.url()], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("Redis 7.0") && ended.out.contains("no functions"), "{}", ended.out);
    assert!(ended.out.ends_with("nothing is wrong\n"), "{}", ended.out);

    let ended = run(&["redis", "install", &redis.url()], "");
    assert!(ended.out.contains(&format!("functions of version {version} are installed")));
    assert!(
        run(&["redis", "status", &redis.url()], "")
            .out
            .contains(&format!("functions of version {version}"))
    );
    assert_eq!(run(&["redis", "uninstall", &redis.url()], "").code, Some(0));
    let ended = run(&["redis", "uninstall", &redis.url()], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("Library not found"), "{}", ended.err);

    let ended = run(&["redis", "status", "redis://127.0.0.1:1"], "");
    assert_eq!((ended.code, &*ended.out), (Some(2), ""));
    assert!(ended.err.contains("127.0.0.1:1"), "{}", ended.err);
}

#[test]
fn every_scenario_is_decided_as_in_memory() {
    let redis = Server::start(Engine::Redis70);
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
            let there = output(&[&simulate[..], &["--store", &redis.url()]].concat(), "");
            assert_eq!(here, there, "{scenario} {policy}");
        }
    }
}
