//! The denial log: one record for each denial, whichever way the request came and whatever decided it.

use std::{borrow::Borrow, fs, path::PathBuf, time::Duration};

use serde_json::{Map, Value, json};
use sluicegate_core::{OnError, Share};
use sluicegate_server::{Config, DashboardMode, DenialOutput};
use sluicegate_testing::{Engine, Server, eventually_true};

use crate::{
    envoy::client::{Service, descriptor, limited, long_unit, request},
    harness::{Running, TempDir, any_port},
    http::client::Client,
    store::on,
    waiting::wait_in_queue,
};

/// A log in a folder of its own.
struct Log {
    _folder: TempDir,
    path: PathBuf,
}

impl Log {
    fn new() -> Self {
        let folder = TempDir::new();
        let path = folder.file("denials.log");
        Self { _folder: folder, path }
    }

    /// Has a server write the log.
    fn configure(&self, config: &mut Config) {
        config.denial_log = Some(DenialOutput::File(self.path.clone()));
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }

    /// The records, once the server has stopped, sorted by key. Their times are checked and left out, because of which
    /// those of two seconds are one.
    fn records(&self, server: Running) -> Vec<Map<String, Value>> {
        drop(server);
        let (text, mut records) = (self.text(), Vec::<Map<String, Value>>::new());
        for line in text.lines() {
            let mut record = record(line);
            let count = record.insert("count".to_owned(), 0.into()).unwrap();
            let is_same = |it: &&mut Map<String, Value>| {
                let mut other = Map::clone(it);
                other.insert("count".to_owned(), 0.into());
                other == record
            };
            match records.iter_mut().find(is_same) {
                Some(same) => {
                    let sum = same["count"].as_u64().unwrap() + count.as_u64().unwrap();
                    same.insert("count".to_owned(), sum.into());
                }
                None => {
                    record.insert("count".to_owned(), count);
                    records.push(record);
                }
            }
        }
        records.sort_by_key(|it| it.get("key").map(ToString::to_string));
        records
    }
}

/// A record without the times that depend on the clock.
fn record(line: &str) -> Map<String, Value> {
    let mut record: Map<String, Value> = serde_json::from_str(line).unwrap();
    let time = record.remove("time").unwrap();
    let time = time.as_str().unwrap();
    assert!(time.len() == 27 && time.starts_with("20") && time.ends_with('Z'), "{line}");
    for name in ["reset_after_us", "wait_us"] {
        if record.get(name).is_some_and(Value::is_u64) {
            let micros = record.remove(name).unwrap().as_u64().unwrap();
            let is_unused = name == "reset_after_us" && record["wait_us"].is_null();
            assert!(is_unused || (1..=8784 * HOUR).contains(&micros), "{line}");
        }
    }
    record
}

/// Microseconds of an hour.
const HOUR: u64 = 3_600_000_000;
const WINDOW: &str = "fixed-window:1/1h";

/// The record of a denial of one unit of `fixed-window:1/1h`, with some members changed or, if null, left out.
fn denied(key: &str, changes: impl Borrow<Value>) -> Map<String, Value> {
    let common = json!({
        "event": "denial", "count": 1, "shadow": false, "key": key, "operation": "take", "cost": 1,
        "policy": WINDOW, "limit": WINDOW, "capacity": 1, "remaining": 0, "used": 1, "held": 0,
        "source": "store",
    });
    changed(common, changes.borrow())
}

fn changed(mut record: Value, changes: &Value) -> Map<String, Value> {
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(record.as_object_mut().unwrap().remove(name)),
            value => record[name] = value.clone(),
        }
    }
    record.as_object().unwrap().clone()
}

