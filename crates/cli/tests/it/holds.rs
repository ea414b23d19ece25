//! `simulate` with holds: traces, and access logs with durations.

use sluicegate_testing::{Engine, Server};

use crate::run::{Ended, output, run};

const HEADER: &str =
    "t_us,key,cost,allowed,limit,remaining,retry_after_us,reset_after_us,delay_us\n";

/// Two jobs, one that is repeated, one that never fits, and one that expires.
const TRACE: &str = "t_us,key,cost,op,id,ttl_us\n\
                     0,k,2,hold,a,\n\
                     1000000,k,2,hold,b,\n\
                     1000000,k,1,hold,a,\n\
                     1000000,k,1,hold,c,5000000\n\
                     2000000,k,4,hold,d,\n\
                     2000000,k,1,peek,,\n\
                     3000000,k,,settle,a,\n\
                     3000000,k,,settle,a,\n\
                     4000000,k,,renew,c,10000000\n\
                     13999999,k,2,hold,e,1000\n\
                     14000000,k,0,settle,e,\n\
                     15000000,k,0,reset,,\n";

fn csv(policy: &[&str], trace: &str) -> Ended {
    run(&[&["simulate", "--format", "csv", "-"], policy].concat(), trace)
}

/// By hand, from the definition of a hold.
#[test]
fn simulate_trace_of_holds_prints_their_decisions() {
    let rows = "0,k,2,1,3,1,0,30000000,0\n\
                1000000,k,2,0,3,1,29000000,29000000,0\n\
                1000000,k,1,1,3,1,0,29000000,0\n\
                1000000,k,1,1,3,0,0,29000000,0\n\
                2000000,k,4,0,3,0,-1,28000000,0\n\
                2000000,k,1,0,3,0,4000000,28000000,0\n\
                3000000,k,,1,3,2,0,3000000,0\n\
                3000000,k,,0,3,2,-1,3000000,0\n\
                4000000,k,,1,3,2,0,10000000,0\n\
                13999999,k,2,1,3,0,0,1000,0\n\
                14000000,k,0,1,3,3,0,0,0\n\
                15000000,k,0,1,3,3,0,0,0\n";
    let ended = csv(&["--policy", "concurrency:3/30s"], TRACE);
    assert_eq!(ended, Ended { code: Some(0), out: format!("{HEADER}{rows}"), err: String::new() });
}

/// 4000 tokens are held and 2310 used; then a stream dies, and its hold is charged when it expires.
#[test]
fn simulate_hold_under_a_rate_charges_what_was_used() {
    let trace = "t_us,key,cost,op,id,ttl_us\n\
                 0,k,4000,hold,a,60000000\n\
                 0,k,2310,settle,a,\n\
                 0,k,4000,hold,b,1000000\n\
                 1000000,k,1,peek,,\n\
                 1000000,k,1,settle,b,\n\
                 1000000,k,3690,take,,\n\
                 1000000,k,1,take,,\n";
    // The log has 2310 at 0 s, and 4000 from 1 s on, when `b` expires.
    let rows = "0,k,4000,1,10000,6000,0,120000000,0\n\
                0,k,2310,1,10000,7690,0,60000000,0\n\
                0,k,4000,1,10000,3690,0,61000000,0\n\
                1000000,k,1,1,10000,3690,0,60000000,0\n\
                1000000,k,1,0,10000,3690,-1,60000000,0\n\
                1000000,k,3690,1,10000,0,0,60000000,0\n\
                1000000,k,1,0,10000,0,59000000,60000000,0\n";
    let ended = csv(&["--policy", "sliding-log:10000/1m"], trace);
    assert_eq!(ended, Ended { code: Some(0), out: format!("{HEADER}{rows}"), err: String::new() });
}

