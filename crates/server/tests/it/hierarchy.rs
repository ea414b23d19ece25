//! A user, the tenant that it belongs to, and everybody: one decision, wherever the state is.

use std::{fs, thread};

use sluicegate_redis::Options;
use sluicegate_server::StoreConfig;
use sluicegate_testing::{Cluster, Engine, Server};

use crate::{
    harness::{RawClient, Running, TempDir},
    http::client::{Client, HttpReply, server},
};

/// The limits per hour of a user, a tenant and the whole service.
const LIMITS: [i64; 3] = [5, 12, 20];

/// A folder with a file of rules.
fn rules(more: &str) -> TempDir {
    let [user, tenant, all] = LIMITS;
    let folder = TempDir::new();
    let text = format!(
        "rules:
- name: api
  {more}
  levels:
  - {{name: user, key: [header.tenant, header.user], policy: 'fixed-window:{user}/1h'}}
  - {{name: tenant, key: header.tenant, policy: 'fixed-window:{tenant}/1h'}}
  - {{name: all, policy: 'fixed-window:{all}/1h'}}
"
    );
    fs::write(folder.file("rules.yaml"), text).unwrap();
    folder
}

/// A server by the rules in a folder, with its state in itself or at `store`.
fn running(folder: &TempDir, store: Option<String>) -> Running {
    let file = folder.file("rules.yaml");
    server(|config| {
        config.rules = vec![file];
        config.store = store.map(|url| {
            let mut options = Options::default();
            // A deadline that a busy machine keeps.
            options.deadline = std::time::Duration::from_secs(5);
            options.connect_timeout = options.deadline;
            let mut at = StoreConfig::new(url);
            at.redis = options;
            at
        });
    })
}

fn decide(client: &mut Client, tenant: &str, user: &str) -> HttpReply {
    let fields = format!("X-Forwarded-Uri: /\r\nTenant: {tenant}\r\nUser: {user}\r\n");
    client.send_request("GET", "/v1/gate", &fields);
    client.read_reply()
}

/// The status, and the binding policy.
fn status_and_binding(reply: &HttpReply) -> (u16, &str) {
    (reply.status, reply.field("ratelimit").split(';').next().unwrap())
}

/// The usage of keys.
struct Used {
    peer: RawClient,
    /// The hash tag of keys, or nothing.
    braces: bool,
}

impl Used {
    fn of(&mut self, level: usize, parts: &str) -> i64 {
        let name = ["user", "tenant", "all"][level];
        let key = if self.braces {
            format!("{{rule:api}}:{name}{parts}")
        } else {
            format!("rule:api:{name}{parts}")
        };
        let limit = LIMITS[level];
        limit - self.peer.integers(&format!("SG.PEEK {key} fixed-window:{limit}/1h"))[2]
    }
}

/// In sequence, a request that one level denies takes nothing from the others.
fn nobody_pays_for_a_denial(server: &Running, braces: bool) {
    let client = &mut Client::connect(server);
    let mut used = Used { peer: server.connect(), braces };
    for _ in 0..5 {
        assert_eq!(status_and_binding(&decide(client, "acme", "anna")), (200, r#""api/user""#));
    }
    for _ in 0..30 {
        assert_eq!(status_and_binding(&decide(client, "acme", "anna")), (429, r#""api/user""#));
    }
    assert_eq!([used.of(0, "|acme|anna"), used.of(1, "|acme"), used.of(2, "")], [5; 3]);
    for _ in 0..5 {
        assert_eq!(decide(client, "acme", "ben").status, 200);
    }
    for passed in [200, 200, 429, 429] {
        assert_eq!(
            status_and_binding(&decide(client, "acme", "carl")),
            (passed, r#""api/tenant""#)
        );
    }
    assert_eq!([used.of(0, "|acme|carl"), used.of(1, "|acme"), used.of(2, "")], [2, 12, 12]);
    for (user, passed) in [("anna", 200), ("ben", 200), ("ben", 429)] {
        let statuses: Vec<_> = (0..4).map(|_| decide(client, "other", user).status).collect();
        assert_eq!(statuses, [passed; 4], "{user}");
    }
    let denied = decide(client, "other", "ben");
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["api/all"]));
    assert!(!denied.field("retry-after").is_empty());
    assert_eq!([used.of(0, "|other|ben"), used.of(1, "|other"), used.of(2, "")], [4, 8, 20]);
}

/// Many users of many tenants at once, at several servers: the usage of each level equals the admitted requests.
fn what_is_used_is_what_passed(servers: &[Running], braces: bool) -> usize {
    let passed: Vec<(usize, usize, usize)> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let (tenant, user) = (client / 4, client % 4);
                let mut peer = Client::connect(&servers[client % servers.len()]);
                let load = move || {
                    let names = (format!("t{tenant}"), format!("u{user}"));
                    let passed =
                        (0..10).filter(|_| decide(&mut peer, &names.0, &names.1).status == 200);
                    (tenant, user, passed.count())
                };
                scope.spawn(load)
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut used = Used { peer: servers[0].connect(), braces };
    let mut all = 0;
    for tenant in 0..2 {
        let of_tenant = passed.iter().filter(|it| it.0 == tenant);
        let sum: usize = of_tenant.clone().map(|it| it.2).sum();
        assert_eq!(used.of(1, &format!("|t{tenant}")), sum as i64);
        for (_, user, passed) in of_tenant {
            assert_eq!(used.of(0, &format!("|t{tenant}|u{user}")), *passed as i64);
        }
        all += sum;
    }
    assert_eq!(used.of(2, ""), all as i64);
    all
}

#[test]
fn hierarchy_in_memory_is_one_decision() {
    let folder = rules("");
    nobody_pays_for_a_denial(&running(&folder, None), true);
    let servers = [running(&folder, None)];
    assert_eq!(what_is_used_is_what_passed(&servers, true), 20);
}

#[test]
fn hierarchy_in_redis_is_one_decision() {
    let folder = rules("");
    for engine in Engine::ALL {
        let store = Server::start(engine);
        nobody_pays_for_a_denial(&running(&folder, Some(store.url())), true);
        store.query::<()>("FLUSHALL");
        let servers = [(); 2].map(|()| running(&folder, Some(store.url())));
        let passed = what_is_used_is_what_passed(&servers, true);
        assert_eq!(passed, 20, "{engine:?}");
        let name = engine.name();
        println!("figure: {name}: of 80 requests of 8 users at 2 servers, {passed} of 20 passed");
    }
}

/// With a hash tag each request is one script; without, the keys are taken in order, and given back.
#[test]
fn hierarchy_in_a_cluster_with_hash_tag_is_one_decision() {
    let cluster = Cluster::start(Engine::Redis70, &[]);
    let nodes: Vec<_> = cluster.nodes.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    let url = format!("redis+cluster://{}", nodes.join(","));
    for (folder, braces) in [(rules(""), true), (rules("spread: true"), false)] {
        // One after the other, because the denial cache of a server ends with it.
        nobody_pays_for_a_denial(&running(&folder, Some(url.clone())), braces);
        for node in cluster.nodes.iter().take(3) {
            node.query::<()>("FLUSHALL");
        }
        let servers = [(); 2].map(|()| running(&folder, Some(url.clone())));
        let passed = what_is_used_is_what_passed(&servers, braces);
        println!(
            "figure: in a cluster, hash tag {braces}: of 80 requests of 8 users at 2 servers, {passed} \
             of 20 passed"
        );
        // While units are returned, other requests may be denied.
        assert!(if braces { passed == 20 } else { (1..=20).contains(&passed) }, "{passed}");
    }
}
