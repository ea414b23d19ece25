//! Mistakes with `simulate`.

use std::fs;

use sluicegate_testing::TempDir;

use super::check;
use crate::{run::run, server::Server};

const LOG: &str =
    "10.0.0.1 - - [14/Nov/2023:22:14:00 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a\"\n";
const EMPTY_FILE: &str = "the file is empty: expected a trace or an access log\n";
const TRACE: &str = "t_us,key,cost\n0,user,1\n1,user,1\n";

#[test]
fn simulate_mistakes_are_named() {
    let json = "{\"ts\":1700000040.25,\"tenant\":\"x\"}\n";
    for (line, input, expected) in [
        ("", "", "missing FILE: expected a trace, an access log, `-` or --traffic"),
        ("/nowhere.csv", "", "cannot open /nowhere.csv: no such file or directory"),
        (
            "/tmp --policy gcra:1/1s",
            "",
            "invalid FILE `/tmp`: expected a trace or an access log, found a folder",
        ),
        (
            "trace.csv --traffic poisson:50/s --policy gcra:1/1s",
            "",
            "invalid FILE together with --traffic: expected one of them\n",
        ),
        (
            "--plot trace.csv --traffic poisson:50/s --policy gcra:1/1s",
            "",
            "invalid FILE together with --traffic: expected one of them\n",
        ),
        (
            "--traffic even:1/s --policy gcra:1/1s --lease 1",
            "",
            "invalid --lease `1`: expected a whole number from 2 to 4294967295\n",
        ),
        (
            "--traffic even:1/s --policy gcra:1/1s --lease 5 --processes 1025",
            "",
            "invalid --processes `1025`: expected a whole number from 1 to 1024\n",
        ),
        (
            "--traffic even:1/s --policy gcra:1/1s --processes 5",
            "",
            "missing --lease: --processes needs it, such as `--lease 100`\n",
        ),
        (
            "--traffic even:1/s --policy leaky-queue:1/1s --lease 5",
            "",
            "invalid policy `leaky-queue:1/1s` for a lease: `leaky-queue:1/1s` cannot have one",
        ),
        (
            "--traffic even:1/s --policy gcra:1/1s --lease 5 --store redis://127.0.0.1",
            "",
            "invalid --store: expected `memory` with --lease",
        ),
        (
            "- --policy gcra:1/1s --key ip",
            LOG,
            "invalid --key `ip`: expected a field in braces, such as `{ip}`",
        ),
        (
            "- --policy gcra:1/1s --key {ip",
            LOG,
            "invalid --key `{ip`: expected field names in braces, such as `{ip}:{path}`",
        ),
        (
            "- --policy gcra:1/1s --key {host}",
            LOG,
            "invalid --key: unknown field `host`: expected one of ip, user, time, method, path, url, agent, referer, remote_addr, ",
        ),
        (
            "- --policy gcra:1/1s --key {tenent}",
            json,
            "invalid --key: no line has the field `tenent`",
        ),
        (
            "- --policy gcra:1/1s",
            json,
            "invalid log: no line has a client under one of its usual names; use --key for another field, as \
             `--key '{field}'`\n",
        ),
        (
            "- --policy gcra:1/1s --key {ip}",
            TRACE,
            "invalid --key: expected an access log; a trace has columns of its own",
        ),
        (
            "- --policy gcra:1/1s --time-field at",
            LOG,
            "invalid --time-field: unknown field `at`: expected one of ip, user, time, method, path, url, agent, referer, remote_addr",
        ),
        (
            "- --policy gcra:1/1s --log $nope",
            LOG,
            "invalid --log `$nope`: expected a format with the time, such as `$time_local` or `%t`; use \
             --time-field for another field\n",
        ),
        (
            "- --policy gcra:1/1s --log $at --time-field on",
            LOG,
            "invalid --time-field: unknown field `on`: expected one of at",
        ),
        (
            "- --policy gcra:1/1s --plot --key-plot nobody",
            TRACE,
            "unknown --key-plot `nobody`: expected a key of the traffic, such as `user`",
        ),
        (
            "- --policy gcra:1/1s --plot --key-plot usr",
            TRACE,
            "unknown --key-plot `usr`: did you mean `user`?",
        ),
        (
            "- --policy gcra:1/1s --key-plot user",
            TRACE,
            "missing --plot or --html: --key-plot needs one of them",
        ),
        (
            "-",
            LOG,
            "missing --policy: expected one such as `--policy gcra:30/60s` for an access log",
        ),
        ("-", TRACE, "line 2: missing policy: use --policy, or a `policy` column"),
        (
            "- --policy gcra:1/1s",
            "hello\nworld\n",
            "unknown format: expected a trace with the header `t_us,key,cost`, or an access log; use --log",
        ),
        (
            "- --policy gcra:1/1s --log nginx",
            LOG,
            "invalid --log `nginx`: expected common, combined, vhost_combined, envoy, istio, alb, w3c, json, traefik, or a format string",
        ),
        (
            "- --policy gcra:1/1s --log json",
            LOG,
            "invalid log: no line has the expected format; line 1: expected a JSON object\n",
        ),
        ("- --policy gcra:1/1s", "t_us,key\n0,a\n", "line 1: missing column `cost`"),
        (
            "- --policy gcra:1/1s",
            "t_us,key,cost\n0,a,x\n",
            "line 2: invalid cost `x`: expected a whole number from 0 to 4294967295",
        ),
        (
            "- --policy gcra:1/1s",
            "t_us,key,cost\n5,a,1\n4,a,1\n",
            "line 3: invalid t_us `4`: expected at least `5`",
        ),
        (
            "--traffic poisson:50/s",
            "",
            "missing --policy: expected one such as `--policy gcra:30/60s` for --traffic",
        ),
        (
            "--traffic poisson --policy gcra:1/1s",
            "",
            "invalid --traffic `poisson`: expected traffic such as `poisson:50/s`",
        ),
        (
            "--traffic even:5/s --keys 0 --policy gcra:1/1s",
            "",
            "invalid --keys `0`: expected a whole number from 1 to 1000000, or `zipf:N`",
        ),
        (
            "--traffic even:5/s --for 60 --policy gcra:1/1s",
            "",
            "invalid --for `60`: expected a duration with a unit, such as `60s` or `60ms`",
        ),
        (
            "--traffic even:5/s --for 0s --policy gcra:1/1s",
            "",
            "invalid --for `0s`: expected a duration from 1ms to 366d",
        ),
        (
            "--traffic even:5/s --seed x --policy gcra:1/1s",
            "",
            "invalid --seed `x`: expected a whole number",
        ),
        ("- --seed 7 --policy gcra:1/1s", TRACE, "missing --traffic: --seed needs it"),
        ("- --policy gcra:1/1s --format cvs", TRACE, "invalid --format `cvs`: did you mean `csv`?"),
        (
            "- --policy gcra:1/1s --policy gcra:2/1s --format csv",
            TRACE,
            "invalid --format `csv`: expected one --policy, not several",
        ),
        (
            "- --policy gcra:1/1s --format csv --plot",
            TRACE,
            "invalid --plot: expected a file such as `--plot chart.svg`",
        ),
        (
            "- --policy gcra:1/1s --plot chart.png",
            TRACE,
            "invalid --plot `chart.png`: expected a file that ends in `.svg`",
        ),
        (
            "- --policy gcra:1/1s --html /nowhere/x.html",
            TRACE,
            "cannot write /nowhere/x.html: no such file or directory",
        ),
        (
            "- --policy gcra:1/1s --html l1",
            TRACE,
            "invalid --html `l1`: expected a file that ends in `.html`",
        ),
        (
            "- --policy gcra:1/1s --change gcra:2/1s",
            TRACE,
            "invalid --change `gcra:2/1s`: expected AFTER=POLICY, such as",
        ),
        (
            "- --policy gcra:1/1s --change 30=gcra:2/1s",
            TRACE,
            "invalid --change `30=gcra:2/1s`: in `30`, expected a duration with a unit",
        ),
        (
            "- --policy gcra:1/1s --store http://x",
            TRACE,
            "invalid --store `http://x`: expected memory, resp://HOST:PORT or redis://HOST:PORT",
        ),
        (
            "- --policy gcra:1/1s --store resp://127.0.0.1:1",
            TRACE,
            "the server at 127.0.0.1:1 is unavailable: connection refused",
        ),
        (
            "- gcra:1/1s",
            TRACE,
            "unexpected argument `gcra:1/1s`: expected `--policy gcra:1/1s`\nusage: ",
        ),
        ("- --policy gcra:1/1s", "", EMPTY_FILE),
        ("- --policy gcra:1/1s", "\n\n", EMPTY_FILE),
        ("- --policy gcra:1/1s --log combined", "", EMPTY_FILE),
        ("/dev/null --policy gcra:1/1s", "", EMPTY_FILE),
        (
            "- --policy gcra:1/1s",
            "BZh91AY&SY",
            "invalid FILE: it is compressed by bzip2; use `bzcat FILE | sluicegate simulate -`\n",
        ),
        (
            "- --policy gcra:1/1s",
            "PK\u{3}\u{4}",
            "invalid FILE: it is a zip archive; use `unzip -p FILE | sluicegate simulate -`\n",
        ),
        (
            "- --policy gcra:1/1s",
            "# A page\n\ntext\n",
            "unknown format: expected a trace with the header `t_us,key,cost`, or an access log; use --log for a \
             log of another format; the first line is `# A page`\n",
        ),
        (
            "- --policy gcra:1/1s --key EMPTY",
            LOG,
            "invalid --key ``: expected a field in braces, such as `{ip}`, or a text\n",
        ),
        (
            "- --policy gcra:1/1s --format nginx",
            LOG,
            "invalid --format `nginx`: expected table or csv; use --log for the format of a log\n",
        ),
        (
            "- --policy gcra:1/1s",
            "{\"date\":\"2013-10-10T16:52:00+02:00\",\"ip\":\"203.0.113.5\"}\n",
            "invalid log: no line has a time under one of its usual names; use --time-field for another field\n",
        ),
        (
            "- --policy gcra:1/1s",
            "t_us,key,cost,ttl_us\n0,a,1,5\n",
            "line 2: invalid ttl_us `5`: expected nothing, because `take` has none\n",
        ),
        (
            "- --policy gcra:1/1s",
            "t_us,key,cost,op,id\n0,a,1,peek,x\n",
            "line 2: invalid id `x`: expected nothing, because `peek` has none\n",
        ),
        ("- --polcy gcra:1/1s", TRACE, "unknown option `--polcy`: did you mean `--policy`?"),
    ] {
        check(&format!("simulate {line}"), input, expected);
    }
    let server = Server::start(&[]);
    check(
        &format!("simulate - --policy gcra:1/1s --store {}", server.address),
        TRACE,
        &format!(
            "the server at {} does not accept times: start it with `sluicegate serve --test-clock`",
            server.address.trim_start_matches("resp://")
        ),
    );
}