#[test]
fn simulate_invalid_hold_is_an_error() {
    let long = "i".repeat(65);
    for (row, actual) in [
        ("0,k,1,hold,,", "invalid id of 0 bytes: expected 1 to 64 bytes"),
        (&*format!("0,k,,settle,{long},"), "invalid id of 65 bytes: expected 1 to 64 bytes"),
        ("0,k,1,hold,a,999", "invalid ttl `999`: expected 1000 to 30000000 microseconds"),
        ("0,k,,renew,a,30000001", "invalid ttl `30000001`: expected 1000 to 30000000 microseconds"),
        (
            "0,k,1,hold,a,30s",
            "invalid ttl_us `30s`: expected a whole number of microseconds, or nothing",
        ),
        ("0,k,,hold,a,", "invalid cost ``: expected a whole number from 0 to 4294967295"),
        ("0,k,x,settle,a,", "invalid cost `x`: expected a whole number from 0 to 4294967295"),
        (
            "0,k,1,wait,a,",
            "unknown op `wait`: expected take, peek, charge, refund, reset, hold, settle or renew",
        ),
        (
            "0,k,1,take,,",
            "invalid op `take` under a policy with `concurrency`: expected hold, settle, renew, peek or reset",
        ),
    ] {
        let ended = csv(
            &["--policy", "concurrency:3/30s"],
            &format!("t_us,key,cost,op,id,ttl_us\n{row}\n"),
        );
        assert_eq!((ended.code, ended.err), (Some(2), format!("error: line 2: {actual}\n")));
        assert_eq!(ended.out, HEADER);
    }
    let ended = csv(&["--policy", "gcra:1/1s"], "t_us,key,cost,op,id\n0,k,1,hold,a\n");
    assert_eq!(
        ended.err,
        "error: line 2: missing ttl: expected 1000 to 86400000000 microseconds; only a policy with `concurrency` has a default\n"
    );
}

#[test]
fn simulate_table_of_holds_counts_holds_as_requests() {
    let table = output(&["simulate", "--policy", "concurrency:3/30s", "-"], TRACE);
    assert_eq!(
        table,
        "policy             offered  allowed          denied
concurrency:3/30s        6        4  66.7 %       2  33.3 %

most sent within   1s  2s  3s  10s  30s  1m
concurrency:3/30s   2   3   3    3    4   4

busiest keys  offered  denied
k                   6       2  33.3 %

other events: 6 (only take and hold are requests)
"
    );
    let drawn = output(&["simulate", "--policy", "concurrency:3/30s", "-", "--plot"], TRACE);
    for text in ["units in flight", "4 of 6 requests allowed, at most 3 units in flight"] {
        assert!(drawn.contains(text), "{drawn}");
    }
}

#[test]
fn simulate_holds_in_redis_as_in_memory() {
    let redis = Server::start(Engine::Redis70);
    for policy in
        ["concurrency:3/30s", "concurrency:3/30s,sliding-log:9/1m", "gcra:4/10s,concurrency:4/30s"]
    {
        let simulate = ["simulate", "--format", "csv", "--policy", policy, "-"];
        let by_memory = output(&simulate, TRACE);
        let by_redis = output(&[&simulate[..], &["--store", &redis.url()]].concat(), TRACE);
        assert_eq!(by_memory, by_redis, "{policy}");
    }
    let simulate = ["simulate", "--format", "csv", "--policy", "concurrency:2/3s", "-"];
    let by_redis = output(&[&simulate[..], &["--store", &redis.url()]].concat(), LOG);
    assert_eq!(output(&simulate, LOG), by_redis);
}

/// Two requests of 2 s and 4 s, and a third that begins while both are in flight.
const LOG: &str = r#"{"time":"2023-11-14T22:13:23Z","remote_addr":"10.0.0.1","request_time":"2.000"}
{"time":"2023-11-14T22:13:23.5Z","remote_addr":"10.0.0.1","request_time":"0.500"}
{"time":"2023-11-14T22:13:26Z","remote_addr":"10.0.0.1","request_time":"4.000"}
{"time":"2023-11-14T22:13:27Z","remote_addr":"10.0.0.1","request_time":"1.000"}
"#;

