//! A real Envoy queries `serve` about every request, and applies its answers.

mod concurrency;
pub(crate) mod proxy;
mod quota;
mod script;
mod spellings;

use std::{fs, path::PathBuf, thread};

use sluicegate_testing::eventually;

use self::proxy::{Client, Envoy, Upstream, example};
use crate::server::Server;

/// The limit in both forms of rules: requests per user, for longer than any test runs.
const LIMIT: usize = 100;
const USERS: usize = 20;

const OURS: &str = "
rules:
  - name: users
    match: {domain: shop, descriptor.plan: free}
    key: descriptor.user
    policy: gcra:100/365d
";

/// A unit whose window on the clock does not end while a test runs.
fn long_unit() -> &'static str {
    use std::time::{SystemTime, UNIX_EPOCH};
    #[expect(clippy::disallowed_methods, reason = "windows are on the clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let year = 365 * 86_400;
    if year - now % year > 3_600 { "year" } else { "week" }
}

/// The same in the form of envoyproxy/ratelimit.
fn theirs() -> String {
    format!(
        "
domain: shop
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: {{unit: {}, requests_per_unit: 100, name: users}}
",
        long_unit()
    )
}

/// A file until dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("sluicegate-rules-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn serve(rules: &File) -> Server {
    Server::start(&["--rules", rules.0.to_str().unwrap()])
}

/// A busy machine may take long to answer, which is not the subject of these tests.
fn patient(text: &str) -> String {
    assert!(text.contains("timeout: 0.25s\n"));
    text.replace("              timeout: 0.25s", "              timeout: 30s")
}

fn free(user: &str) -> [(&str, &str); 2] {
    [("x-plan", "free"), ("x-user", user)]
}

fn size(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn envoy_rules_of_both_forms_admit_their_limits() {
    let wanted = size("SLUICEGATE_ENVOY_REQUESTS", 10_000);
    for (form, rules) in [("ours", OURS.to_owned()), ("envoyproxy", theirs())] {
        let rules = File::new(form, &rules);
        let (server, upstream) = (serve(&rules), Upstream::start());
        let envoy = Envoy::start(form, &server.grpc, &upstream, patient);
        // Each client sends requests for all users in turn.
        let clients = 4;
        let counts: Vec<[usize; 2]> = thread::scope(|scope| {
            let request = || {
                let mut client = Client::connect(&envoy.address);
                let mut counts = [0; 2];
                for turn in 0..wanted / clients {
                    let answer = client.get("/", &free(&format!("user{}", turn % USERS)));
                    let denied = match answer.code {
                        200 => 0,
                        429 => 1,
                        code => panic!("{code}"),
                    };
                    counts[denied] += 1;
                    let limit = answer.field("x-ratelimit-limit").unwrap();
                    assert!(limit.starts_with("100, 100;w="), "{limit}");
                    let remaining = answer.field("x-ratelimit-remaining").unwrap();
                    assert!(remaining.parse::<usize>().unwrap() < LIMIT, "{remaining}");
                    let reset = answer.field("x-ratelimit-reset").unwrap();
                    assert!(reset.parse::<u64>().unwrap() > 0, "{reset}");
                    let limited = answer.field("x-envoy-ratelimited");
                    assert_eq!(limited.is_some(), denied == 1, "{limited:?}");
                }
                counts
            };
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(request)).collect();
            clients.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let [passed, denied] = [0, 1].map(|at| counts.iter().map(|it| it[at]).sum::<usize>());
        println!(
            "figure: {form}: {passed} of {} passed, {denied} were answered 429",
            passed + denied
        );
        let made = wanted / clients * clients;
        let expected = USERS * LIMIT.min(made / USERS);
        assert_eq!((passed, denied), (expected, made - expected), "{form}");
        assert_eq!(upstream.served(), passed as u64, "{form}");
        assert_eq!(envoy.counter("cluster.shop.ratelimit.ok"), passed as u64, "{form}");
        assert_eq!(envoy.counter("cluster.shop.ratelimit.over_limit"), denied as u64, "{form}");
        assert_eq!(envoy.counter("cluster.shop.ratelimit.error"), 0, "{form}");
    }
}

#[test]
fn envoy_without_the_service_does_as_configured() {
    let rules = File::new("killed", OURS);
    for (deny, expected) in [(false, 200), (true, 500)] {
        let (mut server, upstream) = (serve(&rules), Upstream::start());
        let name = format!("killed-{deny}");
        let envoy = Envoy::start(&name, &server.grpc, &upstream, |text| {
            let text = patient(text);
            assert!(text.contains("failure_mode_deny: false"));
            text.replace("failure_mode_deny: false", &format!("failure_mode_deny: {deny}"))
        });
        let mut client = Client::connect(&envoy.address);
        assert_eq!(client.get("/", &free("ada")).code, 200);
        server.kill();
        for _ in 0..20 {
            assert_eq!(client.get("/", &free("ada")).code, expected);
        }
        let errors = envoy.counter("cluster.shop.ratelimit.error");
        println!("figure: service killed, failure_mode_deny {deny}: {errors} of 20 calls failed");
        assert_eq!(errors, 20);
        let allowed = envoy.counter("cluster.shop.ratelimit.failure_mode_allowed");
        assert_eq!(allowed, if deny { 0 } else { 20 });
    }
}

#[test]
fn envoy_slow_service_is_not_waited_for() {
    let rules = File::new("slow", OURS);
    let (server, upstream) = (serve(&rules), Upstream::start());
    let envoy = Envoy::start("slow", &server.grpc, &upstream, |text| {
        text.replace("              timeout: 0.25s", "              timeout: 0.02s")
    });
    let mut client = Client::connect(&envoy.address);
    server.signal("-STOP");
    for _ in 0..20 {
        assert_eq!(client.get("/", &free("ada")).code, 200, "it fails open");
    }
    let slow = envoy.counter("cluster.sluicegate.upstream_rq_timeout");
    println!("figure: service stopped: {slow} of 20 calls given up after 20 ms");
    assert_eq!(slow, 20);
    assert_eq!(envoy.counter("cluster.shop.ratelimit.error"), 20);
    server.signal("-CONT");
    // Abandoned requests may or may not have been counted; from here on, decisions come again.
    eventually("the limit is reached", || match client.get("/", &free("ada")).code {
        429 => Ok(()),
        code => Err(code),
    });
}

#[test]
fn envoy_example_limits_users_and_logins() {
    for file in ["rules.yaml", "ratelimit.yaml"] {
        // An hour on the clock may end while the test runs.
        let text = example(file).replace("unit: hour", &format!("unit: {}", long_unit()));
        let rules = File::new(file, &text);
        let (server, upstream) = (serve(&rules), Upstream::start());
        let envoy = Envoy::start(file, &server.grpc, &upstream, patient);
        let mut client = Client::connect(&envoy.address);
        let codes: Vec<_> = (0..12).map(|_| client.get("/", &free("ada")).code).collect();
        assert_eq!(codes, [vec![200; 10], vec![429; 2]].concat(), "{file}");
        let gold = [("x-plan", "gold"), ("x-user", "bob")];
        assert!((0..50).all(|_| client.get("/", &gold).code == 200), "{file}");
        let codes: Vec<_> = (0..7).map(|_| client.get("/login", &[]).code).collect();
        assert_eq!(codes, [vec![200; 5], vec![429; 2]].concat(), "{file}");
        assert_eq!(client.get("/", &[]).code, 200, "{file}: a request without a user");
    }
}