/// Of each command of RESP that takes, holds or reserves.
#[test]
fn resp_denial_has_one_record() {
    let log = Log::new();
    let server = Running::with(|config| log.configure(config));
    let mut peer = server.connect();
    for line in [
        "SG.TAKE take fixed-window:1/1h",
        "SG.MTAKE 2 mtake1 fixed-window:1/1h 1 mtake2 fixed-window:1/1h 1",
        "SG.TAKE takeall fixed-window:1/1h",
        "SG.TAKE wait fixed-window:1/1h",
        "SG.TAKE waitall fixed-window:1/1h",
        "SG.RESERVE reserve gcra:1/1h",
        "SG.RESERVE never gcra:1/1h",
        "CL.THROTTLE throttle 0 1 3600",
        "INCREX increx UBOUND 1 EX 3600",
        "SG.HOLD hold concurrency:1/1h one",
        "SG.HOLD holdwait concurrency:1/1h one",
    ] {
        peer.call(line);
    }
    for line in [
        "SG.TAKE take fixed-window:1/1h",
        "SG.MTAKE 2 mtake1 fixed-window:1/1h 1 mtake2 fixed-window:1/1h 1",
        "SG.TAKEALL 2 takeall fixed-window:1/1h 1 free fixed-window:1/1h 1",
        "SG.WAIT wait fixed-window:1/1h TIMEOUT 1000",
        "SG.TAKEALL 1 waitall fixed-window:1/1h 1 TIMEOUT 1000",
        "SG.RESERVE reserve gcra:1/1h MAXWAIT 1000",
        "SG.RESERVE never gcra:1/1h COST 2",
        "CL.THROTTLE throttle 0 1 3600",
        "INCREX increx UBOUND 1 EX 3600",
        "SG.HOLD hold concurrency:1/1h two",
        "SG.HOLD holdwait concurrency:1/1h two TIMEOUT 1000",
        // None of these is a denial.
        "SG.PEEK take fixed-window:1/1h",
        "SG.SETTLE hold concurrency:1/1h three",
        "SG.RENEW hold concurrency:1/1h three",
        "SG.TAKE other fixed-window:1/1h",
        "SG.CHARGE take fixed-window:1/1h COST 0",
    ] {
        peer.call(line);
    }
    let gcra = json!({"policy": "gcra:1/1h", "limit": "gcra:1/1h"});
    let held = json!({
        "policy": "concurrency:1/1h", "limit": "concurrency:1/1h", "operation": "hold", "held": 1,
    });
    let with = |one: &Value, more: &Value| Value::Object(changed(one.clone(), more));
    let waited = json!({"max_wait_us": 1000});
    let mut never = denied("never", with(&gcra, &json!({"operation": "reserve", "cost": 2})));
    never.insert("wait_us".to_owned(), Value::Null);
    let expected = [
        denied("hold", held.clone()),
        denied("holdwait", with(&held, &waited)),
        denied("increx", json!({})),
        denied("mtake1", json!({})),
        denied("mtake2", json!({})),
        never,
        denied("reserve", with(&gcra, &json!({"operation": "reserve", "max_wait_us": 1000}))),
        denied("take", json!({})),
        denied("takeall", json!({})),
        denied("throttle", gcra),
        denied("wait", waited.clone()),
        denied("waitall", waited),
    ];
    assert_eq!(log.records(server), expected);
}

/// Each record has the number of the others, so that none says that its own key alone was in the way.
#[test]
fn request_that_several_keys_deny_has_linked_records() {
    let log = Log::new();
    let server = Running::with(|config| {
        log.configure(config);
        config.http.address = Some(any_port());
    });
    let mut peer = server.connect();
    for key in ["a", "b", "c", "d", "e", "f"] {
        peer.call(&format!("SG.TAKE {key} {WINDOW}"));
    }
    let w = WINDOW;
    peer.call(&format!("SG.TAKEALL 4 a {w} 1 free {w} 1 b {w} 1 c {w} 1"));
    peer.call(&format!("SG.TAKEALL 2 d {w} 1 e {w} 1 TIMEOUT 1000"));
    let take = |key: &str| json!({ "key": key, "policy": w });
    let body = json!({"takes": [take("f"), take("free")]}).to_string();
    assert_eq!(Client::connect(&server).post("/v1/take_all", &body).status, 429);
    let two = json!({"also_denied": 2});
    let waited = json!({"also_denied": 1, "max_wait_us": 1000});
    let expected = [
        denied("a", two.clone()),
        denied("b", two.clone()),
        denied("c", two),
        denied("d", waited.clone()),
        denied("e", waited),
        denied("f", json!({})),
    ];
    assert_eq!(log.records(server), expected);
}

