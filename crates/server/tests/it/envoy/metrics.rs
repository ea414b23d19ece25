//! Metrics of descriptors: by protocol and outcome, and by their path in the tree.

use super::{
    client::{call, connect, descriptor, request},
    rules::service,
};
use crate::{
    child_process::process,
    harness::{any_port, now, size},
    http::client::Client,
};

/// A rule whose metrics carry the values of requests.
const DETAILED: &str = "
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 2}
";

#[test]
fn metrics_count_descriptors_by_their_path() {
    let (service, _folder) = service(
        "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: UNIT, requests_per_unit: 2}
  - key: plan
    value: free
    descriptors:
      - key: path
        value: /a*
        rate_limit: {unit: UNIT, requests_per_unit: 5}
      - key: zone
        detailed_metric: true
        rate_limit: {unit: UNIT, requests_per_unit: 1}
  - key: region
    value_to_metric: true
    descriptors:
      - key: tried
        shadow_mode: true
        rate_limit: {unit: UNIT, requests_per_unit: 1}
  - key: root
    rate_limit: {unlimited: true}
  - key: eve
    rate_limit: {unit: UNIT, requests_per_unit: 0}
",
    );
    let take = |entries: &[(&str, &str)], times: usize| {
        for _ in 0..times {
            service.should_rate_limit(request(vec![descriptor(entries)])).unwrap();
        }
    };
    take(&[("user", "secret-user")], 3);
    take(&[("plan", "free"), ("path", "/about")], 2);
    take(&[("plan", "free"), ("zone", "z1")], 2);
    take(&[("region", "eu"), ("tried", "x")], 3);
    take(&[("root", "x")], 1);
    take(&[("eve", "x")], 1);
    take(&[("nobody", "knows")], 1);
    service.should_rate_limit(request(vec![])).unwrap_err();

    let text = String::from_utf8(Client::connect(&service.server).get("/metrics").body).unwrap();
    let assert_line = |line: String| assert!(text.contains(&line), "`{line}` is not in:\n{text}");
    for (rule, outcome, count) in [
        ("shop.user", "allowed", 2),
        ("shop.user", "denied", 1),
        ("shop.plan_free.path_/a*", "allowed", 2),
        ("shop.plan_free.zone_z1", "denied", 1),
        ("shop.region_eu.tried", "allowed", 1),
        ("shop.region_eu.tried", "shadow_denied", 2),
        ("shop.root", "unlimited", 1),
        ("shop.eve", "blocked", 1),
    ] {
        assert_line(format!(
            "sluicegate_rule_decisions_total{{rule=\"{rule}\",outcome=\"{outcome}\"}} {count}\n"
        ));
    }
    assert_line("sluicegate_rule_near_limit_total{rule=\"shop.user\"} 1\n".to_owned());
    assert_line("sluicegate_rule_near_limit_total{rule=\"shop.root\"} 0\n".to_owned());
    for (labels, count) in [("allowed", 5), ("denied", 2)] {
        assert_line(format!(
            "sluicegate_decisions_total{{protocol=\"grpc\",outcome=\"{labels}\",source=\"memory\"}} {count}\n"
        ));
    }
    for name in ["requests_total", "request_duration_seconds_count"] {
        assert_line(format!("sluicegate_{name}{{protocol=\"grpc\"}} 14\n"));
    }
    assert_line("sluicegate_request_errors_total 1\n".to_owned());
    assert!(!text.contains("secret-user"));
}

/// Values of strangers, as long as they like, in names of metrics.
#[test]
#[cfg(target_os = "linux")]
fn metrics_long_client_values_cost_little() {
    let name = "envoy::metrics::metrics_long_client_values_cost_little";
    let process = process(name, 1024, |config, folder| {
        let file = folder.join("rules.yaml");
        std::fs::write(&file, DETAILED).unwrap();
        config.rules = vec![file];
        (config.http.address, config.envoy.address) = (Some(any_port()), Some(any_port()));
        config.memory.max_bytes = 16 << 20;
    });
    let Some(process) = process else { return };
    let (runtime, channel) = connect(process.server.grpc.unwrap());
    let before = process.resident();
    let many = size("SLUICEGATE_LABELS", 5_000);
    for number in 0..many {
        let value =
            format!("{number}{}", "\u{e9}\"\\".repeat(if many > 5_000 { 15_000 } else { 500 }));
        call(&runtime, &channel, request(vec![descriptor(&[("user", &value)])])).unwrap();
    }
    let start = now();
    let body = Client::connect(&process.server).get("/metrics").body;
    let lasted = start.elapsed();
    let resident = process.resident();
    let text = String::from_utf8(body).unwrap();
    let label = |line: &str| {
        let start = line.find("rule=\"")? + 6;
        let end = line.find("\",outcome=").or_else(|| line.find("\"} "))?;
        Some(line[start..end].replace("\\\\", "/").replace("\\\"", "'").len())
    };
    let longest = text.lines().filter_map(label).max().unwrap();
    println!(
        "figure: {many} long values of strangers: /metrics has {} KiB in {lasted:?}, its longest label \
         {longest} bytes; {resident} KiB resident, {before} before",
        text.len() / 1024
    );
    // The code of a build for tests is larger than the program's.
    let code = if cfg!(debug_assertions) { before } else { 0 };
    assert!(resident <= 64 * 1024 + code, "{resident} KiB");
    assert!(longest <= 128 && longest > 100, "{longest} bytes");
    assert!(text.len() < 8 << 20, "{} bytes", text.len());
    assert!(text.contains("rule=\"(others)\"") && text.ends_with("# EOF\n"));
}
