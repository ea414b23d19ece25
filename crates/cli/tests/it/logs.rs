//! `simulate` on access logs.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::run::{Ended, output, run};

const LOG: &str = "\
10.0.0.1 - - [14/Nov/2023:22:14:00 +0000] \"GET /login?x=1 HTTP/1.1\" 200 5 \"-\" \"a\"
10.0.0.2 - - [14/Nov/2023:22:14:02 +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"a \\\"quoted\\\"\"
10.0.0.1 - - [14/Nov/2023:22:14:01 +0000] \"POST /login HTTP/1.1\" 200 5 \"-\" \"a\"
";

fn rows(arguments: &[&str], log: impl AsRef<[u8]>) -> Ended {
    let to = ["simulate", "-", "--format", "csv", "--policy", "gcra:1/1m"];
    run(&[&to, arguments].concat(), log)
}

/// Each row: time since the first, key, and whether it was allowed.
fn decided_rows(rows: &str) -> Vec<String> {
    let field = |row: &str, index: usize| row.split(',').nth(index).unwrap().to_owned();
    let rows: Vec<&str> = rows.lines().skip(1).collect();
    let time = |row: &str| field(row, 0).parse::<u64>().unwrap();
    let first = rows.first().map_or(0, |row| time(row));
    let format = |row: &&str| format!("{} {} {}", time(row) - first, field(row, 1), field(row, 3));
    rows.iter().map(format).collect()
}

#[test]
fn simulate_log_key_is_made_of_fields_and_lines_are_sorted() {
    let ended = rows(&[], LOG);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    assert_eq!(
        decided_rows(&ended.out),
        ["0 10.0.0.1 1", "1000000 10.0.0.1 0", "2000000 10.0.0.2 1"]
    );
    let ended = rows(&["--key", "{method} {path}"], LOG);
    assert_eq!(
        decided_rows(&ended.out),
        ["0 GET /login 1", "1000000 POST /login 1", "2000000 GET / 1"]
    );
    let ended = rows(&["--log", "combined", "--key", "{agent}"], LOG);
    assert_eq!(decided_rows(&ended.out)[2], "2000000 \"a \"\"quoted\"\"\" 1");
}

#[test]
fn simulate_log_custom_format_and_json_are_read() {
    let nginx = "22:14 1700000040.250 10.0.0.1|/a\n22:14 1700000040.750 10.0.0.1|/b\n";
    let format = "$hour $msec $remote_addr|$uri";
    let ended = rows(&["--log", format, "--key", "{ip}{path}"], nginx);
    assert_eq!(
        (&*ended.err, decided_rows(&ended.out)),
        ("", vec!["0 10.0.0.1/a 1".into(), "500000 10.0.0.1/b 1".into()])
    );

    let caddy = "{\"ts\":1700000040.25,\"request\":{\"remote_ip\":\"10.0.0.1\"},\"tenant\":\"x\"}\n\
                 {\"ts\":1700000040.5,\"request\":{\"remote_ip\":\"10.0.0.1\"},\"tenant\":\"y\"}\n";
    assert_eq!(decided_rows(&rows(&[], caddy).out), ["0 10.0.0.1 1", "250000 10.0.0.1 0"]);
    assert_eq!(decided_rows(&rows(&["--key", "{tenant}"], caddy).out), ["0 x 1", "250000 y 1"]);
    let named = caddy.replace("\"ts\"", "\"at\"");
    assert_eq!(decided_rows(&rows(&["--time-field", "at"], named).out).len(), 2);
}

fn packed(text: &str) -> Vec<u8> {
    let mut gzip =
        Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    gzip.wait_with_output().unwrap().stdout
}

#[test]
fn simulate_log_truncated_gzip_is_read_up_to_the_damage() {
    // Lines that do not pack well, so that half of the file is half of the lines.
    let line = |number: u32| {
        let words = number.wrapping_mul(2_654_435_769);
        format!(
            "10.0.0.{} - - [14/Nov/2023:22:14:00 +0000] \"GET /{words:08x} HTTP/1.1\" 200 5\n",
            number % 250
        )
    };
    let packed_log = packed(&(0..5000).map(line).collect::<String>());
    let ended = rows(&[], &packed_log[..packed_log.len() / 2]);
    let lines = decided_rows(&ended.out).len();
    assert!(ended.code == Some(0) && (1000..4000).contains(&lines), "{lines}: {}", ended.err);
    assert!(ended.err.contains("warning: the log is damaged ("), "{}", ended.err);

    // Of a trace, all is meant.
    let trace: String = (0..5000).map(|at| format!("{at},k{},1\n", at * 7919 % 5000)).collect();
    let packed_trace = packed(&format!("t_us,key,cost\n{trace}"));
    let ended = rows(&[], &packed_trace[..packed_trace.len() / 2]);
    assert_ne!(ended.code, Some(0));
    assert!(ended.err.contains("cannot read the trace: "), "{}", ended.err);
    let ended = rows(&[], &packed_log[..12]);
    assert_ne!(ended.code, Some(0), "nothing could be read: {}", ended.err);
}

#[test]
fn simulate_log_gzip_is_detected() {
    let packed = packed(LOG);
    // Logs that were packed one by one and put together are read to the end.
    let twice = [&packed[..], &packed].concat();
    assert_eq!(decided_rows(&rows(&[], twice).out).len(), 6);
    let trace = "t_us,key,cost\n0,k,1\n";
    assert_eq!(decided_rows(&rows(&[], trace).out), ["0 k 1"]);
}

#[test]
fn simulate_log_invalid_lines_are_counted_and_skipped() {
    let log = format!("{LOG}what is this\n{LOG}{}", "\u{0}\n".repeat(9));
    let ended = rows(&[], log);
    assert_eq!((ended.code, decided_rows(&ended.out).len()), (Some(0), 6));
    assert!(ended.err.starts_with("warning: skipped 10 of 16 lines:\n  line 4: "), "{}", ended.err);
    assert!(ended.err.ends_with("\n  ...\n"), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 7);

    let none = rows(&["--log", "json"], LOG);
    assert_eq!(none.code, Some(2));
    assert!(
        none.err.starts_with(
            "error: invalid log: no line has the expected format; line 1: expected a JSON object; "
        ),
        "{}",
        none.err
    );
    let field = rows(&["--key", "{host}"], LOG);
    assert!(
        field
            .err
            .contains("error: invalid --key: unknown field `host`: expected one of ip, user, time, method, path, url, remote_addr, "),
        "{}",
        field.err
    );
    let template = rows(&["--key", "{ip"], LOG);
    assert!(
        template.err.contains("invalid --key `{ip`: expected field names in braces"),
        "{}",
        template.err
    );
}

#[test]
fn simulate_log_format_is_found_behind_an_invalid_first_line() {
    let cut = format!("1 +0000] \"GET / HTTP/1.1\" 200 5\n{LOG}");
    let ended = rows(&[], cut);
    assert_eq!((ended.code, decided_rows(&ended.out).len()), (Some(0), 3));
    assert!(ended.err.starts_with("warning: skipped 1 of 4 lines"), "{}", ended.err);
    let nothing = rows(&[], "what\nis\nthis\n");
    assert!(nothing.err.starts_with("error: unknown format: expected a trace with the header"));
    assert!(rows(&[], "t_us,key\n").err.starts_with("error: line 1: "));
    let policy = run(&["simulate", "-"], LOG);
    assert_eq!(
        policy.err,
        "error: missing --policy: expected one such as `--policy gcra:30/60s` for an access log\n"
    );
}

#[test]
fn simulate_log_with_name_of_trace_column_in_its_first_line_is_a_log() {
    for path in ["/contact_us", "/about_us?a,t_us"] {
        let ended = rows(&[], LOG.replacen("/login", path, 1));
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{path}");
        assert_eq!(decided_rows(&ended.out).len(), 3);
    }
    let json = "{\"ts\":1700000040.25,\"ip\":\"10.0.0.1\",\"t_us\":5}\n";
    assert_eq!(decided_rows(&rows(&[], json).out), ["0 10.0.0.1 1"]);
    for header in ["t_us,key,cost\r", "\u{feff}t_us,key,cost", "key,cost,\"t_us\"\r"] {
        let row = if header.starts_with('k') { "k,1,0" } else { "0,k,1" };
        let ended = rows(&[], format!("{header}\n{row}\n"));
        assert_eq!((&*ended.err, decided_rows(&ended.out)), ("", vec!["0 k 1".to_owned()]));
    }
}

#[test]
fn simulate_log_with_prefix_is_an_unknown_format() {
    for prefix in [
        "www.example.com:80 ",
        "Oct 10 13:55:36 host nginx: ",
        "web-1  | ",
        "web-1 | ",
        "2023-11-14T22:14:00.25Z ",
        "[pod/web-1/nginx] ",
    ] {
        let log: String = LOG.lines().map(|line| format!("{prefix}{line}\n")).collect();
        let ended = rows(&[], log);
        assert_eq!(ended.code, Some(2), "{prefix}");
        assert!(ended.err.starts_with("error: unknown format: "), "{}", ended.err);
    }
    // With the formats of docs/simulate.md.
    for (prefix, format) in [
        ("www.example.com:80 ", "%v:%p %h %l %u %t \"%r\" %>s %b"),
        (
            "Oct  1 13:55:36 host nginx: ",
            "$prefix: $remote_addr - $remote_user [$time_local] \"$request\"",
        ),
        ("web-1  | ", "$prefix | $remote_addr - $remote_user [$time_local] \"$request\""),
    ] {
        let ended = rows(&["--log", format], LOG.replace("10.0.0.", &format!("{prefix}10.0.0.")));
        assert_eq!(decided_rows(&ended.out)[0], "0 10.0.0.1 1", "{}", ended.err);
    }
}

#[test]
fn simulate_log_with_unusual_user_or_client_is_detected() {
    for start in ["10.0.0.1 - user name [", "10.0.0.1 ident user [", "10.0.0.1, 10.9.9.9 - - ["] {
        let ended = rows(&[], LOG.replace("10.0.0.1 - - [", start).replace("10.0.0.2", "10.0.0.1"));
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{start}");
        assert_eq!(decided_rows(&ended.out)[0], "0 10.0.0.1 1", "{start}");
    }
}

#[test]
fn simulate_log_is_shown_in_tables_and_charts() {
    let table = output(&["simulate", "-", "--policy", "gcra:1/1m", "--plot"], LOG);
    assert!(table.contains("gcra:1/1m        3 "), "{table}");
    assert!(table.contains("Time 0 is 2023-11-14 22:14:00 UTC.\n"), "{table}");
    assert!(table.contains("Line: key 10.0.0.1\n"), "{table}");
}