/// The units that it waited for might have come.
#[test]
fn request_that_waits_when_the_server_stops_has_a_record_of_that() {
    let log = Log::new();
    let server = Running::with(|config| log.configure(config));
    let mut peer = server.connect();
    peer.call(&format!("SG.TAKE k {WINDOW}"));
    peer.call("SG.HOLD h concurrency:1/1h one");
    let waiters = [
        wait_in_queue(&server, &format!("SG.WAIT k {WINDOW} TIMEOUT 7200000000"), 1),
        wait_in_queue(&server, "SG.HOLD h concurrency:1/1h two TIMEOUT 7200000000", 2),
    ];
    let waited = json!({"max_wait_us": 7_200_000_000_u64, "stopped": true});
    let held = json!({
        "policy": "concurrency:1/1h", "limit": "concurrency:1/1h", "operation": "hold", "held": 1,
    });
    let held = Value::Object(changed(held, &waited));
    assert_eq!(log.records(server), [denied("h", held), denied("k", waited)]);
    drop(waiters);
}

/// A pipeline is one batch, with one time.
#[test]
fn resp_pipeline_of_one_key_has_one_record_with_its_count() {
    let log = Log::new();
    let server = Running::with(|config| {
        log.configure(config);
        config.test_clock = true;
    });
    let mut peer = server.connect();
    let second = 1_700_000_000_000_000_u64;
    for at in [0, 0, 1, 999_999, 1_000_000, 1_000_001] {
        peer.send_command(&format!("SG.TAKE k {WINDOW} AT {}", second + at));
    }
    (0..6).for_each(|_| drop(peer.read_reply()));
    drop(server);
    let text = log.text();
    let of = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        ["time", "count", "wait_us"].map(|name| record[name].clone())
    };
    assert_eq!(
        text.lines().map(of).collect::<Vec<_>>(),
        [
            [json!("2023-11-14T22:13:20.000000Z"), json!(3), json!(HOUR)],
            [json!("2023-11-14T22:13:21.000000Z"), json!(2), json!(HOUR - 1_000_000)],
        ]
    );
}

#[test]
fn http_denial_has_one_record() {
    let log = Log::new();
    let server = Running::with(|config| {
        log.configure(config);
        config.http.address = Some(any_port());
    });
    let mut client = Client::connect(&server);
    let take = |key: &str| json!({"key": key, "policy": WINDOW});
    let hold = |key: &str, id: &str| json!({"key": key, "policy": "concurrency:1/1h", "id": id});
    let with = |body: Value, name: &str, value: u64| {
        let mut body = body;
        body[name] = value.into();
        body
    };
    for (path, body) in [
        ("/v1/take", take("take")),
        ("/v1/take", take("wait")),
        ("/v1/take_many", json!({"requests": [take("many1"), take("many2")]})),
        ("/v1/take", take("all")),
        ("/v1/take", take("allwait")),
        ("/v1/reserve", json!({"key": "reserve", "policy": "gcra:1/1h"})),
        ("/v1/hold", hold("hold", "one")),
        ("/v1/hold", hold("holdwait", "one")),
    ] {
        assert_eq!(client.post(path, body.to_string()).status, 200, "{path} {body}");
    }
    for (path, body) in [
        ("/v1/take", take("take")),
        ("/v1/take", with(take("wait"), "wait_us", 1000)),
        ("/v1/take_many", json!({"requests": [take("many1"), take("many2")]})),
        ("/v1/take_all", json!({"takes": [take("all"), take("free")]})),
        ("/v1/take_all", json!({"takes": [take("allwait")], "wait_us": 1000})),
        ("/v1/reserve", json!({"key": "reserve", "policy": "gcra:1/1h", "max_wait_us": 1000})),
        ("/v1/hold", hold("hold", "two")),
        ("/v1/hold", with(hold("holdwait", "two"), "wait_us", 1000)),
        ("/v1/peek", take("take")),
        ("/v1/settle", hold("hold", "three")),
    ] {
        let status = client.post(path, body.to_string()).status;
        assert!([200, 429].contains(&status), "{path} {body}: {status}");
    }
    let held = json!({
        "policy": "concurrency:1/1h", "limit": "concurrency:1/1h", "operation": "hold", "held": 1,
    });
    let mut held_waiting = held.clone();
    held_waiting["max_wait_us"] = 1000.into();
    let waited = json!({"max_wait_us": 1000});
    let reserve = json!({
        "policy": "gcra:1/1h", "limit": "gcra:1/1h", "operation": "reserve", "max_wait_us": 1000,
    });
    let expected = [
        denied("all", json!({})),
        denied("allwait", waited.clone()),
        denied("hold", held),
        denied("holdwait", held_waiting),
        denied("many1", json!({})),
        denied("many2", json!({})),
        denied("reserve", reserve),
        denied("take", json!({})),
        denied("wait", waited),
    ];
    assert_eq!(log.records(server), expected);
}

