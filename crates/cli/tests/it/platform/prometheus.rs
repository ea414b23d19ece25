//! The alerts, and the dashboard for Grafana, with a real Prometheus that scrapes running servers.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use sluicegate_testing::{Engine, Server as Redis, TempDir, eventually, free_port};

use super::{anchors, blocks, grafana, read, root, succeed};
use crate::server::Server;

const RUNBOOKS: &str = "https://github.com/sluicegate/sluicegate/blob/main/docs/operations.md#";

const RULES: &str = "
rules:
  - {name: login, match: {path: /login}, key: client, policy: 'fixed-window:5/1h'}
  - {name: trial, match: {path: /login}, key: client, policy: 'fixed-window:2/1h', shadow: true}
";

/// A Prometheus until dropped.
struct Prometheus {
    child: Child,
    address: String,
    folder: TempDir,
}

impl Prometheus {
    /// One that scrapes `targets` by the configuration of `docs/metrics.md`, and loads the alerts by that of
    /// `docs/operations.md`.
    fn start(targets: &[&str]) -> Self {
        let folder = TempDir::new();
        let (file, log) = (folder.path().join("prometheus.yml"), folder.path().join("log"));
        fs::write(&file, configuration(targets)).unwrap();
        succeed(Command::new("promtool").args(["check", "config"]).arg(&file));
        let address = format!("127.0.0.1:{}", free_port());
        let log = fs::File::create(log).unwrap();
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "prometheus", "--config.file"]).arg(&file);
        command.arg("--storage.tsdb.path").arg(folder.path().join("data"));
        command.args(["--web.listen-address", &address, "--log.level", "warn"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let mut prometheus = Self { child, address, folder };
        eventually("Prometheus is ready", || {
            let log = fs::read_to_string(prometheus.folder.path().join("log")).unwrap();
            assert!(prometheus.child.try_wait().unwrap().is_none(), "it ended: {log}");
            let reply = get(&prometheus.address, "/-/ready", "");
            if reply.is_ok_and(|it| it.starts_with("HTTP/1.0 200")) { Ok(()) } else { Err(log) }
        });
        prometheus
    }

    /// The data of a reply of the API, or its error.
    fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value, String> {
        let parameters =
            parameters.iter().map(|(name, value)| format!("{name}={}", escaped(value)));
        let target = format!("/api/v1/{path}?{}", parameters.collect::<Vec<_>>().join("&"));
        let reply = get(&self.address, &target, "").map_err(|error| error.to_string())?;
        let (_, body) = reply.split_once("\r\n\r\n").ok_or("no body")?;
        let mut reply: Value = serde_json::from_str(body).map_err(|error| error.to_string())?;
        if reply["status"] == "success" { Ok(reply["data"].take()) } else { Err(body.to_owned()) }
    }

    /// The samples of an instant query.
    fn query(&self, query: &str) -> Vec<f64> {
        let data =
            self.api("query", &[("query", query)]).unwrap_or_else(|it| panic!("{query}: {it}"));
        let samples = match data["resultType"].as_str() {
            Some("scalar") => vec![data["result"][1].clone()],
            _ => {
                data["result"].as_array().unwrap().iter().map(|it| it["value"][1].clone()).collect()
            }
        };
        samples.iter().map(|it| it.as_str().unwrap().parse().unwrap()).collect()
    }

    /// Fails unless a range query succeeds.
    fn query_range(&self, query: &str) {
        let now = self.query("time()")[0];
        let (start, end) = (format!("{}", now - 30.0), format!("{now}"));
        let parameters = [("query", query), ("start", &start), ("end", &end), ("step", "1")];
        self.api("query_range", &parameters).unwrap_or_else(|error| panic!("{query}: {error}"));
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The configuration in a page that contains `text`.
fn documented(page: &str, text: &str) -> String {
    let page = read(page);
    let mut blocks = blocks(&page, "yaml").into_iter();
    let found = blocks.find(|it| it.starts_with("# prometheus.yml\n") && it.contains(text));
    found.unwrap_or_else(|| panic!("no block with {text}")).to_owned()
}

/// The documented configuration, with short intervals.
fn configuration(targets: &[&str]) -> String {
    let scrape = documented("docs/metrics.md", "scrape_configs:");
    let (target, folder) = ("[\"127.0.0.1:8080\"]", "/etc/prometheus/sluicegate");
    let alerts = documented("docs/operations.md", "rule_files:");
    assert!(scrape.contains(target) && alerts.contains(folder));
    let scrape = scrape.replace(target, &format!("{targets:?}"));
    let alerts = alerts.replace(folder, root().join("dist/prometheus").to_str().unwrap());
    let intervals = "{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}";
    format!("global: {intervals}\n{scrape}\n{alerts}\n")
}

/// The reply to a GET, by HTTP/1.0.
fn get(address: &str, target: &str, fields: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {target} HTTP/1.0\r\nHost: localhost\r\n{fields}\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// `text` as a value in a query string.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Takes over RESP, takes over HTTP, and logins at the gate; most of them are denied.
fn load(server: &Server) {
    let address = server.address.strip_prefix("resp://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all("SG.TAKE k gcra:2/1h\r\n".repeat(20).as_bytes()).unwrap();
    stream.write_all(b"QUIT\r\n").unwrap();
    assert!(BufReader::new(stream).lines().map_while(Result::ok).last().is_some());
    let body = r#"{"key":"k","policy":"gcra:2/1h"}"#;
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&server.http).unwrap();
        let head = format!(
            "POST /v1/take HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}",
            body.len()
        );
        write!(stream, "{head}\r\nHost: localhost\r\n\r\n{body}").unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
        let reply = get(&server.http, "/v1/gate", "X-Forwarded-Uri: /login\r\n").unwrap();
        assert!(["200", "429"].contains(&&reply[9..12]), "{reply}");
    }
}

#[test]
fn prometheus_alerts_fire_when_they_should() {
    let promtool = |command: &str, file: &str| {
        let mut promtool = Command::new("promtool");
        succeed(promtool.current_dir(root()).args([command, "rules", file]));
    };
    promtool("check", "dist/prometheus/alerts.yaml");
    promtool("test", "dist/prometheus/alerts_test.yaml");
    let tests = read("dist/prometheus/alerts_test.yaml");
    for alert in
        read("dist/prometheus/alerts.yaml").lines().filter_map(|it| it.split_once("- alert: "))
    {
        assert!(tests.contains(&format!("alertname: {}\n", alert.1)), "{} has no test", alert.1);
    }
}

#[test]
fn prometheus_answers_every_query_of_dashboard_and_alerts() {
    let (folder, redis) = (TempDir::new(), Redis::start(Engine::Redis70));
    let [rules, state] = ["rules.yaml", "state"].map(|name| folder.path().join(name));
    fs::write(&rules, RULES).unwrap();
    let (rules, state) = (rules.to_str().unwrap(), state.to_str().unwrap());
    // On a busy machine the deadline would pass.
    let store = ["--rules", rules, "--store", &redis.url(), "--store-deadline", "30s"];
    let servers =
        [Server::start(&["--rules", rules, "--state-file", state]), Server::start(&store)];
    let prometheus = Prometheus::start(&[&servers[0].http, &servers[1].http]);

    let dashboard = grafana::dashboard();
    let mut missing: Vec<_> = grafana::queries(&dashboard);
    assert!(missing.len() >= 30, "{missing:?}");
    let count = missing.len();
    missing.iter().for_each(|(_, query)| prometheus.query_range(query));
    eventually("every query of the dashboard has data", || {
        servers.iter().for_each(load);
        missing.retain(|(_, query)| !prometheus.query(query).iter().any(|it| it.is_finite()));
        if missing.is_empty() { Ok(()) } else { Err(missing.clone()) }
    });
    for (metric, label, expected) in grafana::variables(&dashboard) {
        let values = prometheus.api(&format!("label/{label}/values"), &[("match[]", &metric)]);
        assert_eq!(values.unwrap().as_array().unwrap().len(), expected, "{metric} {label}");
    }

    let groups = eventually("the alerts are evaluated", || {
        let groups = prometheus.api("rules", &[]).unwrap();
        let rules = groups["groups"][0]["rules"].as_array().unwrap().clone();
        if rules.iter().any(|it| it["health"] == "unknown") { Err(groups) } else { Ok(rules) }
    });
    let runbooks = anchors(&read("docs/operations.md"));
    for alert in &groups {
        let name = alert["name"].as_str().unwrap();
        assert_eq!(
            (&alert["health"], &alert["lastError"]),
            (&"ok".into(), &Value::Null),
            "{alert}"
        );
        prometheus.query_range(alert["query"].as_str().unwrap());
        let texts = &alert["annotations"];
        assert!(["summary", "description"].iter().all(|it| texts[it].is_string()), "{name}");
        let anchor = texts["runbook_url"].as_str().and_then(|it| it.strip_prefix(RUNBOOKS));
        assert!(runbooks.iter().any(|it| Some(it.as_str()) == anchor), "{name}: {anchor:?}");
        assert_ne!(alert["state"], "firing", "{alert}");
    }
    println!(
        "figure: Prometheus: {count} queries of the dashboard have data, {} alerts",
        groups.len()
    );
}
