//! Metrics, as Prometheus reads them.

use sluicegate_core::OnError;
use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use sluicegate_server::{Config, StoreConfig};

use super::client::{Client, server};
use crate::harness::{Running, TempDir, root};

/// The value of a metric.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("`{name}` is not in:\n{text}")).parse().unwrap()
}

#[test]
fn metrics_count_decisions() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let secret = "a-key-that-must-stay-secret";
    for _ in 0..3 {
        client.post("/v1/take", format!(r#"{{"key":"{secret}","policy":"gcra:2/1h"}}"#));
    }
    client.post("/v1/take", "{");
    running.connect().integers("SG.TAKE k gcra:1/1h");
    let reply = client.get("/metrics");
    assert_eq!(
        reply.field("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let text = String::from_utf8(reply.body).unwrap();
    for (name, expected) in [
        (r#"sluicegate_decisions_total{protocol="http",outcome="allowed",source="memory"}"#, 2.0),
        (r#"sluicegate_decisions_total{protocol="http",outcome="denied",source="memory"}"#, 1.0),
        (r#"sluicegate_decisions_total{protocol="resp",outcome="allowed",source="memory"}"#, 1.0),
        (r#"sluicegate_decisions_total{protocol="grpc",outcome="allowed",source="memory"}"#, 0.0),
        (r#"sluicegate_requests_total{protocol="http"}"#, 5.0),
        (r#"sluicegate_request_duration_seconds_count{protocol="http"}"#, 4.0),
        (r#"sluicegate_request_duration_seconds_bucket{protocol="http",le="+Inf"}"#, 4.0),
        (r#"sluicegate_request_duration_seconds_count{protocol="resp"}"#, 1.0),
        (r#"sluicegate_build_info{version="VERSION"}"#, 1.0),
        ("sluicegate_request_errors_total", 1.0),
        ("sluicegate_keys", 2.0),
        (r#"sluicegate_connections_closed_total{reason="slow"}"#, 0.0),
    ] {
        let name = name.replace("VERSION", env!("CARGO_PKG_VERSION"));
        assert_eq!(value(&text, &name), expected, "{name}");
    }
    if cfg!(target_os = "linux") {
        let started = value(&text, "process_start_time_seconds");
        // The system counts in hundredths of a second, and this process may be younger.
        assert!(started > 1.7e9 && value(&text, "process_cpu_seconds_total") >= 0.0);
        assert!(value(&text, "process_resident_memory_bytes") > 1e6);
        assert!(value(&text, "process_open_fds") < value(&text, "process_max_fds"));
    }
    assert!(value(&text, "sluicegate_state_bytes") > 0.0);
    assert!(!text.contains(secret), "no key is printed");
    assert!(text.ends_with("# EOF\n"));
}

/// The text of `/metrics` for a client that accepts this.
fn scrape(running: &Running, accept: &str) -> (String, String) {
    let mut client = Client::connect(running);
    client.send_request("GET", "/metrics", &format!("Accept: {accept}\r\n"));
    let reply = client.read_reply();
    assert_eq!((reply.status, reply.field("vary")), (200, "Accept"));
    (reply.field("content-type").to_owned(), String::from_utf8(reply.body).unwrap())
}

#[test]
fn metrics_text_format_is_sent_on_request() {
    let running = server(|_| {});
    running.connect().integers("SG.TAKE k gcra:1/1h");
    let (media_type, text) = scrape(&running, "text/plain;version=0.0.4");
    assert_eq!(media_type, "text/plain; version=0.0.4; charset=utf-8");
    assert!(!text.contains("# EOF"), "{text}");
    assert!(text.contains("# TYPE sluicegate_build_info gauge\n"), "{text}");
    let (_, open) = scrape(&running, "application/openmetrics-text;version=1.0.0");
    assert!(open.contains("# TYPE sluicegate_build info\n") && open.ends_with("# EOF\n"), "{open}");
    // Each sample follows the lines of its family, whose name it bears.
    let mut families = 0;
    for block in text.split("# HELP ").skip(1) {
        let mut lines = block.lines();
        let (name, help) = lines.next().unwrap().split_once(' ').unwrap();
        assert!(help.len() > 8, "{name} has no help");
        let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        for line in lines {
            let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("`{line}` under {name}"));
            let suffix = rest.split(['{', ' ']).next().unwrap();
            let expected: &[&str] =
                if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(expected.contains(&suffix), "{line}");
        }
        families += 1;
    }
    assert!(families > 25, "{families}");
    // The same families in both formats.
    assert_eq!(open.matches("# HELP ").count(), families);
}

/// Names of metrics in a text, without the suffixes of histograms.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |character: char| character.is_ascii_lowercase() || character == '_';
    let words = text.split(|character| !is_part(character));
    let names = words.filter(|it| it.starts_with("sluicegate_") || it.starts_with("process_"));
    // Modules of Rust, in settings of the log.
    let names = names.filter(|it| !["sluicegate_redis", "sluicegate_server"].contains(it));
    names.map(|it| it.strip_suffix("seconds_bucket").map_or(it, |_| &it[..it.len() - 7])).collect()
}

/// The text format of a server with state in memory, and of one with a store.
fn both() -> [String; 2] {
    let folder = TempDir::new();
    let rule = "rules: [{name: a, match: {path: /}, key: client, policy: 'gcra:1/1s'}]";
    fs::write(folder.file("rules.yaml"), rule).unwrap();
    let memory = |config: &mut Config| config.rules = vec![folder.file("rules.yaml")];
    let store = |config: &mut Config| {
        let mut store = StoreConfig::new("redis://127.0.0.1:1");
        store.on_error = OnError::Allow;
        config.store = Some(store);
    };
    [server(memory), server(store)].map(|running| scrape(&running, "text/plain").1)
}

#[test]
fn metrics_page_has_every_metric_and_no_other() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let heads = both().concat();
    let heads: Vec<_> = heads.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let heads = heads.join("\n");
    let served = names(&heads);
    let page = read("docs/metrics.md");
    assert_eq!(names(&page), served);
    for path in [
        "docs/operations.md",
        "dist/prometheus/alerts.yaml",
        "dist/prometheus/alerts_test.yaml",
        "dist/grafana/sluicegate.json",
    ] {
        let text = read(path);
        let unknown: Vec<_> = names(&text).difference(&served).copied().collect();
        assert_eq!(unknown, [""; 0], "{path}");
    }
}

#[test]
fn metrics_promtool_finds_no_fault() {
    for text in both() {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped());
        promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = promtool.spawn().expect("`cargo xtask test --all` installs Prometheus");
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let found = [output.stdout, output.stderr].concat();
        assert_eq!(String::from_utf8(found).unwrap(), "");
        assert!(output.status.success());
    }
}

#[test]
fn rule_metrics_exist_before_the_first_request() {
    let folder = TempDir::new();
    let write = |more: &str| {
        let rules = format!(
            "rules:\n  - {{name: login, match: {{path: /login}}, key: client, policy: 'gcra:1/1s'}}\n{more}"
        );
        fs::write(folder.file("rules.yaml"), rules).unwrap();
    };
    write("");
    let running = server(|config| config.rules = vec![folder.file("rules.yaml")]);
    let all = ["allowed", "denied", "shadow_denied", "unlimited", "blocked", "fallback"];
    let check = |rule: &str| {
        let text = scrape(&running, "*/*").1;
        for outcome in all {
            let name =
                format!("sluicegate_rule_decisions_total{{rule=\"{rule}\",outcome=\"{outcome}\"}}");
            assert_eq!(value(&text, &name), 0.0);
        }
        let near = format!("sluicegate_rule_near_limit_total{{rule=\"{rule}\"}}");
        assert_eq!(value(&text, &near), 0.0);
    };
    check("login");
    write("  - {name: added, match: {path: /added}, key: client, policy: 'gcra:1/1s'}\n");
    assert_eq!(Client::connect(&running).post("/admin/reload", "").status, 200);
    check("added");
}

/// Many rules come in many parts: each rule occurs once, in order, in both families.
#[test]
fn metrics_of_many_rules_are_whole() {
    let folder = TempDir::new();
    let names: Vec<_> = (100..500).map(|number| format!("rule{number}")).collect();
    let rules = names.iter().map(|name| {
        format!("  - {{name: {name}, match: {{path: /{name}}}, policy: 'gcra:1/1s'}}\n")
    });
    fs::write(folder.file("rules.yaml"), format!("rules:\n{}", rules.collect::<String>())).unwrap();
    let running = server(|config| config.rules = vec![folder.file("rules.yaml")]);
    for (accept, end) in [("*/*", "# EOF\n"), ("text/plain", "\n")] {
        let text = scrape(&running, accept).1;
        assert!(text.ends_with(end));
        for (family, events) in
            [("sluicegate_rule_decisions", 6), ("sluicegate_rule_near_limit", 1)]
        {
            let samples = format!("{family}_total{{rule=\"");
            let samples: Vec<_> = text.lines().filter_map(|it| it.strip_prefix(&samples)).collect();
            let rules: Vec<_> =
                samples.iter().filter_map(|it| Some(it.split_once('"')?.0)).collect();
            let expected: Vec<_> = names.iter().flat_map(|name| vec![&**name; events]).collect();
            assert_eq!(rules, expected, "{family}");
            let heads = text.lines().filter(|it| it.starts_with(&format!("# HELP {family}")));
            assert_eq!(heads.count(), 1);
        }
    }
}

/// Commands of a pipeline take as long as the pipeline; one that waits as long as it waits.
#[test]
fn resp_durations_count_every_command_once() {
    let running = server(|_| {});
    let mut peer = running.connect();
    peer.send("SG.TAKE k gcra:1000/1h\r\n".repeat(300) + "PING\r\n");
    (0..301).for_each(|_| drop(peer.read_reply()));
    for _ in 0..3 {
        assert_eq!(peer.integers("SG.WAIT w gcra:10/1s:burst=1 TIMEOUT 30000000")[0], 1);
    }
    let text = scrape(&running, "*/*").1;
    let count =
        |suffix: &str| value(&text, &format!("sluicegate_request_duration_seconds_{suffix}"));
    let requests = value(&text, r#"sluicegate_requests_total{protocol="resp"}"#);
    assert_eq!((requests, count(r#"count{protocol="resp"}"#)), (304.0, 304.0));
    let slow = count(r#"count{protocol="resp"}"#) - count(r#"bucket{protocol="resp",le="0.05"}"#);
    assert!(slow >= 2.0, "two of three waited 100 ms: {text}");
    assert!(count(r#"sum{protocol="resp"}"#) >= 0.2, "{text}");
}