const RULES: &str = "
rules:
  - name: login
    match: {path: /login}
    key: client
    policy: fixed-window:1/1h
  - name: closed
    match: {path: /closed}
    block: true
  - name: tried
    match: {path: '/tried/*'}
    key: client
    policy: fixed-window:1/1h
    shadow: true
  - name: tried-block
    match: {path: /tried/block}
    block: true
    shadow: true
  - name: tree
    match: {path: /tree}
    levels:
      - {name: all, key: [], policy: 'fixed-window:9/1h'}
      - {name: user, key: [client], policy: 'fixed-window:1/1h'}
  - name: costly
    match: {path: /costly}
    key: client
    policy: fixed-window:1/1h
    cost: 2
  - name: first
    match: {path: '/two/*'}
    key: client
    policy: fixed-window:1/1h
  - name: second
    match: {path: '/two/*'}
    levels:
      - {name: all, key: [], policy: 'fixed-window:1/1h'}
      - {name: user, key: [client], policy: 'fixed-window:1/1h'}
  - name: third
    match: {path: /two/closed}
    block: true
";

/// Of a rule that limits, that blocks, or that would have; with the version of the rules.
#[test]
fn gate_denial_by_a_rule_has_one_record() {
    let (log, folder) = (Log::new(), TempDir::new());
    let path = folder.file("rules.yaml");
    fs::write(&path, RULES).unwrap();
    let server = Running::with(|config| {
        log.configure(config);
        config.http.address = Some(any_port());
        config.rules = vec![path.clone()];
    });
    fs::write(&path, format!("{RULES}  - {{name: more, unlimited: true}}\n")).unwrap();
    assert_eq!(server.reload().unwrap().version, 2);
    let mut client = Client::connect(&server);
    let mut ask = |path: &str| {
        let fields = format!("X-Forwarded-Uri: {path}\r\nX-Forwarded-For: 203.0.113.7\r\n");
        client.send_request("GET", "/v1/gate", &fields);
        client.read_reply().status
    };
    let paths = ["/login", "/login", "/closed", "/tried/a", "/tried/a", "/tried/block", "/tree"];
    let statuses = paths.map(&mut ask);
    assert_eq!(statuses, [200, 429, 429, 200, 200, 200, 200]);
    assert_eq!(["/tree", "/costly"].map(&mut ask), [429, 429]);
    assert_eq!(["/two/open", "/two/open", "/two/closed"].map(&mut ask), [200, 429, 429]);
    let of_rule = |name: &str, changes: Value| {
        let rule = json!({"rule": name, "rules_version": 2});
        let key = format!("rule:{name}|203.0.113.7");
        let Value::Object(rule) = rule else { unreachable!() };
        let mut record = denied(&key, changes);
        record.extend(rule);
        record
    };
    let block = |name: &str, shadow: bool| {
        let block = json!({
            "event": "denial", "count": 1, "shadow": shadow, "rule": name, "rules_version": 2,
            "source": "block",
        });
        block.as_object().unwrap().clone()
    };
    let mut records = log.records(server);
    records.sort_by_key(|it| it["rule"].to_string());
    let mut tree = of_rule("tree", json!({"level": "user"}));
    let tree_key = records.iter().find(|it| it["rule"] == "tree").unwrap()["key"].clone();
    assert!(tree_key.as_str().unwrap().contains("203.0.113.7"), "{tree_key}");
    tree.insert("key".to_owned(), tree_key);
    // A cost above the capacity can never pass.
    let mut costly = of_rule("costly", json!({"cost": 2, "remaining": 1, "used": 0}));
    costly.insert("wait_us".to_owned(), Value::Null);
    // The key of the first, and the levels of the second.
    let two = json!({"also_denied": 2});
    let mut second = of_rule("second", two.clone());
    second.insert("key".to_owned(), "{rule:second}:all".into());
    second.insert("level".to_owned(), "all".into());
    let expected = [
        block("closed", false),
        costly,
        of_rule("first", two),
        of_rule("login", json!({})),
        second,
        // A block denies before any key is charged.
        block("third", false),
        tree,
        // The second and the third request of the address, in one second.
        of_rule("tried", json!({"shadow": true, "count": 2})),
        block("tried-block", true),
    ];
    assert_eq!(records, expected);
}

