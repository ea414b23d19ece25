//! Real proxies in front of the gate, with the configurations of `examples/gate` except for the
//! ports.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use sluicegate_server::HeaderName;
use sluicegate_testing::eventually_within;

use super::client::{Client, HttpReply, server};
use crate::harness::{Running, TEST_TIMEOUT, TempDir, any_port, free_address, root};

/// A proxy in front of an application, and its gate.
pub(super) struct Proxy {
    child: Child,
    pub(super) gate: Option<Running>,
    /// Where it takes requests.
    pub(super) front: Running,
    app: SocketAddr,
    pub(super) folder: TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    /// `run` makes the command of the example's text, with its ports, for a folder of its own.
    pub(super) fn start(
        example: &str,
        app: SocketAddr,
        rules: &Path,
        change: impl FnOnce(String) -> String,
        run: impl FnOnce(&TempDir, SocketAddr) -> Command,
    ) -> Self {
        let folder = TempDir::new();
        fs::create_dir(folder.file("work")).unwrap();
        let gate = server(|config| {
            config.rules = vec![rules.to_owned()];
            // The others replace these headers of clients.
            if example == "traefik.yaml" {
                config.http.gate.uri_header = Some(HeaderName::from_static("x-forwarded-uri"));
                config.http.gate.method_header =
                    Some(HeaderName::from_static("x-forwarded-method"));
                config.http.gate.address_header = Some(HeaderName::from_static("x-forwarded-for"));
            }
        });
        let port = free_address();
        let text = fs::read_to_string(root().join("examples/gate").join(example)).unwrap();
        let text = change(text)
            .replace("127.0.0.1:8080", &gate.http.unwrap().to_string())
            .replace("127.0.0.1:8000", &port.to_string())
            .replace("127.0.0.1:3000", &app.to_string())
            // Caddy configures its listening addresses separately.
            .replace(":8000", &format!(":{}", port.port()))
            .replace(":3000", &format!(":{}", app.port()));
        fs::write(folder.file(example), text).unwrap();
        let command = run(&folder, port);
        let log = fs::File::create(folder.file("log")).unwrap();
        // It ends with the test, even if that fails.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args())
            // Traefik reads files in its current directory.
            .env("HOME", folder.file("work"))
            .current_dir(folder.file("work"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let front = Running::at_address(port, Some(port));
        Self { child, gate: Some(gate), front, app, folder }
    }

    /// Sends a request until the proxy serves it: it then counts as the first.
    fn first(&mut self) -> HttpReply {
        eventually_within(TEST_TIMEOUT, "the proxy serves", || {
            let listens = |address| TcpStream::connect(address).is_ok();
            if listens(self.app) && listens(self.front.address) {
                let reply = self.forward("1.1.1.1");
                // Traefik listens before it has read its routes.
                if reply.status != 404 {
                    return Ok(reply);
                }
            }
            let log = fs::read_to_string(self.folder.file("log"));
            assert!(self.child.try_wait().unwrap().is_none(), "it ended: {log:?}");
            Err(log)
        })
    }

    /// A request whose headers claim another address and another path.
    fn forward(&self, from: &str) -> HttpReply {
        let mut client = Client::connect(&self.front);
        let fields = format!(
            "X-Forwarded-For: {from}\r\nX-Forwarded-Uri: /\r\nX-Forwarded-Method: GET\r\n\
             X-Original-URI: /\r\nX-Original-URL: /\r\nX-Original-Method: GET\r\n\
             Forwarded: for={from}\r\nX-Real-IP: {from}\r\nContent-Length: 0\r\n"
        );
        client.send_request("POST", "/login?next=1", &fields);
        client.read_reply()
    }

    /// Five requests pass by the rule for logins, with any headers of the client.
    fn lets_five_through(mut self) {
        assert_eq!(self.first().status, 200);
        let more = ["2.2.2.2", "3.3.3.3", "4.4.4.4", "5.5.5.5", "6.6.6.6", "7.7.7.7"];
        let statuses = more.map(|from| self.forward(from).status);
        let log = fs::read_to_string(self.folder.file("log"));
        assert_eq!(statuses, [200, 200, 200, 200, 429, 429], "{log:?}");
        let reply = self.forward("8.8.8.8");
        assert_eq!((reply.status, reply.field("ratelimit-policy")), (429, r#""login";q=5;w=900"#));
        assert!(reply.field("ratelimit").starts_with(r#""login";r=0;t="#));
        assert!(reply.field("retry-after").parse::<u32>().is_ok_and(|it| it > 0 && it <= 900));
        // Other paths are limited by another rule.
        let mut client = Client::connect(&self.front);
        assert_eq!(client.get("/other").status, 200);
        // Without the gate no request passes.
        self.gate = None;
        let status = self.forward("9.9.9.9").status;
        assert!(status >= 500, "{status}");
    }
}

/// An application that answers every request alike, until the test ends.
fn app() -> SocketAddr {
    let listener = TcpListener::bind(any_port()).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            // A client that has left does not read it.
            let _ = (&stream).write_all(answer);
        }
    });
    address
}

/// A program in `SLUICEGATE_TOOLS`, or in `target/tools`, where `cargo xtask test --all` puts it.
pub(super) fn program(name: &str) -> PathBuf {
    let tools =
        env::var_os("SLUICEGATE_TOOLS").map_or_else(|| "target/tools".into(), PathBuf::from);
    let program = root().join(tools).join("proxies/bin").join(name);
    assert!(program.exists(), "{}: `cargo xtask test --all` installs it", program.display());
    program
}

pub(super) fn nginx(folder: &TempDir, _: SocketAddr) -> Command {
    let mut nginx = Command::new("nginx");
    nginx.arg("-p").arg(folder.file("work")).arg("-c").arg(folder.file("nginx.conf"));
    // A single process, which ends on a signal.
    nginx.args(["-e", "stderr", "-g", "master_process off;"]);
    nginx
}

pub(super) fn caddy(folder: &TempDir, _: SocketAddr) -> Command {
    let mut caddy = Command::new(program("caddy"));
    caddy.args(["run", "--config"]).arg(folder.file("Caddyfile"));
    caddy
}

pub(super) fn traefik(folder: &TempDir, port: SocketAddr) -> Command {
    let mut traefik = Command::new(program("traefik"));
    traefik.arg(format!("--entryPoints.web.address={port}"));
    let file = folder.file("traefik.yaml");
    traefik.arg(format!("--providers.file.filename={}", file.display()));
    traefik
}

fn with_example_rules(
    example: &str,
    app: SocketAddr,
    run: impl FnOnce(&TempDir, SocketAddr) -> Command,
) -> Proxy {
    let rules = root().join("examples/gate/rules.yaml");
    Proxy::start(example, app, &rules, |text| text, run)
}

#[test]
fn nginx_denied_request_is_not_served() {
    with_example_rules("nginx.conf", free_address(), nginx).lets_five_through();
}

/// nginx logs an error for each status of `auth_request` but 2xx, 401 and 403, and closes the client's connection.
#[test]
fn nginx_flood_of_denials_logs_no_errors_and_keeps_connections() {
    let folder = TempDir::new();
    fs::write(
        folder.file("rules.yaml"),
        "
rules:
  - {name: page, match: {path: /page}, key: client, policy: 'fixed-window:1/1h'}
  - {name: closed, match: {path: /closed}, block: true}
  - {name: user, match: {path: /user}, key: header.x-user, policy: 'fixed-window:1/1h'}
",
    )
    .unwrap();
    let rules = folder.file("rules.yaml");
    let mut proxy = Proxy::start("nginx.conf", free_address(), &rules, |text| text, nginx);
    assert_eq!(proxy.first().status, 200);
    let mut client = Client::connect(&proxy.front);
    assert_eq!(client.get("/page").status, 200);
    let flood = crate::harness::size("SLUICEGATE_DENIALS", 300);
    for number in 0..flood {
        let path = if number % 2 == 0 { "/page" } else { "/closed" };
        let reply = client.get(path);
        assert_eq!((reply.status, reply.field("connection")), (429, "keep-alive"), "{path}");
        assert_eq!(reply.field("content-type"), "application/problem+json");
        assert_eq!(reply.json()["status"], 429);
        let is_limited = path == "/page";
        assert_eq!(!reply.field("retry-after").is_empty(), is_limited, "{path}");
        assert_eq!(reply.field("ratelimit").starts_with("\"page\";r=0;t="), is_limited, "{path}");
    }
    // Invalid requests, which clients can send as well.
    let large = "ABCD".chars().map(|name| format!("{name}: {}\r\n", "x".repeat(8150)));
    let large: String = large.collect();
    let two_users = "X-User: ada\r\nX-User: eve\r\n";
    for (path, fields) in [("/user", two_users), ("/\u{e9}", ""), ("/", large.as_str())] {
        let mut client = Client::connect(&proxy.front);
        client.send_request("GET", path, fields);
        let reply = client.read_reply();
        assert_eq!(reply.status, 400, "{path}");
        // nginx has sent 400 because of the gate, not by itself.
        assert_eq!(reply.field("content-type"), "application/problem+json", "{path}");
    }
    let log = fs::read_to_string(proxy.folder.file("log")).unwrap();
    let errors = log.lines().filter(|line| line.contains("[error]")).count();
    println!("figure: nginx: {flood} denials on one connection, {errors} lines in the error log");
    assert_eq!(errors, 0, "{log}");
}

/// The code block of `docs/nginx.md` that contains `line`.
fn documented(line: &str) -> String {
    let page = fs::read_to_string(root().join("docs/nginx.md")).unwrap();
    let block = page.split("\n```").find(|block| block.contains(line)).unwrap();
    block.split_once('\n').unwrap().1.replace("192.0.2.0/24", "127.0.0.1/32")
}

/// Five logins of each client pass, by the addresses from the CDN at 127.0.0.1; the headers that clients send to the CDN
/// have no effect.
fn limits_by_the_address_behind_a_cdn(proxy: &mut Proxy) {
    let statuses = |proxy: &Proxy, from: &str| {
        (0..6).map(|_| proxy.forward(from).status).filter(|status| *status == 200).count()
    };
    assert_eq!(proxy.first().status, 200);
    assert_eq!(statuses(proxy, "203.0.113.7"), 5);
    assert_eq!(statuses(proxy, "203.0.113.8"), 5);
    assert_eq!(statuses(proxy, "203.0.113.9, 203.0.113.8"), 0);
}

#[test]
fn nginx_behind_a_cdn_limits_by_the_address_of_the_client() {
    let change = |text: String| {
        let listen = "listen 127.0.0.1:8000;";
        text.replace(listen, &format!("{listen}\n{}", documented("set_real_ip_from")))
    };
    let rules = root().join("examples/gate/rules.yaml");
    let mut proxy = Proxy::start("nginx.conf", free_address(), &rules, change, nginx);
    limits_by_the_address_behind_a_cdn(&mut proxy);
}

#[test]
fn caddy_behind_a_cdn_limits_by_the_address_of_the_client() {
    let change = |text: String| {
        text.replace("admin off", &format!("admin off\n{}", documented("trusted_proxies_strict")))
            .replace("uri /v1/gate", &format!("uri /v1/gate\n{}", documented("{client_ip}")))
    };
    let rules = root().join("examples/gate/rules.yaml");
    let mut proxy = Proxy::start("Caddyfile", free_address(), &rules, change, caddy);
    limits_by_the_address_behind_a_cdn(&mut proxy);
}

/// Requests pass without the gate, if the proxy is configured so.
fn passes_without_a_gate(mut proxy: Proxy) {
    assert_eq!(proxy.first().status, 200);
    proxy.gate = None;
    (0..9).for_each(|_| assert_eq!(proxy.forward("1.1.1.1").status, 200));
}

#[test]
fn nginx_without_a_gate_allows_if_configured() {
    let change = |text: String| {
        let lines = documented("\nauth_request off;");
        let (before, after) = text.split_once("location @no_gate {").unwrap();
        let after = after.replacen("return 503;", &lines, 1);
        format!("{before}location @no_gate {{{after}")
    };
    // All locations are limited, as the page describes.
    let for_all = |text: String| {
        let names = ["auth_request", "add_header", "error_page"];
        let is_for_all = |line: &&str| names.iter().any(|it| line.trim().starts_with(it));
        let (before, after) = text.split_once("location / {").unwrap();
        let (location, rest) = after.split_once('}').unwrap();
        let [moved, kept] = [true, false].map(|moves| {
            let lines = location.lines().filter(|line| is_for_all(line) == moves);
            lines.collect::<Vec<_>>().join("\n")
        });
        change(format!("{before}{moved}\nlocation / {{{kept}}}{rest}"))
    };
    let rules = root().join("examples/gate/rules.yaml");
    passes_without_a_gate(Proxy::start("nginx.conf", free_address(), &rules, change, nginx));
    passes_without_a_gate(Proxy::start("nginx.conf", free_address(), &rules, for_all, nginx));
}

#[test]
fn caddy_without_a_gate_allows_if_configured() {
    let change = |text: String| {
        let site = "http://:8000 {";
        text.replace(site, &format!("{site}\n{}", documented("handle_errors")))
    };
    let rules = root().join("examples/gate/rules.yaml");
    passes_without_a_gate(Proxy::start("Caddyfile", free_address(), &rules, change, caddy));
}

#[test]
fn caddy_denied_request_is_not_served() {
    with_example_rules("Caddyfile", free_address(), caddy).lets_five_through();
}

#[test]
fn traefik_denied_request_is_not_served() {
    with_example_rules("traefik.yaml", app(), traefik).lets_five_through();
}
