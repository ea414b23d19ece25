//! Spans of a running server, in a collector that decodes them with OpenTelemetry's own types, for callers that have
//! spans of OpenTelemetry's SDK.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

use serde_json::{Value, json};
use sluicegate_testing::{Engine, Server as Redis, TempDir, eventually, free_port};

use super::{root, tool};
use crate::{run::sluicegate, server::Server};

/// Envoy's service denies the second request of a user.
const RULES: &str = "
domain: web
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
";
/// No span has these.
const SECRETS: [&str; 3] = ["secret-key", "secret-user", "secret-password"];

/// A script of this folder, until dropped.
fn start(script: &str, arguments: &[&str]) -> Child {
    let script = root().join("crates/cli/tests/platform").join(script);
    // Killed with this thread, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(tool("opentelemetry/bin/python")).arg(script);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// A collector, and the spans that it has received.
struct Collector {
    child: Child,
    port: u16,
    lines: Receiver<String>,
    spans: Vec<Value>,
    /// The bytes of all requests.
    bytes: String,
}

impl Collector {
    fn start(port: u16) -> Self {
        let mut child = start("collector.py", &[&port.to_string()]);
        let (received, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|it| received.send(it))
        });
        let port = lines.recv().unwrap().parse().unwrap();
        Self { child, port, lines, spans: Vec::new(), bytes: String::new() }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The first span with these members, if it has come.
    fn find_any(&mut self, expected: &[(&str, &Value)]) -> Option<Value> {
        for line in self.lines.try_iter() {
            let mut line: Value = serde_json::from_str(&line).unwrap();
            match line["bytes"].take() {
                Value::String(bytes) => self.bytes.push_str(&bytes),
                _ => self.spans.push(line),
            }
        }
        let is_it = |span: &&Value| expected.iter().all(|(name, value)| span[name] == **value);
        self.spans.iter().find(is_it).cloned()
    }

    /// The same, once it has come.
    fn find(&mut self, expected: &[(&str, &Value)]) -> Value {
        eventually("the collector has the span", || {
            self.find_any(expected).ok_or_else(|| self.spans.clone())
        })
    }

    /// The round trips within a span, in their order.
    fn round_trips(&mut self, of: &Value) -> Vec<Value> {
        self.find(&[("parent", &of["span"])]);
        self.spans.iter().filter(|it| it["parent"] == of["span"]).cloned().collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Callers with spans of their own.
struct Callers {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Callers {
    fn start(server: &Server) -> Self {
        let mut child = start("caller.py", &[&server.http, &server.grpc]);
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, answers }
    }

    /// The identities of the span of a caller, and the status of its request.
    fn call(&mut self, protocol: &str, sampled: bool, body: &str) -> Value {
        writeln!(
            self.orders,
            "{}",
            json!({"protocol": protocol, "sampled": sampled, "body": body})
        )
        .unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A take over HTTP of one unit of two a day.
fn body(key: &str) -> String {
    json!({"key": key, "policy": "fixed-window:1/1d"}).to_string()
}

/// The head of the response to a take, whose request has `fields`.
fn take(server: &Server, key: &str, fields: &str) -> String {
    let body = body(key);
    let mut stream = TcpStream::connect(&server.http).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/take HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{fields}\r\n{body}"
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The number of spans that were dropped.
fn dropped(server: &Server) -> u64 {
    let mut stream = TcpStream::connect(&server.http).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let name = "sluicegate_trace_spans_dropped_total ";
    reply.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

#[test]
fn otlp_spans_continue_the_traces_of_callers() {
    let redis = Redis::with(Engine::Redis70, &["--requirepass", "secret-password"]);
    let (folder, mut collector) = (TempDir::new(), Collector::start(0));
    let rules = folder.path().join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let store = format!("redis://:secret-password@127.0.0.1:{}", redis.port());
    // On a busy machine the deadline would pass.
    let arguments =
        ["--store", &store, "--store-deadline", "30s", "--rules", rules.to_str().unwrap()];
    let traces = ["--otlp", &collector.url(), "--otlp-sample", "0"];
    let mut command = sluicegate();
    command
        .env("OTEL_SERVICE_NAME", "edge")
        .env("OTEL_RESOURCE_ATTRIBUTES", "zone=b,service.name=x");
    let server = Server::run(&mut command, "127.0.0.1", &[&arguments[..], &traces].concat());
    let mut callers = Callers::start(&server);

    for (is_allowed, status) in [(true, 200), (false, 429)] {
        let caller = callers.call("http", true, &body("secret-key"));
        assert_eq!(caller["status"], status);
        let span = collector.find(&[("trace", &caller["trace"]), ("parent", &caller["span"])]);
        assert_eq!(span["name"], "POST /v1/take");
        assert_eq!(span["kind"], "SPAN_KIND_SERVER");
        let found = &span["attributes"];
        for (name, expected) in [
            ("http.request.method", json!("POST")),
            ("http.route", json!("/v1/take")),
            ("url.path", json!("/v1/take")),
            ("http.response.status_code", json!(status)),
            ("sluicegate.policy", json!("fixed-window:1/1d")),
            ("sluicegate.cost", json!(1)),
            ("sluicegate.allowed", json!(is_allowed)),
            ("sluicegate.source", json!("store")),
        ] {
            assert_eq!(found[name], expected, "{name} of {span}");
        }
        let denials = span["events"].as_array().unwrap();
        assert_eq!(denials.len(), usize::from(!is_allowed), "{span}");
        for denial in denials {
            let found = &denial["attributes"];
            for (name, expected) in [
                ("sluicegate.limit", json!("fixed-window:1/1d")),
                ("sluicegate.capacity", json!(1)),
                ("sluicegate.remaining", json!(0)),
                ("sluicegate.cost", json!(1)),
                ("sluicegate.shadow", json!(false)),
            ] {
                assert_eq!(found[name], expected, "{name} of {span}");
            }
            let tag = found["sluicegate.key_tag"].as_str().unwrap();
            assert!(tag.len() == 11 && tag.starts_with('#'), "{span}");
        }
        let wait = found["sluicegate.retry_after_us"].as_i64();
        assert_eq!(
            wait.is_some_and(|it| (1..=86_400_000_000).contains(&it)),
            !is_allowed,
            "{span}"
        );
        let resource = &span["resource"];
        assert_eq!((&resource["service.name"], &resource["zone"]), (&json!("edge"), &json!("b")));
        assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
        for trip in collector.round_trips(&span) {
            assert_eq!(trip["trace"], caller["trace"]);
            assert_eq!(trip["kind"], "SPAN_KIND_CLIENT");
            assert!(["EVAL", "EVALSHA"].map(Value::from).contains(&trip["name"]), "{trip}");
            let found = &trip["attributes"];
            assert_eq!(found["db.system.name"], "redis");
            assert_eq!(found["db.operation.name"], trip["name"]);
            assert_eq!(found["server.address"], "127.0.0.1");
            assert_eq!(found["server.port"], redis.port());
            assert!(trip["nanoseconds"].as_u64() <= span["nanoseconds"].as_u64());
        }
    }

    // The decision of a call with several descriptors is the first denial.
    for (is_allowed, code, users) in
        [(true, 1, "secret-user"), (false, 2, "secret-user"), (false, 2, "secret-user,new")]
    {
        let caller = callers.call("grpc", true, users);
        assert_eq!(caller["status"], code);
        let span = collector.find(&[("trace", &caller["trace"]), ("parent", &caller["span"])]);
        assert_eq!(span["name"], "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let found = &span["attributes"];
        for (name, expected) in [
            ("rpc.system", json!("grpc")),
            ("rpc.service", json!("envoy.service.ratelimit.v3.RateLimitService")),
            ("rpc.method", json!("ShouldRateLimit")),
            ("rpc.grpc.status_code", json!(0)),
            ("sluicegate.rule", json!("web.user")),
            ("sluicegate.allowed", json!(is_allowed)),
        ] {
            assert_eq!(found[name], expected, "{name} of {span}");
        }
        // One of the descriptors is denied.
        let denials = span["events"].as_array().unwrap();
        assert_eq!(denials.len(), usize::from(!is_allowed), "{span}");
        for denial in denials {
            let found = &denial["attributes"];
            assert_eq!(found["sluicegate.rule"], "web.user", "{span}");
            assert_eq!(found["sluicegate.rules_version"], 1, "{span}");
        }
        assert!(!collector.round_trips(&span).is_empty());
    }

    // Neither a caller that does not record its span nor, with a ratio of 0, one without a span has any.
    let unsampled = callers.call("http", false, &body("secret-key"));
    assert_eq!(unsampled["status"], 429);
    assert!(take(&server, "secret-key", "").starts_with("HTTP/1.0 429"));
    let last = callers.call("http", true, &body("secret-key"));
    collector.find(&[("parent", &last["span"])]);
    assert!(collector.spans.iter().all(|it| it["trace"] != unsampled["trace"]));
    let roots = collector.spans.iter().filter(|it| it["parent"] == "").count();
    assert_eq!(roots, 0, "{:?}", collector.spans);
    for secret in SECRETS {
        assert!(!collector.bytes.contains(secret), "{secret}");
    }
    println!(
        "figure: OpenTelemetry: {} spans in {} bytes",
        collector.spans.len(),
        collector.bytes.len()
    );
}

#[test]
fn otlp_commands_and_gate_are_roots_with_their_round_trips() {
    let mut redis = Redis::start(Engine::Redis70);
    let (folder, mut collector) = (TempDir::new(), Collector::start(0));
    let rules = folder.path().join("rules.yaml");
    let text = "rules: [{name: login, match: {path: /login}, key: client, policy: 'gcra:5/1h'}]";
    fs::write(&rules, text).unwrap();
    let (url, store, rules) = (collector.url(), redis.url(), rules.to_str().unwrap());
    let server = Server::start(&[
        "--otlp",
        &url,
        "--otlp-sample",
        "1",
        "--store",
        &store,
        "--store-deadline",
        "5s",
        "--rules",
        rules,
        "--requirepass",
        "secret-password",
    ]);
    let address = server.address.strip_prefix("resp://").unwrap();
    let mut client = BufReader::new(TcpStream::connect(address).unwrap());
    // Sends commands, and reads the lines of their replies.
    let mut commands = |commands: &str, lines: usize| {
        client.get_mut().write_all(commands.as_bytes()).unwrap();
        let mut reply = String::new();
        (0..lines).for_each(|_| assert!(client.read_line(&mut reply).unwrap() > 0));
        reply
    };

    assert_eq!(commands("AUTH secret-password\r\n", 1), "+OK\r\n");
    let login = collector.find(&[("name", &json!("AUTH"))]);
    assert_eq!((&login["parent"], &login["kind"]), (&json!(""), &json!("SPAN_KIND_SERVER")));

    commands("SG.TAKE secret-key fixed-window:1/1d\r\n", 8);
    let take = collector.find(&[("name", &json!("SG.TAKE")), ("parent", &json!(""))]);
    assert_eq!(take["attributes"]["sluicegate.policy"], "fixed-window:1/1d");
    assert_eq!(take["attributes"]["sluicegate.allowed"], true);
    let trips = collector.round_trips(&take);
    assert!(trips.iter().all(|it| it["trace"] == take["trace"]), "{trips:?}");

    let three = "SG.TAKE secret-key fixed-window:1/1d\r\n".repeat(3);
    commands(&format!("{three}PING\r\n"), 25);
    let pipeline = collector.find(&[("name", &json!("pipeline"))]);
    let commands_of = |span: &Value| span["attributes"]["sluicegate.commands"].as_i64().unwrap();
    assert_eq!((commands_of(&take), commands_of(&pipeline)), (1, 4));
    assert!(pipeline["attributes"].get("sluicegate.policy").is_none(), "{pipeline}");

    let mut stream = TcpStream::connect(&server.http).unwrap();
    let head =
        "GET /v1/gate HTTP/1.0\r\nHost: localhost\r\nX-Forwarded-Uri: /login?secret-user\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
    let gate = collector.find(&[("name", &json!("GET /v1/gate"))]);
    let found = &gate["attributes"];
    assert_eq!(
        (&found["sluicegate.rule"], &found["url.path"]),
        (&json!("login"), &json!("/v1/gate"))
    );
    assert!(!collector.round_trips(&gate).is_empty());

    // A round trip that fails has a kind of error, and no text.
    redis.kill();
    let mut failed = Vec::new();
    eventually("a round trip has failed", || {
        commands("SG.TAKE secret-user gcra:9/1h\r\n", 8);
        let error = json!("STATUS_CODE_ERROR");
        failed = vec![collector.find_any(&[("status", &error)]).ok_or(())?];
        Ok::<_, ()>(())
    });
    assert_eq!(failed[0]["attributes"]["error.type"], "unavailable", "{failed:?}");
    for secret in SECRETS {
        assert!(!collector.bytes.contains(secret), "{secret}");
    }
}

#[test]
fn otlp_invalid_traceparent_begins_a_trace() {
    let mut collector = Collector::start(0);
    let server = Server::start(&["--otlp", &collector.url(), "--otlp-sample", "1"]);
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let valid = format!("traceparent: 00-{trace}-{span}-01\r\n");
    let reply = take(&server, "k", &format!("{valid}tracestate: a=1,b=2\r\n"));
    assert!(reply.starts_with("HTTP/1.0 200"), "{reply}");
    let found = collector.find(&[("trace", &json!(trace))]);
    assert_eq!((&found["parent"], &found["state"]), (&json!(span), &json!("a=1,b=2")));
    let long = format!("traceparent: 00-{trace}-{span}-01-{}\r\n", "x".repeat(10_000));
    for (number, fields) in [
        format!("traceparent: 00-{trace}-{span}-1\r\n"),
        format!("traceparent: 00-{}-{span}-01\r\n", trace.to_uppercase()),
        format!("traceparent: 00-{trace}-0000000000000000-01\r\n"),
        format!("traceparent: ff-{trace}-{span}-01\r\n"),
        "traceparent: \u{fffd}\r\n".to_owned(),
        format!("{valid}{valid}"),
        long,
    ]
    .into_iter()
    .enumerate()
    {
        let reply = take(&server, &format!("k{number}"), &fields);
        assert!(reply.starts_with("HTTP/1.0 200"), "{fields}: {reply}");
        eventually("the collector has a root for it", || {
            let _ = collector.find(&[("parent", &json!(""))]);
            let roots = collector.spans.iter().filter(|it| it["parent"] == "").count();
            if roots == number + 1 { Ok(()) } else { Err(collector.spans.clone()) }
        });
    }
    assert_eq!(collector.spans.iter().filter(|it| it["trace"] == trace).count(), 1);

    // A server that stops sends its pending spans.
    let last = "5bf92f3577b34da6a3ce929d0e0e4736";
    take(&server, "k", &format!("traceparent: 00-{last}-{span}-01\r\n"));
    server.stop("-TERM");
    collector.find(&[("trace", &json!(last))]);
}

#[test]
fn otlp_unavailable_collector_costs_spans_and_no_decision() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let server = Server::start(&["--otlp", &url, "--otlp-sample", "1"]);
    eventually("spans are dropped", || {
        assert!(take(&server, "k", "").starts_with("HTTP/1.0 "));
        let dropped = dropped(&server);
        if dropped >= 10 { Ok(()) } else { Err(dropped) }
    });
    let collector = Collector::start(port);
    eventually("spans come again", || {
        assert!(take(&server, "k", "").starts_with("HTTP/1.0 429"));
        let is_any = collector.lines.try_iter().next().is_some();
        if is_any { Ok(()) } else { Err(()) }
    });
    let log = server.stop("-INT");
    let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("the OpenTelemetry collector is available again"), 1, "{log}");
    assert_eq!(lines("the OpenTelemetry collector is unavailable"), 1, "{log}");
}
