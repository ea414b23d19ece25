//! `simulate` on access logs.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use sluicegate_testing::TempDir;

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

fn packed(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut gzip =
        Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(bytes.as_ref()).unwrap();
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
    let packed_log = packed((0..5000).map(line).collect::<String>());
    let ended = rows(&[], &packed_log[..packed_log.len() / 2]);
    let lines = decided_rows(&ended.out).len();
    assert!(ended.code == Some(0) && (1000..4000).contains(&lines), "{lines}: {}", ended.err);
    assert!(ended.err.contains("warning: the log is damaged ("), "{}", ended.err);

    // Of a trace, all is meant.
    let trace: String = (0..5000).map(|at| format!("{at},k{},1\n", at * 7919 % 5000)).collect();
    let packed_trace = packed(format!("t_us,key,cost\n{trace}"));
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
            .contains("error: invalid --key: unknown field `host`: expected one of ip, user, time, method, path, url, agent, referer, "),
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
        "www.example.com ",
        "Oct 10 13:55:36 host nginx: ",
        "<190>Oct 10 13:55:36 host nginx: ",
        "web-1  | ",
        "web-1 | ",
        "2023-11-14T22:14:00.25Z ",
        "[pod/web-1/nginx] ",
    ] {
        let log: String = LOG.lines().map(|line| format!("{prefix}{line}\n")).collect();
        let ended = rows(&[], &log);
        assert_eq!(ended.code, Some(2), "{prefix}");
        assert!(ended.err.starts_with("error: unknown format: "), "{}", ended.err);
        // The name of a format does not make the prefix a client.
        let named = rows(&["--log", "combined"], &log);
        assert_eq!(named.code, Some(2), "{prefix} {}", named.out);
        assert!(named.err.starts_with("error: invalid log: "), "{}", named.err);
        // Neither beside lines without the prefix.
        let mixed = rows(&[], format!("{LOG}{log}"));
        assert_eq!(decided_rows(&mixed.out).len(), 3, "{prefix} {}", mixed.err);
        assert!(mixed.err.starts_with("warning: skipped 3 of 6 lines:\n"), "{}", mixed.err);
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
fn simulate_log_in_combined_is_detected_with_its_fields() {
    let ended = rows(&["--key", "{agent} {referer} {ip}"], LOG);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""));
    assert_eq!(decided_rows(&ended.out)[0], "0 a - 10.0.0.1 1");
    // A line in `common` is read where its fields suffice.
    let common = LOG.replace(" \"-\" \"a\"\n", "\n");
    assert_eq!(decided_rows(&rows(&[], format!("{LOG}{common}")).out).len(), 6);
    let short = rows(&["--key", "{agent}"], common);
    assert!(
        short.err.starts_with("error: invalid --key: unknown field `agent`: expected one of ip, "),
        "{}",
        short.err
    );
}