const ENVOY_RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: tried
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: banned
    rate_limit: {unit: hour, requests_per_unit: 0}
";

#[test]
fn envoy_denial_has_one_record() {
    let (log, folder) = (Log::new(), TempDir::new());
    let path = folder.file("rules.yaml");
    let unit = long_unit().as_str_name().to_lowercase();
    fs::write(&path, ENVOY_RULES.replace("hour", &unit)).unwrap();
    let service = Service::with(|config| {
        log.configure(config);
        config.rules = vec![path];
    });
    let mut taken = request(vec![descriptor(&[("user", "a")]), descriptor(&[("tried", "a")])]);
    for hits in [1, 2] {
        taken.hits_addend = hits;
        service.should_rate_limit(taken.clone()).unwrap();
    }
    let mut other = request(vec![descriptor(&[("banned", "a")])]);
    service.should_rate_limit(other.clone()).unwrap();
    (other.domain, other.descriptors) = ("none".to_owned(), vec![limited(&[("user", "b")], 1)]);
    service.should_rate_limit(other.clone()).unwrap();
    service.should_rate_limit(other).unwrap();
    let Service { server, .. } = service;
    let records = log.records(server);
    let of = |record: &Map<String, Value>| {
        let members = ["rule", "rules_version", "shadow", "operation", "cost", "used", "source"];
        let members = members.map(|name| record.get(name).cloned().unwrap_or_default());
        (record["count"].clone(), members)
    };
    let mut found: Vec<_> = records.iter().map(of).collect();
    found.sort_by_key(|(_, members)| members[0].to_string());
    // Envoy's limits count denied requests, too.
    let none = Value::Null;
    let taken = |rule: Value, count: u64, (cost, used): (u64, u64)| {
        let version = if rule.is_null() { Value::Null } else { 1.into() };
        let is_shadow = rule == "shop.tried";
        let members = [rule, version, is_shadow.into(), "take".into(), cost.into(), used.into()];
        let [rule, version, shadow, operation, cost, used] = members;
        (count.into(), [rule, version, shadow, operation, cost, used, "store".into()])
    };
    let blocked = ["shop.banned".into(), 1.into(), false.into()];
    let [rule, version, shadow] = blocked;
    let banned = [rule, version, shadow, none.clone(), none.clone(), none.clone(), "block".into()];
    let expected = [
        (json!(1), banned),
        taken("shop.tried".into(), 1, (2, 3)),
        taken("shop.user".into(), 1, (2, 3)),
        taken(none, 1, (1, 2)),
    ];
    assert_eq!(found, expected);
}

const HOLD_RULES: &str = "
rules:
  - name: flight
    match: {domain: shop}
    key: descriptor.user
    hold_id: descriptor.id
    policy: concurrency:1/1h
";

/// A request in flight too many, and one whose id is invalid.
#[test]
fn envoy_denied_hold_has_one_record() {
    let (log, folder) = (Log::new(), TempDir::new());
    let path = folder.file("rules.yaml");
    fs::write(&path, HOLD_RULES).unwrap();
    let service = Service::with(|config| {
        log.configure(config);
        config.rules = vec![path];
    });
    let long = "x".repeat(65);
    for (user, id) in [("a", "one"), ("a", "two"), ("b", &long)] {
        let request = request(vec![descriptor(&[("user", user), ("id", id)])]);
        service.should_rate_limit(request).unwrap();
    }
    let policy = "concurrency:1/1h";
    let of = |key: &str, changes: Value| {
        let rule = json!({
            "rule": "flight", "rules_version": 1, "operation": "hold", "policy": policy,
            "limit": policy, "held": 1,
        });
        changed(Value::Object(denied(key, rule)), &changes)
    };
    let never = json!({"remaining": 1, "used": 0, "held": 0});
    let mut invalid = of("rule:flight|b", never);
    invalid.insert("wait_us".to_owned(), Value::Null);
    let Service { server, .. } = service;
    assert_eq!(log.records(server), [of("rule:flight|a", json!({})), invalid]);
}

