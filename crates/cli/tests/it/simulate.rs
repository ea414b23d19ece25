//! `simulate`: input and output.

use std::{
    io::{Read, Write},
    process::Stdio,
};

use crate::run::{Ended, output, run, scenarios, sluicegate};

const HEADER: &str =
    "t_us,key,cost,allowed,limit,remaining,retry_after_us,reset_after_us,delay_us\n";

fn csv(policy: &[&str], trace: &str) -> Ended {
    run(&[&["simulate", "--format", "csv", "-"], policy].concat(), trace)
}

#[test]
fn simulate_rows_contain_the_decisions() {
    let trace = "t_us,key,cost,policy,op\n\
                 0,\"a,\"\"b\"\"\",2,,\n\
                 0,\"a,\"\"b\"\"\",1,,peek\n\
                 1000,\"a,\"\"b\"\"\",9,,take\n\
                 1000,\"a,\"\"b\"\"\",3,,charge\n\
                 1000,\"a,\"\"b\"\"\",1,,refund\n\
                 1000,\"a,\"\"b\"\"\",0,,reset\n\
                 1000,,1,leaky-queue:1/1s:capacity=3,\n\
                 1000,,1,leaky-queue:1/1s:capacity=3,\n";
    let rows = "0,\"a,\"\"b\"\"\",2,1,2,0,0,2000000,0\n\
                0,\"a,\"\"b\"\"\",1,0,2,0,1000000,2000000,0\n\
                1000,\"a,\"\"b\"\"\",9,0,2,0,-1,1999000,0\n\
                1000,\"a,\"\"b\"\"\",3,1,2,0,0,4999000,0\n\
                1000,\"a,\"\"b\"\"\",1,1,2,0,0,3999000,0\n\
                1000,\"a,\"\"b\"\"\",0,1,2,2,0,0,0\n\
                1000,,1,1,3,2,0,1000000,0\n\
                1000,,1,1,3,1,0,2000000,1000000\n";
    let ended = csv(&["--policy", "gcra:1/1s:burst=2"], trace);
    assert_eq!(ended.out, format!("{HEADER}{rows}"));
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
}

#[test]
fn simulate_row_with_its_own_policy_is_decided_by_it() {
    let ended = csv(&[], "t_us,key,cost,policy\n0,a,1,gcra:1/1s\n0,b,1,\n");
    assert_eq!(ended.code, Some(2));
    assert_eq!(ended.out, format!("{HEADER}0,a,1,1,1,0,0,1000000,0\n"));
    assert_eq!(ended.err, "error: line 3: missing policy: use --policy, or a `policy` column\n");
}

#[test]
fn simulate_invalid_line_is_an_error_with_its_number() {
    for (lines, actual) in [
        ("7,a,x\n", "line 2: invalid cost `x`: expected a whole number from 0 to 4294967295"),
        (
            "7,a,1\n6,a,1\n",
            "line 3: invalid t_us `6`: expected at least `7`, the time of the event before",
        ),
        ("7,a\n", "line 2: expected 3 fields as in the header, not 2"),
    ] {
        let ended = csv(&["--policy", "gcra:1/1s"], &format!("t_us,key,cost\n{lines}"));
        assert_eq!((ended.code, ended.err), (Some(2), format!("error: {actual}\n")));
        assert!(ended.out.starts_with(HEADER));
    }
    let ended = csv(&[], "t_us,key,cost,ip\n");
    let actual =
        "error: line 1: unknown column `ip`: expected t_us, key, cost, policy, op, id or ttl_us\n";
    assert_eq!((ended.code, &*ended.err), (Some(2), actual));
    let ended = run(&["simulate", "no-such-file.csv"], "");
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.err.starts_with("error: cannot open no-such-file.csv: no such file or directory"),
        "{}",
        ended.err
    );
}

#[test]
fn simulate_table_is_readable() {
    let trace = scenarios().join("queue-200ms.csv");
    let policy = "leaky-queue:5/1s:capacity=20";
    let table = output(&["simulate", "--policy", policy, trace.to_str().unwrap()], "");
    assert_eq!(
        table,
        "policy                        offered  allowed          denied          delayed  longest delay
leaky-queue:5/1s:capacity=20       30       20  66.7 %      10  33.3 %       19         3.781s

most sent within              1s  2s  3s  10s  1m
leaky-queue:5/1s:capacity=20   5  10  15   20  20

busiest keys  offered  denied
user:action        30      10  33.3 %
"
    );
}

#[test]
fn simulate_table_uses_the_period_of_the_policy_and_counts_requests() {
    let trace = "t_us,key,cost,policy,op\n0,a,1,sliding-log:1/7s,charge\n6000000,b,1,gcra:1/1s,\n";
    let table = output(&["simulate", "-"], trace);
    assert!(table.contains("\nsliding-log:1/7s        1 "), "{table}");
    assert!(table.contains("\nmost sent within  1s  2s  3s  7s  10s  1m\n"), "{table}");
    assert!(table.contains("\nother events: 1 (only take and hold are requests)\n"), "{table}");
    let empty = output(&["simulate", "-"], "t_us,key,cost\n");
    assert!(empty.contains(" offered "), "{empty}");
}

#[test]
fn simulate_closed_pipe_ends_it_without_an_error() {
    let mut child = sluicegate()
        .args(["simulate", "--policy", "gcra:1/1s", "--format", "csv", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let writer = std::thread::spawn(move || {
        let mut written = stdin.write_all(b"t_us,key,cost\n");
        // Much more than a pipe holds.
        for _ in 0..100_000 {
            written = written.and_then(|()| stdin.write_all(b"1,some-key-or-other,1\n"));
        }
        written.is_ok()
    });
    let mut first = [0; 10];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    writer.join().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

/// With one process that asks for each request, nothing differs; rows are those of the processes.
#[test]
fn simulate_lease_shows_what_the_processes_pass() {
    let traffic = ["simulate", "--policy", "gcra:100/1s:burst=40", "--traffic", "even:150/s"];
    let ended =
        run(&[&traffic[..], &["--lease", "10", "--processes", "4", "--for", "10s"]].concat(), "");
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let rows: Vec<Vec<&str>> =
        ended.out.lines().map(|it| it.split_whitespace().collect()).collect();
    let row = rows.iter().find(|it| {
        it[..]
            == ["leases", "processes", "allowed", "of", "asking", "most", "over", "bound", "asked"]
    });
    assert!(row.is_some(), "{}", ended.out);
    let leases = rows.iter().rfind(|it| it.first() == Some(&"gcra:100/1s:burst=40,")).unwrap();
    let numbers: Vec<u64> = leases.iter().filter_map(|it| it.parse().ok()).collect();
    let &[units, processes, over, bound, asked] = &numbers[..] else { panic!("{leases:?}") };
    assert_eq!((units, processes, bound), (10, 4, 40));
    assert!(over <= bound && asked > 0, "{leases:?}");
    let csv = run(&[&traffic[..], &["--lease", "10", "--format", "csv"]].concat(), "");
    assert_eq!(csv.out.lines().count(), 1 + 150 * 60, "one row for each event");
}