/// A line of each format, all by 203.0.113.5 at the same time, as the documentation of the format has it.
const LINES: [(&str, &str); 17] = [
    (
        "",
        r#"[2025-10-10T13:55:00.000Z] "GET /a HTTP/1.1" 200 - 0 1 2 1 "203.0.113.5" "curl/8" "id" "h" "10.0.0.9:80""#,
    ),
    (
        "",
        r#"[2025-10-10T13:55:00.000Z] "GET /a HTTP/1.1" 200 - via_upstream - "-" 0 135 4 3 "203.0.113.5" "curl/8" "id" "h" "10.0.0.9:80" outbound|80||h - 10.0.0.1:80 10.0.0.2:41 - default"#,
    ),
    (
        "",
        r#"https 2025-10-10T13:55:00.000000Z app/web/50dc6c495c0c9188 203.0.113.5:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET https://h:443/a HTTP/1.1" "curl/8" ECDHE TLSv1.2 arn "Root=1" "h" "-" 0 2025-10-10T13:54:59.990000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#,
    ),
    (
        "",
        r#"{"ClientAddr":"203.0.113.5:5010","ClientHost":"203.0.113.5","Duration":357313,"DownstreamStatus":200,"RequestMethod":"GET","RequestPath":"/a","StartUTC":"2025-10-10T13:55:00Z","level":"info","msg":"","time":"2025-10-10T13:55:00Z"}"#,
    ),
    (
        "",
        "#Software: Microsoft Internet Information Services 10.0\n#Version: 1.0\n#Date: 2025-10-10 13:55:00\n\
         #Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken\n\
         2025-10-10 13:55:00 10.0.0.1 GET /a - 80 - 203.0.113.5 curl/8 - 200 0 0 15",
    ),
    (
        "",
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status time-taken\n\
         2025-10-10\t13:55:00\tFRA2\t182\t203.0.113.5\tGET\td1.cloudfront.net\t/a\t200\t0.082",
    ),
    (
        "",
        r#"{"level":"info","ts":1760104500.0,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.5","remote_port":"41","client_ip":"203.0.113.5","method":"GET","uri":"/a"},"duration":0.001,"status":200}"#,
    ),
    (
        "",
        r#"2025-10-10T13:55:00.31+00:00 stdout F 203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-""#,
    ),
    (
        "",
        r#"2025-10-10T13:55:00.31+00:00 stdout F [2025-10-10T13:55:00Z] "GET /a HTTP/1.1" 200 - 0 1 2 1 "203.0.113.5" "c" "r" "h" "u""#,
    ),
    (
        "",
        r#"{"log":"203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] \"GET /a HTTP/1.1\" 200 1 \"-\" \"-\"\n","stream":"stdout","time":"2025-10-10T13:55:07.31Z"}"#,
    ),
    (
        "",
        r#"{"__REALTIME_TIMESTAMP":"1760104507000000","_PID":"7","MESSAGE":"203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] \"GET /a HTTP/1.1\" 200 1"}"#,
    ),
    (
        "vhost_combined",
        r#"shop.example:443 203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-""#,
    ),
    // ingress-nginx.
    (
        "",
        r#"203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "curl/8" 74 0.003 [default-web-80] [] 10.0.0.1:80, 10.0.0.2:80 1, 1 0.001, 0.002 502, 200 id"#,
    ),
    (
        r#"$a $b $upstream_addr $upstream_status [$time_local] "$request" $remote_addr"#,
        r#"1 2 10.0.0.1:80, 10.0.0.2:80 : 10.0.0.3:80 502, 200 : 200 [10/Oct/2025:13:55:00 +0000] "GET /a HTTP/1.1" 203.0.113.5"#,
    ),
    (
        r#"%{X-Forwarded-For}i %l %u %t \"%r\""#,
        r#"203.0.113.5, 10.0.0.1 - - [10/Oct/2025:13:55:00 +0000] "GET /a HTTP/1.1""#,
    ),
    // HAProxy.
    (
        r#"$prefix]: $remote_addr [$start_time] $frontend $backend $times $status $bytes $a $b $c $d $e $f "$request""#,
        r#"Oct 10 13:55:00 lb haproxy[14389]: 203.0.113.5:33317 [10/Oct/2025:13:55:00.000] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {h} {} "GET /a HTTP/1.1""#,
    ),
    ("", "\u{feff}203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] \"GET /a HTTP/1.1\" 200 1"),
];

#[test]
fn simulate_log_of_every_known_format_has_the_client_and_the_path() {
    for (format, line) in LINES {
        let named = ["--log", format, "--key", "{ip} {path}"];
        let options = if format.is_empty() { &named[2..] } else { &named[..] };
        let ended = rows(options, format!("{line}\n"));
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{line}");
        let row = "\n1760104500000000,203.0.113.5 /a,1,1,";
        assert!(ended.out.contains(row), "{line}\n{}", ended.out);
    }
}

