//! `/v1/gate`, as a proxy asks it, and behind a real nginx.

use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use super::client::{Client, server};
use crate::harness::{Folder, Running, now};

const RULES: &str = "
rules:
  - name: login
    match: {method: POST, path: /login}
    key: client
    policy: fixed-window:2/1h
  - name: closed
    match: {path: /closed}
    block: true
";

fn with_rules(folder: &Folder) -> Running {
    let path = folder.file("rules.yaml");
    fs::write(&path, RULES).unwrap();
    server(|config| config.rules = vec![path])
}

#[test]
fn a_proxy_is_told_by_the_rules() {
    let folder = Folder::new();
    let running = with_rules(&folder);
    let mut client = Client::connect(&running);
    let mut ask = |method: &str, path: &str, from: &str| {
        let fields = format!(
            "X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {path}\r\nX-Forwarded-For: {from}\r\n"
        );
        client.ask("GET", "/v1/gate", &fields);
        client.hear()
    };
    let heard = ask("POST", "/login?next=1", "203.0.113.7");
    assert_eq!((heard.status, heard.field("ratelimit")), (200, r#""login";r=1;t=3600"#));
    assert_eq!(ask("POST", "/login", "203.0.113.7").status, 200);
    let heard = ask("POST", "/login", "198.51.100.1, 203.0.113.7");
    assert_eq!((heard.status, heard.field("retry-after")), (429, "3600"), "the front is invented");
    assert_eq!(heard.json()["violated-policies"], serde_json::json!(["login"]));
    assert_eq!(ask("POST", "/login", "203.0.113.8").status, 200);
    assert_eq!(ask("GET", "/login", "203.0.113.7").status, 200);
    assert_eq!(ask("GET", "/other", "203.0.113.7").field("ratelimit"), "");
    assert_eq!(ask("GET", "/closed", "203.0.113.7").json()["title"], "Blocked");
    let heard = client.get("/v1/gate");
    assert_eq!(heard.status, 422);
    assert!(heard.detail().contains("`X-Forwarded-Uri: /path?query` would do"));

    // Named policies are there for the verbs as well, and the rules may be read again.
    let text = format!("policies: {{plan: 'fixed-window:7/1h'}}\n{RULES}");
    fs::write(folder.file("rules.yaml"), text).unwrap();
    let heard = client.post("/admin/reload", "");
    assert_eq!((heard.status, heard.json()["rules"].as_u64()), (200, Some(2)));
    let heard = client.post("/v1/take", r#"{"key":"k","policy":"@plan"}"#);
    assert_eq!(heard.json()["remaining"], 6);
    let heard = client.post("/v1/take", r#"{"key":"k","policy":"@none"}"#);
    assert_eq!(heard.status, 422, "{}", heard.detail());
    fs::write(folder.file("rules.yaml"), "rules: [").unwrap();
    assert_eq!(client.post("/admin/reload", "").status, 422);
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    for line in [
        r#"sluicegate_rule_decisions_total{rule="login",outcome="denied"} 1"#,
        "sluicegate_rules_ok 0",
        "sluicegate_rules 2",
    ] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
}

/// nginx, until dropped.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The configuration of `examples/gate/nginx.conf`, with other addresses.
#[test]
fn nginx_asks_before_it_serves() {
    let folder = Folder::new();
    let running = with_rules(&folder);
    // Both are taken at once, so that they differ.
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [port, app] = free.map(|listener| listener.local_addr().unwrap());
    let example = fs::read_to_string(crate::harness::root().join("examples/gate/nginx.conf"));
    let config = example
        .unwrap()
        .replace("127.0.0.1:8080", &running.http.unwrap().to_string())
        .replace("127.0.0.1:8000", &port.to_string())
        .replace("127.0.0.1:3000", &app.to_string());
    let config = format!(
        "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log; events {{}}\n\
         http {{ access_log off; client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
         fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u; scgi_temp_path {0}/s;\n{config}\n\
         server {{ listen {app}; location / {{ return 200 passed; }} }} }}",
        folder.file("").display()
    );
    fs::write(folder.file("nginx.conf"), config).unwrap();
    let child = Command::new("nginx")
        .arg("-c")
        .arg(folder.file("nginx.conf"))
        .arg("-e")
        .arg(folder.file("error.log"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("nginx: {error}; `cargo xtask test` installs it"));
    let _nginx = Nginx(child);
    let start = now();
    let behind = Running::elsewhere(port, Some(port));
    while std::net::TcpStream::connect(port).is_err() {
        let log = || fs::read_to_string(folder.file("error.log"));
        assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", log());
        std::thread::yield_now();
    }
    let ask = |from: &str| {
        // It closes after what was an error to it.
        let mut client = Client::connect(&behind);
        client.ask("POST", "/login", &format!("Content-Length: 0\r\nX-Forwarded-For: {from}\r\n"));
        client.hear()
    };
    // Whatever the client says of itself, nginx says where it comes from.
    let statuses = ["1.1.1.1", "2.2.2.2", "3.3.3.3"].map(|from| ask(from).status);
    assert_eq!(statuses, [200, 200, 429]);
    let heard = ask("4.4.4.4");
    assert_eq!((heard.status, heard.field("ratelimit")), (429, r#""login";r=0;t=3600"#));
    assert!(!heard.field("retry-after").is_empty());
}
