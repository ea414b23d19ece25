//! What is counted, as Prometheus reads it.

use super::client::{Client, server};

/// The value of a metric.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("`{name}` is not in:\n{text}")).parse().unwrap()
}

#[test]
fn what_was_decided_is_counted() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let secret = "a-key-that-is-told-to-nobody";
    for _ in 0..3 {
        client.post("/v1/take", format!(r#"{{"key":"{secret}","policy":"gcra:2/1h"}}"#));
    }
    client.post("/v1/take", "{");
    running.connect().integers("SG.TAKE k gcra:1/1h");
    let heard = client.get("/metrics");
    assert_eq!(
        heard.field("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let text = String::from_utf8(heard.body).unwrap();
    for (name, expected) in [
        (r#"sluicegate_decisions_total{face="http",outcome="allowed",source="memory"}"#, 2.0),
        (r#"sluicegate_decisions_total{face="http",outcome="denied",source="memory"}"#, 1.0),
        (r#"sluicegate_decisions_total{face="resp",outcome="allowed",source="memory"}"#, 1.0),
        (r#"sluicegate_decisions_total{face="grpc",outcome="allowed",source="memory"}"#, 0.0),
        (r#"sluicegate_requests_total{face="http"}"#, 5.0),
        (r#"sluicegate_request_seconds_count{face="http"}"#, 4.0),
        (r#"sluicegate_request_seconds_bucket{le="+Inf",face="http"}"#, 4.0),
        ("sluicegate_request_errors_total", 1.0),
        ("sluicegate_keys", 2.0),
        (r#"sluicegate_clients_closed_total{why="slow"}"#, 0.0),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
    assert!(value(&text, "sluicegate_state_bytes") > 0.0);
    assert!(!text.contains(secret), "a key is never told");
    assert!(text.ends_with("# EOF\n"));
    // Whatever is told is documented.
    let pages = std::fs::read_to_string(crate::harness::root().join("docs/metrics.md")).unwrap();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(pages.contains(name), "`{name}` is not in docs/metrics.md");
    }
}