#[test]
fn simulate_log_client_is_that_of_the_gate() {
    let line = |client: &str| LOG.lines().next().unwrap().replace("10.0.0.1", client) + "\n";
    for (client, key) in [
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:0db8:0:0:0:0:0:1", "2001:db8::/64"),
        ("2001:DB8::2", "2001:db8::/64"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("203.0.113.5:4711", "203.0.113.5"),
        ("Host.example", "host.example"),
    ] {
        assert_eq!(decided_rows(&rows(&[], line(client)).out), [format!("0 {key} 1")], "{client}");
    }
    let whole = rows(&["--key", "{remote_addr}"], line("2001:DB8::2"));
    assert_eq!(decided_rows(&whole.out), ["0 2001:DB8::2 1"]);
}

#[test]
fn simulate_log_lines_without_a_request_are_skipped_and_counted_by_reason() {
    let access =
        r#"{"ts":1760104500.5,"request":{"remote_ip":"203.0.113.5","uri":"/a"},"status":200}"#;
    let started = r#"{"level":"info","ts":1760104500.0,"logger":"admin","msg":"started"}"#;
    let unknown = r#"{"ts":1760104501.5,"request":{"remote_ip":"unknown","uri":"/a"}}"#;
    let log = format!("{started}\n{access}\n{unknown}\nwhat\n");
    for (key, expected) in [("{ip}", "203.0.113.5"), ("{request.uri}", "/a"), ("all", "all")] {
        let ended = rows(&["--key", key], &log);
        assert_eq!(decided_rows(&ended.out)[0], format!("0 {expected} 1"), "{}", ended.err);
        assert!(!ended.out.contains(",-,"), "{}", ended.out);
        assert!(ended.err.contains("  line 1: "), "{}", ended.err);
    }
    let ended = rows(&[], &log);
    assert!(ended.err.contains("line 1: missing client\n"), "{}", ended.err);
    assert!(
        ended.err.ends_with("  in all: 1 of another format, 2 without a client\n"),
        "{}",
        ended.err
    );
    // An empty client is no client.
    let squid = "1760104500.075    151 203.0.113.5 TCP_MISS/200\n";
    let ended = rows(&["--log", "$msec $elapsed $remote_addr $code"], squid);
    assert_eq!((ended.code, ended.out.lines().count()), (Some(2), 1), "{}", ended.out);
    let expected = "error: invalid log: no line has the expected format; line 1: missing elapsed before a space; if the space is \
         padding, use `tr -s ' '`\n";
    assert_eq!(ended.err, expected);
}

#[test]
fn simulate_log_line_with_an_empty_or_missing_column_is_not_read_shifted() {
    let format = "$msec $elapsed $remote_addr $server_addr $code";
    let log = "1760104500.075 151 203.0.113.5 10.0.0.1 200\n\
               1760104501.075  203.0.113.5 10.0.0.1 200\n\
               1760104502.075    151 203.0.113.5 10.0.0.1 200\n\
               1760104503.075 203.0.113.5 10.0.0.1 200\n";
    let ended = rows(&["--log", format], log);
    assert_eq!(decided_rows(&ended.out), ["0 203.0.113.5 1"], "{}", ended.err);
    let expected = "warning: skipped 3 of 4 lines:\n  \
         line 2: missing elapsed before a space; if the space is padding, use `tr -s ' '`\n  \
         line 3: missing elapsed before a space; if the space is padding, use `tr -s ' '`\n  \
         line 4: missing ` ` after server_addr\n  \
         in all: 1 of another format, 2 with an empty field\n";
    assert_eq!(ended.err, expected);
    // An application load balancer without the name of the target.
    let (_, alb) = LINES[2];
    let without = alb.replace("app/web/50dc6c495c0c9188 ", "");
    for key in ["{ip}", "{path}"] {
        let ended = rows(&["--key", key], format!("{alb}\n{without}\n"));
        assert_eq!(ended.out.lines().count(), 2, "{}", ended.out);
        assert!(ended.err.contains("\n  line 2: missing ` "), "{}", ended.err);
    }
    let (semicolons, tabs) = (format.replace(' ', ";"), format.replace(' ', "\\t"));
    for (format, separator) in [(semicolons, ";"), (tabs, "\t")] {
        let line = log.lines().nth(1).unwrap().replace(' ', separator);
        let ended = rows(&["--log", &format], line);
        assert_eq!(decided_rows(&ended.out), ["0 203.0.113.5 1"], "{}", ended.err);
    }
}

#[test]
fn simulate_file_with_other_line_ends_is_named() {
    let returns = LOG.replace('\n', "\r");
    let trace = "t_us,key,cost\r0,k,1\r1,k,1\r".to_owned();
    let endless = returns.repeat(20_000);
    for text in [&returns, &format!("{returns}\n"), &format!("\u{feff}{returns}"), &trace, &endless]
    {
        for (file, cat) in [(text.clone().into_bytes(), "cat"), (packed(text), "zcat")] {
            let ended = rows(&[], file);
            let expected = format!(
                "error: invalid FILE: its lines end in a carriage return alone; use `{cat} FILE | tr '\\r' '\\n' | sluicegate \
                 simulate -`\n"
            );
            assert_eq!((ended.code, ended.err), (Some(2), expected));
        }
    }
    let ended = rows(&[], format!("{LOG}{returns}\n{LOG}"));
    assert_eq!(decided_rows(&ended.out).len(), 6);
    let expected = "warning: skipped 1 of 7 lines:\n  line 4: expected one line, found a carriage return in it\n";
    assert_eq!(ended.err, expected);
    let doubled = rows(&[], LOG.replace('\n', "\r\r\n"));
    assert_eq!((decided_rows(&doubled.out).len(), &*doubled.err), (3, ""));
}

#[test]
fn simulate_log_of_a_container_is_read_in_a_format_by_name() {
    let json = |text: &str| serde_json::Value::from(text).to_string();
    let envelopes: [&dyn Fn(&str) -> String; 4] = [
        &|line| line.to_owned(),
        &|line| format!("2025-10-10T13:55:09.31Z stdout F {line}"),
        &|line| {
            let line = json(&format!("{line}\n"));
            format!(r#"{{"log":{line},"stream":"stdout","time":"2025-10-10T13:55:09.31Z"}}"#)
        },
        &|line| {
            format!(r#"{{"__REALTIME_TIMESTAMP":"1760104509000000","MESSAGE":{}}}"#, json(line))
        },
    ];
    let common = r#"203.0.113.5 - - [10/Oct/2025:13:55:00 +0000] "GET /a HTTP/1.1" 200 1 "-" "-""#;
    let vhost = format!("h:80 {common}");
    let own = r#"{"at":1760104500,"client":"203.0.113.5","path":"/a","message":"{}"}"#;
    let usual = ["--key", "{ip} {path}"];
    let own_fields = ["--key", "{client} {path}", "--time-field", "at"];
    let logs: [(&str, &str, &[&str]); 10] = [
        ("common", common, &usual),
        ("combined", common, &usual),
        ("vhost_combined", &vhost, &usual),
        ("envoy", LINES[0].1, &usual),
        ("istio", LINES[1].1, &usual),
        ("alb", LINES[2].1, &usual),
        ("traefik", LINES[3].1, &usual),
        ("json", own, &own_fields),
        ("w3c", LINES[4].1, &usual),
        (r#"$remote_addr - $remote_user [$time_local] "$request""#, common, &usual),
    ];
    for (format, text, options) in logs {
        for envelope in envelopes {
            // A broken line, and one about the container, do not decide.
            let lines = ["started", text].into_iter().flat_map(str::lines).map(envelope);
            let log = "broken\n".to_owned() + &lines.collect::<Vec<_>>().join("\n");
            let ended = rows(&[&["--log", format], options].concat(), &log);
            let row = "\n1760104500000000,203.0.113.5 /a,1,1,";
            assert!(ended.out.contains(row), "{format}\n{log}\n{}{}", ended.out, ended.err);
        }
    }
    // A format may have the prefix in it.
    let line = envelopes[1](common);
    let format = r#"$written stdout F $remote_addr - $remote_user [$time_local] "$request""#;
    let ended = rows(&["--log", format, "--key", "{written}"], line);
    assert_eq!(decided_rows(&ended.out), ["0 2025-10-10T13:55:09.31Z 1"], "{}", ended.err);
}

#[test]
fn simulate_log_directive_of_a_configuration_file_is_a_format() {
    for directive in [
        r#"LogFormat "%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"" combined"#,
        r#"CustomLog logs/access_log "%h %l %u %t \"%r\" %>s %b" env=!quiet"#,
        "CustomLog logs/access_log common",
        "log_format main '$remote_addr - $remote_user [$time_local] \"$request\" '\n    '$status $bytes';\n",
        "    #log_format  main  escape=json '$remote_addr - $remote_user [$time_local] \"$request\" '\n    \
             #                  '$status $body_bytes_sent \"$http_referer\" '\n    \
             #                  '\"$http_user_agent\" \"$http_x_forwarded_for\"';\n",
    ] {
        let ended = rows(&["--log", directive, "--key", "{ip} {path}"], LOG);
        assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{directive}");
        assert_eq!(decided_rows(&ended.out)[0], "0 10.0.0.1 /login 1", "{directive}");
    }
    for directive in
        ["LogFormat", "LogFormat \"%h %t", "CustomLog logs/access_log", "log_format main;"]
    {
        let error = rows(&["--log", directive], LOG).err;
        let expected = format!("error: invalid --log `{directive}`: expected common, ");
        assert!(error.starts_with(&expected), "{error}");
    }
}

/// A tar archive of `log`.
fn archived(log: &str, version: &str) -> Vec<u8> {
    let folder = TempDir::new();
    fs::write(folder.path().join("access.log"), log).unwrap();
    let mut tar = Command::new("tar");
    tar.args(["-c", "-f", "-", version, "access.log"]).current_dir(folder.path());
    tar.output().unwrap().stdout
}

#[test]
fn simulate_file_of_another_kind_is_named_with_what_converts_it() {
    let utf16 = |mark: &str, bytes: fn(u16) -> [u8; 2]| {
        format!("{mark}{LOG}").encode_utf16().flat_map(bytes).collect::<Vec<_>>()
    };
    let utf32 = |bytes: fn(u32) -> [u8; 4]| {
        let characters = "\u{feff}".chars().chain(LOG.chars());
        characters.flat_map(|it| bytes(u32::from(it))).collect::<Vec<_>>()
    };
    for (file, kind, tool) in [
        (archived(LOG, "--format=ustar"), "a tar archive", "tar -xOf"),
        (archived(LOG, "--format=v7"), "a tar archive", "tar -xOf"),
        (archived("t_us,key,cost\n0,k,1\n", "--format=v7"), "a tar archive", "tar -xOf"),
        (utf16("\u{feff}", u16::to_le_bytes), "in UTF-16", "iconv -f utf-16 -t utf-8"),
        (utf16("\u{feff}", u16::to_be_bytes), "in UTF-16", "iconv -f utf-16 -t utf-8"),
        (utf16("", u16::to_le_bytes), "in UTF-16", "iconv -f utf-16le -t utf-8"),
        (utf16("", u16::to_be_bytes), "in UTF-16", "iconv -f utf-16be -t utf-8"),
        (utf32(u32::to_le_bytes), "in UTF-32", "iconv -f utf-32 -t utf-8"),
        (utf32(u32::to_be_bytes), "in UTF-32", "iconv -f utf-32 -t utf-8"),
        (b"BZh91AY&SY".to_vec(), "compressed by bzip2", "bzcat"),
        (b"\xfd7zXZ\0\0\x04".to_vec(), "compressed by xz", "xzcat"),
        (b"\x5d\0\0\x80\0\xff".to_vec(), "compressed by lzma", "xzcat"),
        (b"\x28\xb5\x2f\xfd\x24".to_vec(), "compressed by zstd", "zstdcat"),
        (b"\x50\x2a\x4d\x18\x04".to_vec(), "compressed by zstd", "zstdcat"),
        (b"\x04\x22\x4d\x18\x64".to_vec(), "compressed by lz4", "lz4cat"),
    ] {
        let zipped = packed(&file);
        for options in [&[][..], &["--log", "common"]] {
            let expected = |tool: &str| {
                format!("error: invalid FILE: it is {kind}; use `{tool} | sluicegate simulate -`\n")
            };
            let ended = rows(options, &file);
            assert_eq!((ended.code, ended.err), (Some(2), expected(&format!("{tool} FILE"))));
            let ended = rows(options, &zipped);
            let tool = format!("zcat FILE | {tool} -");
            assert_eq!((ended.code, ended.err), (Some(2), expected(&tool)));
        }
    }
    let twice = rows(&[], packed(packed(LOG)));
    assert_eq!(
        twice.err,
        "error: invalid FILE: it is compressed by gzip twice; use `zcat FILE | zcat - | sluicegate simulate -`\n"
    );
}

#[test]
fn simulate_log_unit_of_duration_is_given_or_known() {
    let request = |field: &str| {
        format!(
            r#"{{"StartUTC":"2025-10-10T13:55:00Z","ClientHost":"203.0.113.5","{field}":357313}}"#
        )
    };
    let traefik = request("Duration");
    let held = ["--policy", "concurrency:5/30s", "--format", "csv"];
    let ends = |options: &[&str], log: &str| {
        let ended = run(&[&["simulate", "-"], &held[..], options].concat(), format!("{log}\n"));
        let last = ended.out.lines().last().unwrap_or_default().to_owned();
        last.split(',').next().unwrap().to_owned()
    };
    assert_eq!(ends(&[], &traefik), "1760104500000357");
    let other = request("took");
    for (unit, end) in [
        ("ns", "1760104500000357"),
        ("us", "1760104500357313"),
        ("ms", "1760104857313000"),
        ("s", "1760461813000000"),
    ] {
        let field = format!("took:{unit}");
        assert_eq!(ends(&["--duration-field", &field], &other), end, "{unit}");
    }
    // A value may have a unit of its own.
    for (value, end) in [
        ("0.123", "1760104500123000"),
        ("12ms", "1760104500012000"),
        ("1.5s", "1760104501500000"),
        ("357us", "1760104500000357"),
        ("357\u{b5}s", "1760104500000357"),
        ("1m2.5s", "1760104562500000"),
    ] {
        let log = other.replace("357313", &format!("\"{value}\""));
        assert_eq!(ends(&["--duration-field", "took"], &log), end, "{value}");
    }
    let log = other.replace("357313", "\"12min\"");
    let command = ["simulate", "-", "--policy", "concurrency:5/30s", "--duration-field"];
    let ended = run(&[&command[..], &["took"]].concat(), &log);
    let expected = "error: invalid log: no line has the expected format; line 1: invalid duration `12min`: expected a number up \
         to 366 days, such as `0.250`, or one with a unit (h, m, s, ms, us or ns), such as `12ms`\n";
    assert_eq!((ended.code, &*ended.err), (Some(2), expected));
    let ended = run(&[&command[..], &["took:min"]].concat(), &other);
    let expected = "error: invalid --duration-field: unknown unit in `took:min`: expected `NAME` or `NAME:UNIT`, with s, ms, us \
         or ns as the unit\n";
    assert_eq!((ended.code, &*ended.err), (Some(2), expected));
    let iis = "#Fields: date time c-ip time-taken\n2025-10-10 13:55:00 203.0.113.5 15";
    assert_eq!(ends(&["--duration-field", "time-taken"], iis), "1760104500000000");
}

#[test]
fn simulate_log_is_shown_in_tables_and_charts() {
    let table = output(&["simulate", "-", "--policy", "gcra:1/1m", "--plot"], LOG);
    assert!(table.contains("gcra:1/1m        3 "), "{table}");
    assert!(table.contains("Time 0 is 2023-11-14 22:14:00 UTC.\n"), "{table}");
    assert!(table.contains("Line: key 10.0.0.1\n"), "{table}");
}