#[test]
fn simulate_chart_that_cannot_be_written_keeps_the_one_before() {
    let folder = TempDir::new();
    let chart = folder.path().join("chart.svg");
    fs::write(&chart, "before").unwrap();
    // A file of more than a block cannot be written, as on a full disk.
    let command = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} simulate --traffic even:5/s --policy gcra:1/1s --plot {}",
        env!("CARGO_BIN_EXE_sluicegate"),
        chart.display()
    );
    let ended = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    let error = String::from_utf8(ended.stderr).unwrap();
    assert!(error.starts_with(&format!("error: cannot write {}: ", chart.display())), "{error}");
    assert_eq!(fs::read_to_string(&chart).unwrap(), "before");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn simulate_warns_about_one_key_for_all_lines_but_not_about_all() {
    for (key, expected) in [
        ("tenant", "warning: --key `tenant` has no field in braces: all lines have the same key\n"),
        ("all", ""),
    ] {
        let ended = run(&["simulate", "-", "--policy", "gcra:1/1s", "--key", key], LOG);
        assert_eq!((ended.code, &*ended.err), (Some(0), expected), "{key}");
    }
}

#[test]
fn simulate_field_that_is_empty_on_every_line_is_a_dash() {
    for line in [
        r#"{"ts":1760104500.31,"msg":"handled request","request":{"remote_ip":"203.0.113.5","method":"GET","uri":"/a"},"user_id":""}"#,
        r#"{"msec":"1760104500.31","remote_addr":"203.0.113.5","remote_user":"","request":"GET / HTTP/1.1"}"#,
    ] {
        let command =
            ["simulate", "-", "--policy", "gcra:1/1s", "--key", "{user}", "--format", "csv"];
        let ended = run(&command, line);
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{line}");
        let row = ended.out.lines().nth(1).unwrap_or_default();
        assert_eq!(row.split(',').nth(1), Some("-"), "{row}");
    }
}

