//! Every benchmark with tiny sizes: it runs to its end and prints its rows. Times are not checked.
#![cfg(target_os = "linux")]

use std::process::Command;

fn quick(what: &str) -> String {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_sluicegate-bench"));
    let output = bench.args([what, "--quick"]).output().expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

fn assert_rows(printed: &str, rows: &[&str]) {
    for row in rows {
        assert!(printed.contains(row), "`{row}` is not in:\n{printed}");
    }
}

#[test]
fn memory_prints_all_rows() {
    let rows = [
        "hot key, allowed, 1 thread, quanta",
        "hot key, denied, 2 threads, SystemClock",
        "keys at random, one by one",
        "keys at random, 32 at a time",
        "bytes per key, 1 policy",
        "bytes per key, 10000 policies",
        "growing, 99.999th percentile",
        "growing, worst decision",
        "hashbrown-mutex",
        "throttlecrab-mutex",
    ];
    assert_rows(&quick("memory"), &rows);
}

#[test]
fn resp_without_peers_prints_own_rows() {
    let rows = [
        "pipeline 1 ",
        "pipeline 16 ",
        "pipeline 128 ",
        "baseline server",
        "SG.TAKE key gcra:30/60s:burst=16",
        "requests/s, pipeline 128, sluicegate",
        "TCP_NODELAY",
    ];
    assert_rows(&quick("resp"), &rows);
}

#[test]
fn http_without_peers_prints_own_rows() {
    let rows = ["requests/s", "hyper, only echoes", "sluicegate", "/v1/gate, 100 rules, "];
    assert_rows(&quick("http"), &rows);
}

#[test]
fn dashboard_prints_row() {
    assert_rows(&quick("dashboard"), &["64 viewers", "no viewer", "% of a core"]);
}

/// `cargo xtask test` installs the servers.
#[test]
fn redis_prints_all_rows() {
    let rows = [
        "Redis 7.0: gcra, allowed",
        "Valkey 9.1: gcra, denied",
        "throttled-py",
        "sliding log of 1000, full",
        "bytes per key, gcra",
        "store, 64 tasks on one connection",
        "a denied key, cached",
        "a hot key, leases of 100",
        "a policy of three limits",
    ];
    assert_rows(&quick("redis"), &rows);
}

#[test]
fn fleet_prints_all_rows() {
    let rows = [
        "15 000/s, moving each second  leases of 200",
        "8 000/s, even",
        "asking each time",
        "an eighth each",
        "requests/decision",
        "a decision from a lease, Rust",
    ];
    assert_rows(&quick("fleet"), &rows);
}

#[test]
fn tower_prints_all_rows() {
    let rows = [
        "allowed, one client",
        "allowed, many clients, headers",
        "denied, one client",
        "tower_governor 0.8",
    ];
    assert_rows(&quick("tower"), &rows);
}

#[test]
fn grpc_prints_all_rows() {
    let rows = [
        "only echoes",
        "ShouldRateLimit, our rules",
        "ShouldRateLimit, envoyproxy's rules",
        "calls/s",
    ];
    assert_rows(&quick("grpc"), &rows);
}

#[test]
fn unknown_benchmark_prints_help() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_sluicegate-bench"));
    let output = bench.arg("help").output().unwrap();
    assert_rows(&String::from_utf8_lossy(&output.stdout), &["memory", "resp", "--quick"]);
}

#[test]
fn replay_prints_all_rows_or_skips_without_program() {
    let printed = quick("replay");
    if !printed.contains("skipped, because the program") {
        let rows = ["five policies at once", "one after the other", "peak memory", "addresses"];
        assert_rows(&printed, &rows);
    }
}