/// The store, its denial cache, and both fallbacks; leases deny nothing.
#[test]
fn redis_store_denial_has_its_source() {
    let mut store = Server::start(Engine::Redis70);
    let log = Log::new();
    let server = |log: &Log, on_error, prefix: &str, lease| {
        on(&store, |config, at| {
            log.configure(config);
            at.redis.prefix = prefix.into();
            at.on_error = on_error;
            at.lease = lease;
        })
    };
    // The store does not say how much is used, and whether it is held.
    let unknown = |source: &str| json!({"source": source, "used": null, "held": null});
    let denying = server(&log, OnError::Deny, "deny:", 0);
    let mut peer = denying.connect();
    for key in ["first", "first", "first", "pipe"] {
        peer.call(&format!("SG.TAKE {key} {WINDOW}"));
    }
    for _ in 0..2 {
        peer.send_command(&format!("SG.TAKEALL 2 all {WINDOW} 1 pipe {WINDOW} 1"));
    }
    (0..2).for_each(|_| drop(peer.read_reply()));
    let local = OnError::Local(Share::of(1, 2).unwrap());
    let (local_log, lease_log) = (Log::new(), Log::new());
    let locals = server(&local_log, local, "local:", 0);
    let policy = "fixed-window:4/1h";
    assert_eq!(locals.connect().integers(&format!("SG.TAKE k {policy}"))[0], 1);
    // A lease decides until its units are used up; the store denies.
    let leased = server(&lease_log, OnError::Deny, "lease:", 8);
    let mut leasing = leased.connect();
    for _ in 0..60 {
        leasing.call("SG.TAKE k fixed-window:50/1h");
    }
    assert!(leased.info_value("store_count_lease") > 0);
    store.kill();
    eventually_true("the store is unavailable", || denying.info_value("store_connected") == 0);
    peer.call(&format!("SG.TAKE away {WINDOW}"));
    let mut other = locals.connect();
    for _ in 0..4 {
        other.call(&format!("SG.TAKE k {policy}"));
    }
    let records = log.records(denying);
    let mut by_source: Vec<_> =
        records.iter().map(|it| (it["key"].clone(), it["source"].clone())).collect();
    by_source.sort_by_key(|(key, source)| (key.to_string(), source.to_string()));
    let away = json!({
        "source": "fallback", "on_error": "deny", "limit": null, "capacity": null,
        "remaining": null, "used": null, "held": null,
    });
    let find = |key: &str, source: &str| {
        let found = records.iter().find(|it| it["key"] == key && it["source"] == source);
        let mut found = found.unwrap_or_else(|| panic!("{key} {source}: {records:?}")).clone();
        // Two denials may come in two seconds.
        found.insert("count".to_owned(), 1.into());
        found
    };
    assert_eq!(find("first", "store"), denied("first", unknown("store")));
    assert_eq!(find("first", "cache"), denied("first", unknown("cache")));
    assert_eq!(find("away", "fallback"), denied("away", away));
    assert!(records.iter().any(|it| it["key"] == "pipe"), "{records:?}");
    let share = json!({
        "source": "fallback", "on_error": "local", "policy": policy, "limit": policy,
        "capacity": 2, "used": null, "held": null,
    });
    let mut of_share = local_log.records(locals);
    of_share.iter_mut().for_each(|it| drop(it.insert("count".to_owned(), 1.into())));
    assert_eq!(of_share[0], denied("k", share));
    let sources: Vec<_> =
        lease_log.records(leased).into_iter().map(|it| it["source"].clone()).collect();
    assert!(!sources.is_empty() && sources.iter().all(|it| it == "store" || it == "cache"));
}

