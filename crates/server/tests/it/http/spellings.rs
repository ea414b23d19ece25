//! Test 43 (H1): spellings of one path, through the configurations of `examples/gate` to real applications.

use std::{fs, net::SocketAddr, process::Command};

use sluicegate_testing::{Application, LOGIN_SPELLINGS, LOGIN_VARIANTS, eventually_true, get};

use super::{
    client::Client,
    proxies::{Proxy, caddy, nginx, traefik},
};
use crate::harness::{TempDir, free_address};

const NO_RULES: &str = "rules: []\n";
const STRICT: &str = "rules: [{name: login, match: {path: /login}, policy: 'fixed-window:2/1h'}]\n";
const LOOSE: &str = "
rules:
  - name: login
    match: {path: {is: /login, case: insensitive, trailing-slash: ignore, parameters: strip}}
    policy: fixed-window:2/1h
";

/// Starts a proxy for a folder.
type Run = fn(&TempDir, SocketAddr) -> Command;

/// The service behind the proxy.
enum Behind {
    App(Application),
    /// The proxy itself, with this response instead of the one in its example.
    Itself {
        stands: &'static str,
        answers: &'static str,
    },
}

/// A proxy in front of an application; its rules are written while it runs.
struct Setup {
    proxy: Proxy,
    rules: TempDir,
    front: SocketAddr,
    /// Keeps it alive.
    _app: Option<Application>,
}

impl Setup {
    fn start(example: &str, run: Run, behind: Behind) -> Self {
        let rules = TempDir::new();
        fs::write(rules.file("rules.yaml"), NO_RULES).unwrap();
        let spare = free_address();
        let change = |text: String| match &behind {
            // The response in the example is replaced.
            Behind::App(_) => text
                .replace("listen 127.0.0.1:3000", &format!("listen {spare}"))
                .replace("http://:3000 {", &format!("http://:{} {{", spare.port())),
            Behind::Itself { stands, answers } => {
                assert!(text.contains(stands), "{text}");
                text.replace(stands, answers)
            }
        };
        let address = match &behind {
            Behind::App(app) => app.address,
            Behind::Itself { .. } => free_address(),
        };
        let proxy = Proxy::start(example, address, &rules.file("rules.yaml"), change, run);
        let front = proxy.front.address;
        eventually_true("the proxy serves", || get(front, "/ready", "").0 == 200);
        let app = match behind {
            Behind::App(app) => Some(app),
            Behind::Itself { .. } => None,
        };
        Self { proxy, rules, front, _app: app }
    }

    fn put_in_force(&self, rules: &str) {
        fs::write(self.rules.file("rules.yaml"), rules).unwrap();
        let mut client = Client::connect(self.proxy.gate.as_ref().unwrap());
        assert_eq!(client.post("/admin/reload", "").status, 200);
    }

    /// Whether the application was reached, and read the target as `path`.
    fn reaches(&self, target: &str, path: &str) -> bool {
        let (status, body) = get(self.front, target, "");
        status == 200 && body.lines().any(|line| line == path)
    }
}

fn two_of_200_pass(name: &str, setup: &Setup) {
    let logins: Vec<&str> =
        LOGIN_SPELLINGS.into_iter().filter(|target| setup.reaches(target, "/login")).collect();
    assert!(logins.len() >= 6, "{name}: {logins:?}");
    let variants: Vec<&str> =
        LOGIN_VARIANTS.into_iter().filter(|target| get(setup.front, target, "").0 == 200).collect();
    assert_eq!(variants, LOGIN_VARIANTS, "{name}");

    setup.put_in_force(STRICT);
    let mut passed = Vec::new();
    for target in logins.iter().cycle().take(200) {
        if get(setup.front, target, "").0 == 200 {
            passed.push(*target);
        }
    }
    println!(
        "figure: {name}: {} of {} spellings reach /login, {} of 200 requests pass",
        logins.len(),
        LOGIN_SPELLINGS.len(),
        passed.len()
    );
    assert_eq!(passed.len(), 2, "{name}: {passed:?}");
    // For the application, the other spellings are not `/login`.
    for target in LOGIN_SPELLINGS {
        assert!(!setup.reaches(target, "/login"), "{name}: {target}");
    }
    // These are different paths, unless the options of the rule ignore the difference.
    for (rules, expected) in [(STRICT, 200), (LOOSE, 429)] {
        setup.put_in_force(rules);
        for target in LOGIN_VARIANTS {
            let status = get(setup.front, target, "").0;
            assert_eq!(status, expected, "{name}: {target}");
        }
    }
}

#[test]
fn nginx_spellings_of_a_path_share_one_limit() {
    for (name, app) in [("Python", Application::python()), ("Node", Application::node())] {
        let setup = Setup::start("nginx.conf", nginx, Behind::App(app));
        two_of_200_pass(&format!("nginx before {name}"), &setup);
    }
    let behind = Behind::Itself {
        stands: "        location / {\n            return 200 \"passed\\n\";",
        answers: "        location = /login { return 200 \"/login\"; }\n        \
                  location / {\n            return 200 \"passed\\n\";",
    };
    two_of_200_pass("nginx before nginx", &Setup::start("nginx.conf", nginx, behind));
}

#[test]
fn caddy_spellings_of_a_path_share_one_limit() {
    for (name, app) in [("Python", Application::python()), ("Node", Application::node())] {
        let setup = Setup::start("Caddyfile", caddy, Behind::App(app));
        two_of_200_pass(&format!("Caddy before {name}"), &setup);
    }
    let behind = Behind::Itself {
        stands: "\trespond \"passed\n\"",
        answers: "\t@login path_regexp ^/login$\n\trespond @login \"/login\"\n\trespond \"passed\n\"",
    };
    two_of_200_pass("Caddy before Caddy", &Setup::start("Caddyfile", caddy, behind));
}

#[test]
fn traefik_spellings_of_a_path_share_one_limit() {
    for (name, app) in [("Python", Application::python()), ("Node", Application::node())] {
        let setup = Setup::start("traefik.yaml", traefik, Behind::App(app));
        two_of_200_pass(&format!("Traefik before {name}"), &setup);
    }
}