#[test]
fn simulate_log_with_durations_holds_each_request_until_it_ends() {
    let rows = "1700000001000000,10.0.0.1,1,1,2,1,0,3000000,0\n\
                1700000002000000,10.0.0.1,1,1,2,0,0,3000000,0\n\
                1700000003000000,10.0.0.1,,1,2,1,0,2000000,0\n\
                1700000003000000,10.0.0.1,1,1,2,0,0,3000000,0\n\
                1700000003500000,10.0.0.1,,1,2,1,0,1500000,0\n\
                1700000006000000,10.0.0.1,,0,2,2,-1,0,0\n\
                1700000006000000,10.0.0.1,1,1,2,1,0,3000000,0\n\
                1700000007000000,10.0.0.1,,1,2,2,0,0,0\n";
    let ended = csv(&["--policy", "concurrency:2/3s"], LOG);
    assert_eq!(ended, Ended { code: Some(0), out: format!("{HEADER}{rows}"), err: String::new() });
    let table = output(&["simulate", "--policy", "concurrency:1/3s", "-"], LOG);
    assert_eq!(
        table,
        "policy            offered  allowed          denied          most in flight
concurrency:1/3s        4        3  75.0 %       1  25.0 %               1

most sent within  1s  2s  3s  10s  1m
concurrency:1/3s   1   1   2    3   3

busiest keys  offered  denied
10.0.0.1            4       1  25.0 %
"
    );
    // The second lasts 4 s, and a hold 3 s.
    let two = output(&["simulate", "--policy", "concurrency:2/3s", "-", "--plot"], LOG);
    let note = "1 request lasted longer than its hold, which expired\n";
    assert!(two.contains(&format!("\nconcurrency:2/3s: {note}")), "{two}");
    assert!(two.contains(&format!("at most 2 units in flight\n{note}")), "{two}");
    // Beside it, a rate decides requests when they begin.
    let both = ["simulate", "-", "--policy", "concurrency:1/3s", "--policy", "sliding-log:2/10s"];
    let both = output(&[&both[..], &["--plot"]].concat(), LOG);
    assert!(
        both.contains(
            "\nsliding-log:2/10s        4        2  50.0 %       2  50.0 %               2\n"
        ),
        "{both}"
    );
    assert!(both.contains(" units in one period, or in flight "), "{both}");
}

#[test]
fn simulate_log_without_durations_cannot_count_requests_in_flight() {
    let combined =
        "10.0.0.1 - - [14/Nov/2023:22:14:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\"\n";
    let json = "{\"ts\":1700000040.25,\"ip\":\"x\"}\n";
    let needs = "missing duration of the requests, which `concurrency:9/1s` needs: expected a log with \
                 `$request_time` (nginx), `%D` (Apache) or `duration` (Envoy, Caddy), but ";
    for (more, input, actual) in [
        (
            "- --policy gcra:1/1s --policy concurrency:9/1s",
            combined,
            format!("{needs}the fields are ip, user, time, method, path, url, agent, referer, "),
        ),
        (
            "- --policy gcra:1/1s --change 1s=concurrency:9/1s",
            json,
            format!("{needs}no line has one; use"),
        ),
        (
            "- --policy concurrency:9/1s --duration-field took_ms",
            combined,
            "invalid --duration-field: unknown field `took_ms`: expected one of ip, user, time, method, path, url, agent, referer, "
                .to_owned(),
        ),
        (
            "- --policy concurrency:9/1s --duration-field took_ms",
            json,
            "invalid --duration-field: no line has the field `took_ms`".to_owned(),
        ),
        (
            "- --policy gcra:1/1s --duration-field took_ms",
            "t_us,key,cost\n0,a,1\n",
            "invalid --duration-field: expected an access log; ".to_owned(),
        ),
        (
            "--traffic even:5/s --policy concurrency:9/1s",
            "",
            "invalid --policy `concurrency:9/1s`: synthetic traffic has no durations".to_owned(),
        ),
    ] {
        let words: Vec<&str> = ["simulate"].into_iter().chain(more.split(' ')).collect();
        let ended = run(&words, input);
        assert_eq!(ended.code, Some(2), "{more}");
        assert!(ended.err.starts_with(&format!("error: {actual}")), "{more}: {}", ended.err);
    }
}

#[test]
fn simulate_holds_by_server_as_in_memory() {
    let server = crate::server::Server::start(&["--test-clock"]);
    let log = LOG.replace("10.0.0.1", "log");
    for (policy, input) in [("concurrency:3/30s", TRACE), ("concurrency:2/3s", &log)] {
        let simulate = ["simulate", "--format", "csv", "--policy", policy, "-"];
        let by_server = output(&[&simulate[..], &["--store", &server.address]].concat(), input);
        assert_eq!(output(&simulate, input), by_server, "{policy}");
    }
}

/// Without `concurrency`, the start of a request is a take, and its end takes nothing.
#[test]
fn simulate_log_with_durations_under_a_rate_by_server_as_in_memory() {
    let server = crate::server::Server::start(&["--test-clock"]);
    for policy in ["gcra:1/2s", "sliding-log:2/3s,fixed-window:9/1m"] {
        let simulate = ["simulate", "--format", "csv", "--policy", policy, "-"];
        let simulate = [&simulate[..], &["--duration-field", "request_time"]].concat();
        let by_server = run(&[&simulate[..], &["--store", &server.address]].concat(), LOG);
        assert_eq!(run(&simulate, LOG), by_server, "{policy}");
    }
}