#[test]
fn simulate_html_file_of_another_kind_is_not_overwritten() {
    let folder = TempDir::new();
    let log = folder.path().join("access.log");
    fs::write(&log, LOG).unwrap();
    let log = log.to_str().unwrap();
    let ended = run(&["simulate", log, "--policy", "gcra:1/1s", "--html", log], "");
    let expected = format!("error: invalid --html `{log}`: expected a file that ends in `.html`\n");
    assert_eq!((ended.code, ended.err), (Some(2), expected));
    assert_eq!(fs::read_to_string(log).unwrap(), LOG);
}

#[test]
fn simulate_warns_about_traffic_and_changes_after_the_end() {
    let traffic = ["simulate", "--policy", "gcra:1/1s", "--for", "1m", "--traffic", "even:1/s"];
    let late = "--traffic burst:20@70s --traffic even:1/s@1m..2m --change 90s=gcra:2/1s";
    let late: Vec<_> = late.split(' ').collect();
    let ended = run(&[&traffic[..], &late].concat(), "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.err,
        "warning: --traffic `burst:20@70s` begins after the end (--for 1m): it has no requests\n\
         warning: --traffic `even:1/s@1m..2m` begins after the end (--for 1m): it has no requests\n\
         warning: --change `90s=gcra:2/1s` comes after the last event: it has no effect\n"
    );
    // A chart shows the change, and a change of all policies is one warning.
    let two = [&traffic[..], &["--policy", "gcra:2/1s"]].concat();
    let early = ["simulate", "--change", "90s=gcra:3/1s"];
    let ended = run(&[&early[..], &two[1..]].concat(), "");
    let warning =
        "warning: --change `90s=gcra:3/1s` comes after the last event: it has no effect\n";
    assert_eq!((ended.code, &*ended.err), (Some(0), warning));
    let chart = ["--change", "90s=gcra:3/1s", "--plot", "--until", "100s"];
    let ended = run(&[&traffic[..], &chart].concat(), "");
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    let used = ["--change", "30s=gcra:3/1s", "--traffic", "burst:2@59s"];
    let ended = run(&[&traffic[..], &used].concat(), "");
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
}