/// An operator's block denies on every protocol.
#[test]
fn blocked_key_has_a_record_of_the_block() {
    let log = Log::new();
    let server = Running::with(|config| {
        log.configure(config);
        config.http.address = Some(any_port());
        config.http.token = Some("secret".to_owned());
    });
    let mut client = Client::connect(&server);
    let body = json!({"key": "bad", "duration_us": 60_000_000}).to_string();
    client.send(format!(
        "POST /admin/block HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.read_reply().status, 200);
    let mut peer = server.connect();
    peer.call(&format!("SG.TAKE bad {WINDOW}"));
    peer.call(&format!("SG.TAKEALL 2 bad {WINDOW} 1 good {WINDOW} 1"));
    let block = json!({
        "source": "block", "limit": null, "capacity": null, "remaining": null, "used": null,
        "held": null, "count": 2,
    });
    assert_eq!(log.records(server), [denied("bad", block)]);
}

#[test]
fn full_table_has_a_record_of_its_own() {
    let log = Log::new();
    let server = Running::with(|config| {
        log.configure(config);
        config.memory.max_bytes = 2 << 20;
        config.workers = Some(1);
    });
    let mut peer = server.connect();
    let mut first_denied = None;
    for group in 0..200 {
        for number in 0..1000 {
            peer.send_command(&format!("SG.TAKE key{group}-{number} {WINDOW}"));
        }
        for number in 0..1000 {
            let reply = peer.read_reply();
            if crate::harness::integers(&reply)[0] == 0 && first_denied.is_none() {
                first_denied = Some(format!("key{group}-{number}"));
            }
        }
        if first_denied.is_some() {
            break;
        }
    }
    let key = first_denied.expect("the table is full");
    let records = log.records(server);
    let record = records.iter().find(|it| it["key"] == key).unwrap();
    let full = json!({
        "source": "table_full", "limit": null, "capacity": null, "remaining": null, "used": null,
        "held": null,
    });
    assert_eq!(*record, denied(&key, full));
    assert!(records.iter().all(|it| it["source"] == "table_full"));
}

/// Neither in the log nor anywhere else.
#[test]
fn masked_key_is_written_as_its_tag() {
    let log = Log::new();
    let server = Running::with(|config| {
        log.configure(config);
        config.dashboard = DashboardMode::Masked;
    });
    let mut peer = server.connect();
    for _ in 0..2 {
        peer.call(&format!("SG.TAKE secret-key {WINDOW}"));
    }
    drop(server);
    let text = log.text();
    assert!(text.contains("\"key_tag\":\"#") && !text.contains("secret-key"), "{text}");
}

#[test]
fn key_of_any_bytes_is_on_one_line() {
    let log = Log::new();
    let server = Running::with(|config| log.configure(config));
    let mut peer = server.connect();
    let keys: [&[u8]; 2] = [b"a\n{\"event\":\"denial\",\"x\":\"\r\n\x1b[31m", b"\xff\0\n"];
    for key in keys {
        for _ in 0..2 {
            peer.call_bytes(&[b"SG.TAKE", key, WINDOW.as_bytes()]);
        }
    }
    let binary = json!({"key": null, "key_base64": "/wAK"});
    let expected = [denied("", binary), denied(str::from_utf8(keys[0]).unwrap(), json!({}))];
    assert_eq!(log.records(server), expected);
}

/// A server of which no client notices that its log cannot be written.
#[test]
fn full_disk_denies_as_before_and_counts() {
    let server = Running::with(|config| {
        config.denial_log = Some(DenialOutput::File("/dev/full".into()));
        config.http.address = Some(any_port());
    });
    let mut peer = server.connect();
    assert_eq!(peer.integers(&format!("SG.TAKE k {WINDOW}"))[0], 1);
    for _ in 0..1000 {
        peer.send_command(&format!("SG.TAKE k {WINDOW}"));
    }
    (0..1000).for_each(|_| assert_eq!(crate::harness::integers(&peer.read_reply())[0], 0));
    let mut client = Client::connect(&server);
    let line = "sluicegate_logged_denials_total{outcome=\"lost\"} 1000";
    eventually_true("the lost denials are counted", || {
        String::from_utf8(client.get("/metrics").body).unwrap().contains(line)
    });
}

#[test]
fn log_that_cannot_be_opened_is_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut config = crate::harness::config();
    config.denial_log = Some(DenialOutput::File("/none/denials.log".into()));
    let error = runtime.block_on(sluicegate_server::Server::bind(config)).unwrap_err();
    let expected = "cannot open the denial log `/none/denials.log`: no such file or directory";
    assert_eq!(error.to_string(), expected);
}

/// Whether or not it has to write anything.
#[test]
fn log_is_written_within_seconds() {
    let log = Log::new();
    let server = Running::with(|config| log.configure(config));
    let mut peer = server.connect();
    for _ in 0..2 {
        peer.call(&format!("SG.TAKE k {WINDOW}"));
    }
    let waited = eventually_true("the line is written", || log.text().ends_with("}\n"));
    println!("figure: a line was written {waited:?} after the denial");
    assert!(waited < Duration::from_secs(30));
}
