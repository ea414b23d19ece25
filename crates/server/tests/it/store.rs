//! Servers that keep their state in a Redis or Valkey.

use std::time::Duration;

use sluicegate_conformance::{Shape, check_histories, check_keys, check_traces};
use sluicegate_core::{OnError, Share};
use sluicegate_redis::Options;
use sluicegate_resp::Value;
use sluicegate_server::{Config, StoreConfig};
use sluicegate_testing::{Engine, Server, eventually_true};

use crate::{
    conformance::OverTheWire,
    harness::{Running, TempDir, any_port, error, integers, now, simple},
    http::client::Client,
};

/// The number of histories; the tests of the scripts have more.
const HISTORIES: u64 = 100;

/// A server on the store, which has time to spare.
pub(crate) fn on(store: &Server, configure: impl FnOnce(&mut Config, &mut StoreConfig)) -> Running {
    Running::with(|config| {
        let mut at = StoreConfig::new(store.url());
        at.redis = patient();
        configure(config, &mut at);
        config.store = Some(at);
    })
}

/// A deadline that a busy machine keeps.
pub(crate) fn patient() -> Options {
    let mut options = Options::default();
    options.deadline = Duration::from_secs(5);
    options.connect_timeout = Duration::from_secs(5);
    options
}

fn plain(store: &Server) -> Running {
    on(store, |_, _| {})
}

#[test]
fn resp_with_redis_all_traces_agree_with_the_core() {
    for engine in Engine::NEWER {
        let store = Server::start(engine);
        let server = on(&store, |config, _| config.test_clock = true);
        check_traces(&mut OverTheWire(server.connect()));
        check_keys(&mut OverTheWire(server.connect()));
        let subject = &mut OverTheWire(server.connect());
        check_histories(subject, 7_000, HISTORIES, Shape::default());
        // All keys are in the store, with the prefix of the server.
        let keys: Vec<Vec<u8>> = store.query("KEYS *");
        assert!(!keys.is_empty() && keys.iter().all(|key| key.starts_with(b"sg:test:")));
    }
}

/// Units that one server has granted are granted by no other.
#[test]
fn redis_store_servers_share_each_limit_exactly() {
    const UNITS: usize = 400;
    for engine in Engine::NEWER {
        let store = Server::start(engine);
        let servers = [plain(&store), plain(&store)];
        let allowed: Vec<usize> = std::thread::scope(|scope| {
            let take_all = |server: &'_ Running| {
                let mut peer = server.connect();
                for _ in 0..UNITS {
                    peer.send_command("SG.TAKE shared fixed-window:400/1h");
                }
                (0..UNITS)
                    .filter(
                        |_| matches!(&peer.read_reply(), Value::Array(it) if it[0] == Value::Integer(1)),
                    )
                    .count()
            };
            let clients: Vec<_> =
                servers.iter().map(|server| scope.spawn(move || take_all(server))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        println!("figure: {engine:?}: two servers admitted {allowed:?} of {UNITS} units");
        assert_eq!(allowed.iter().sum::<usize>(), UNITS);
        let left = servers.each_ref().map(|server| {
            server.connect().integers("SG.PEEK shared fixed-window:400/1h")[..3].to_vec()
        });
        assert_eq!(left, [[0, 400, 0], [0, 400, 0]]);
    }
}

/// By rules, by the name of a policy in them, and by the server for policies that come as text.
#[test]
fn redis_store_leases_as_rules_and_the_server_say() {
    let store = Server::start(Engine::Redis70);
    let folder = TempDir::new();
    std::fs::write(
        folder.file("rules.yaml"),
        "policies:
  few: {policy: 'gcra:10000/365d', lease: 64}
  none: gcra:10000/364d
  each: {policy: 'gcra:10000/363d', lease: 0}
rules:
- {name: page, policy: 'fixed-window:10000/1d', lease: 64}
",
    )
    .unwrap();
    let server = |lease| {
        on(&store, |config, at| {
            config.rules = vec![folder.file("rules.yaml")];
            config.http.address = Some(any_port());
            at.lease = lease;
        })
    };
    for (lease, command, least, most) in [
        (0, "SG.TAKE a @few", 150, 200),
        (0, "SG.TAKE b @none", 0, 0),
        (0, "SG.TAKE c gcra:10000/365d", 0, 0),
        (64, "SG.TAKE d @none", 150, 200),
        (64, "SG.TAKE e gcra:10000/365d", 150, 200),
        (64, "SG.TAKE f leaky-queue:10000/1s", 0, 0),
        (64, "SG.TAKE h @each", 0, 0),
    ] {
        let begun = server(lease);
        let mut peer = begun.connect();
        for _ in 0..200 {
            assert_eq!(peer.integers(command)[0], 1, "{command}");
        }
        let leased = begun.info_value("store_count_lease");
        assert!((least..=most).contains(&leased), "{command}: {leased}");
        // A server that stops gives back what it has not used.
        drop(begun);
        if !command.contains("queue") {
            let peek = command.replace("TAKE", "PEEK");
            assert_eq!(server(0).connect().integers(&peek)[2], 10_000 - 200, "{command}");
        }
    }
    // A pipeline.
    let server = server(0);
    let mut peer = server.connect();
    for _ in 0..200 {
        peer.send_command("SG.TAKE g @few");
    }
    (0..200).for_each(|_| assert_eq!(integers(&peer.read_reply())[0], 1));
    assert!(server.info_value("store_count_lease") >= 150);
    // The gate.
    let mut client = Client::connect(&server);
    for _ in 0..200 {
        client.send_request("GET", "/v1/gate", "X-Forwarded-Uri: /\r\n");
        assert_eq!(client.read_reply().status, 200);
    }
    assert!(server.info_value("store_count_lease") >= 300);
}

/// A request that waits is not woken by another server, so it asks again in time.
#[test]
fn redis_store_wait_passes_after_another_server_resets_the_key() {
    let store = Server::start(Engine::Redis70);
    let (one, other) = (plain(&store), plain(&store));
    assert_eq!(one.connect().integers("SG.TAKE k gcra:1/1h")[0], 1);
    let mut waiting = one.connect();
    waiting.send_command("SG.WAIT k gcra:1/1h TIMEOUT 36000000000");
    one.until_exactly("blocked_clients", 1);
    assert_eq!(other.connect().integers("SG.PEEK k gcra:1/1h")[0], 0);
    other.connect().send_command("SG.RESET k");
    assert_eq!(integers(&waiting.read_reply())[0], 1);
}

#[test]
fn redis_store_replies_are_in_order() {
    let store = Server::start(Engine::Redis70);
    let server = on(&store, |_, at| at.redis.prefix = b"limits:".to_vec());
    let mut peer = server.connect();
    for line in [
        "SG.TAKE a gcra:1/1h:burst=3",
        "PING",
        "SG.TAKE a gcra:1/1h:burst=3 COST 9",
        "EXISTS a b a",
        "SG.MTAKE 2 a gcra:1/1h:burst=3 1 b sliding-log:2/1h 2",
        "ECHO between",
        "HELLO 3",
        "SG.INFO b",
        "CL.THROTTLE c 2 1 3600",
        "SG.REFUND a gcra:1/1h:burst=3",
        "SG.RESET a",
        "SG.RESET a",
        "DEL b b c",
        "TTL b",
        "SG.TAKE a nonsense",
        "SG.TAKE a gcra:1/1h:burst=3",
    ] {
        peer.send_command(line);
    }
    let allowed = |value: &Value, expected: i64| {
        let Value::Array(integers) = value else { panic!("{value:?}") };
        assert_eq!(integers[0], Value::Integer(expected), "{value:?}");
    };
    allowed(&peer.read_reply(), 1);
    assert_eq!(peer.read_reply(), simple("PONG"));
    allowed(&peer.read_reply(), 0);
    assert_eq!(peer.read_reply(), Value::Integer(2));
    let Value::Array(both) = peer.read_reply() else { panic!() };
    both.iter().for_each(|each| allowed(each, 1));
    assert_eq!(peer.read_reply(), Value::Bulk(b"between".to_vec()));
    assert!(matches!(peer.read_reply(), Value::Map(_)));
    let Value::Map(pairs) = peer.read_reply() else { panic!() };
    assert_eq!(pairs[0].1, Value::Bulk(b"sliding-log:2/1h".to_vec()));
    allowed(&peer.read_reply(), 0);
    allowed(&peer.read_reply(), 1);
    assert_eq!(peer.read_reply(), Value::Integer(1));
    assert_eq!(peer.read_reply(), Value::Integer(0));
    assert_eq!(peer.read_reply(), Value::Integer(2));
    assert_eq!(peer.read_reply(), Value::Integer(-2));
    let Value::Error(error) = peer.read_reply() else { panic!() };
    assert!(error.starts_with(b"SGPOLICY "));
    let Value::Array(integers) = peer.read_reply() else { panic!() };
    assert_eq!(integers[..3], [Value::Integer(1), Value::Integer(3), Value::Integer(2)]);
    let keys: Vec<String> = store.query("KEYS *");
    assert_eq!(keys, ["limits:a"]);
    assert!(peer.error("DBSIZE").starts_with("ERR DBSIZE is unavailable: the keys are in a store"));
}

/// A batch beyond the memory budget is not sent to the store, and replies stay in order.
#[test]
fn redis_store_batch_beyond_the_budget_is_rejected_in_order() {
    let store = Server::start(Engine::Redis70);
    let server = on(&store, |config, _| config.max_buffer_memory = 64 * 1024);
    let mut peer = server.connect();
    let takes = "SG.TAKE a gcra:1000/1h\r\n".repeat(200);
    peer.send(format!("PING\r\n{takes}ECHO behind\r\n"));
    assert_eq!(peer.rest(), "+PONG\r\n-ERR max buffer memory reached\r\n");
    assert_eq!(server.connect().integers("SG.TAKE a gcra:1000/1h")[2], 999, "none was taken");
    assert_eq!(server.info_value("buffer_bytes"), 0);
}

/// A pipeline that is longer than one batch.
#[test]
fn redis_store_long_pipelines_are_answered_in_full() {
    let store = Server::start(Engine::Valkey91);
    let server = plain(&store);
    let mut peer = server.connect();
    let mut sent = Vec::new();
    for index in 0..6_000 {
        let line: String = match index % 7 {
            0 => format!("ECHO {index}"),
            1 => format!("SG.PEEK p{} gcra:9/1h", index % 40),
            _ => format!("SG.TAKE k{} gcra:5/1h", index % 500),
        };
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        sluicegate_resp::encode_command(&words, &mut sent);
    }
    std::thread::scope(|scope| {
        let mut writing = peer.stream.try_clone().unwrap();
        scope.spawn(move || std::io::Write::write_all(&mut writing, &sent).unwrap());
        let mut allowed = 0;
        for index in 0..6_000 {
            match (index % 7, peer.read_reply()) {
                (0, echo) => assert_eq!(echo, Value::Bulk(index.to_string().into_bytes())),
                (kind, Value::Array(actual)) => {
                    allowed += usize::from(kind > 1 && actual[0] == Value::Integer(1));
                }
                (_, other) => panic!("{other:?}"),
            }
        }
        // Each of 500 keys gets at least eight requests.
        assert_eq!(allowed, 5 * 500);
    });
}

#[test]
fn redis_store_unavailable_applies_on_error_and_recovers() {
    let mut store = Server::start(Engine::Redis70);
    let away = |on_error, prefix: &str| {
        let prefix = prefix.as_bytes().to_vec();
        on(&store, |_, at| {
            at.on_error = on_error;
            at.redis.prefix = prefix;
            at.redis.deadline = Duration::from_millis(200);
        })
    };
    let servers = [
        away(OnError::Deny, "deny:"),
        away(OnError::Allow, "allow:"),
        away(OnError::Local(Share::of(1, 4).unwrap()), "local:"),
    ];
    for server in &servers {
        assert_eq!(server.connect().integers("SG.TAKE k gcra:1/1h:burst=8")[..3], [1, 8, 7]);
        assert_eq!(server.info_value("store_connected"), 1);
    }
    store.kill();
    let counted = |server: &Running| {
        let mut peer = server.connect();
        let taken = (0..6).map(|_| peer.integers("SG.TAKE k gcra:1/1h:burst=8")[0]);
        taken.sum::<i64>()
    };
    // Locally, a quarter of eight is two, of which one was used (rounded up).
    assert_eq!(servers.each_ref().map(counted), [0, 6, 1]);
    for server in &servers {
        let mut peer = server.connect();
        for line in [
            "SG.REFUND k gcra:1/1h:burst=8",
            "SG.CHARGE k gcra:1/1h:burst=8",
            "SG.SETTLE k concurrency:2/1h a",
            "SG.RENEW k concurrency:2/1h a",
            "SG.RESET k",
            "SG.INFO k",
            "EXISTS k",
        ] {
            let error = peer.error(line);
            assert!(error.starts_with("SGSTORE the store "), "{line}: {error}");
        }
        // The error is not repeated for later commands.
        assert_eq!(peer.call("PING"), simple("PONG"));
        let info = peer.call("INFO store");
        let Value::Bulk(text) = info else { panic!() };
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("store:redis\r\n") && text.contains("store_connected:0\r\n"),
            "{text}"
        );
    }
    let mut peer = servers[0].connect();
    for line in [
        "SG.PEEK k gcra:1/1h",
        "SG.RESERVE k gcra:1/1h MAXWAIT 1000",
        "SG.WAIT k gcra:1/1h TIMEOUT 1000",
        "SG.HOLD k concurrency:2/1h a",
    ] {
        let denied = peer.integers(line);
        assert_eq!((denied[0], denied[3]), (0, 100_000), "{line}");
    }
    // Those behind the first in the queue of the key, too.
    for (server, operation, allowed) in [
        (&servers[0], "SG.WAIT w gcra:50/1s:burst=1", 0),
        (&servers[0], "SG.HOLD w concurrency:1/30s id", 0),
        (&servers[1], "SG.WAIT w gcra:50/1s:burst=1", 6),
        (&servers[1], "SG.HOLD w concurrency:1/30s id", 6),
        (&servers[2], "SG.WAIT w gcra:8/1h:burst=8", 2),
        (&servers[2], "SG.HOLD w concurrency:4/30s id", 1),
    ] {
        let mut waiting = Vec::new();
        for number in 0..6 {
            let mut peer = server.connect();
            let of_one =
                if operation.starts_with("SG.HOLD") { number.to_string() } else { String::new() };
            peer.send_command(&format!("{operation}{of_one} TIMEOUT 100000"));
            waiting.push(peer);
        }
        let passed: i64 = waiting.iter_mut().map(|peer| integers(&peer.read_reply())[0]).sum();
        assert_eq!(passed, allowed, "{operation}");
    }
    assert_eq!(peer.integers("CL.THROTTLE k 7 1 3600")[0], 1, "it is limited");
    for line in ["SG.MTAKE 1 k gcra:1/1h 1", "SG.TAKEALL 1 k gcra:1/1h 1"] {
        let Value::Array(replies) = peer.call(line) else { panic!("{line}") };
        let denied = replies.iter().map(integers).all(|it| (it[0], it[3]) == (0, 100_000));
        assert!(denied, "{line}: {replies:?}");
    }
    store.restart();
    let start = now();
    for (server, used) in servers.iter().zip([1, 1, 1]) {
        let mut peer = server.connect();
        // This node has restarted empty; the other stores differ by prefix.
        while peer.call("SG.REFUND other gcra:1/1h") == Value::Null
            || server.info_value("store_connected") == 0
            || server.info_value("store_breaker_open") > 0
        {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(peer.integers("SG.TAKE k gcra:1/1h:burst=8")[..3], [1, 8, 8 - used]);
    }
    println!("figure: all servers use the store again {:?} after it is back", start.elapsed());
}

/// Departures of a queue are spaced for all servers together; others wait until they pass.
#[test]
fn redis_store_waiters_of_several_servers_take_turns() {
    for policy in ["leaky-queue:20/1s:capacity=20", "fixed-window:1/50ms"] {
        let store = Server::start(Engine::Redis70);
        let servers = [plain(&store), plain(&store)];
        let start = now();
        std::thread::scope(|scope| {
            for server in servers.iter().cycle().take(6) {
                scope.spawn(move || {
                    let line = format!("SG.WAIT turn {policy} TIMEOUT 30000000");
                    assert_eq!(server.connect().integers(&line)[0], 1);
                });
            }
        });
        let took = start.elapsed();
        println!("figure: six waiting clients of two servers under {policy}: {took:?}");
        assert!(took >= Duration::from_millis(240), "{policy}: {took:?}");
    }
}

#[test]
fn redis_store_waiting_client_that_leaves_releases_its_units() {
    let store = Server::start(Engine::Redis70);
    let server = plain(&store);
    let policy = "leaky-queue:1/1h:capacity=5";
    assert_eq!(server.connect().integers(&format!("SG.TAKE q {policy}"))[..3], [1, 5, 4]);
    let mut waits = server.connect();
    waits.send_command(&format!("SG.WAIT q {policy} TIMEOUT 36000000000"));
    server.until_exactly("blocked_clients", 1);
    let mut looks = server.connect();
    let mut remaining = || looks.integers(&format!("SG.PEEK q {policy}"))[2];
    eventually_true("it has a place", || remaining() == 3);
    drop(waits);
    eventually_true("it gave its place back", || remaining() == 4);
    server.until_exactly("blocked_clients", 0);
    // A request that cannot pass in time is denied at once.
    let actual = server.connect().integers(&format!("SG.WAIT q {policy} COST 2 TIMEOUT 1000"));
    assert_eq!(actual[0], 0);
    let actual = server.connect().integers("SG.WAIT w fixed-window:1/1h COST 2 TIMEOUT 1000000");
    assert_eq!(actual[3], -1);
}

/// Its operation has reached the store, and the answer has not reached the server.
#[test]
fn redis_store_waiting_client_that_leaves_before_the_answer_releases_its_units() {
    let store = Server::start(Engine::Redis70);
    let server = plain(&store);
    let mut looks = server.connect();
    let policy = "leaky-queue:1/1h:capacity=9";
    assert_eq!(looks.integers(&format!("SG.TAKE q {policy}"))[..3], [1, 9, 8]);
    store.signal("-STOP");
    let mut waits = server.connect();
    waits.send_command(&format!("SG.WAIT q {policy} COST 5 TIMEOUT 36000000000"));
    server.until_exactly("blocked_clients", 1);
    drop(waits);
    server.until_exactly("blocked_clients", 0);
    store.signal("-CONT");
    eventually_true("the units are returned", || {
        looks.integers(&format!("SG.PEEK q {policy}"))[2] == 8
    });
}

#[test]
fn redis_store_key_of_another_type_is_an_error() {
    let store = Server::start(Engine::Redis70);
    let server = plain(&store);
    let mut peer = server.connect();
    let _: i64 = store.query("RPUSH list x");
    let _: () = store.query("SET garbage \u{2}xyz");
    let _: () = store.query("SET cell 1700000000000000000");
    for line in ["SG.TAKE list gcra:1/1h", "SG.INFO list", "SG.RESET list", "TTL list"] {
        let error = peer.error(line);
        assert!(
            error.contains("` does not hold a string, so Sluicegate did not"),
            "{line}: {error}"
        );
    }
    for line in ["SG.TAKE garbage gcra:1/1h", "SG.INFO garbage"] {
        let error = peer.error(line);
        assert!(
            error.starts_with("SGSTATE key `garbage` holds damaged state: "),
            "{line}: {error}"
        );
    }
    let _: () = store.query("SET foreign bar");
    for line in ["CL.THROTTLE foreign 15 30 60", "SG.INFO foreign"] {
        let expected = "SGSTATE key `foreign` holds a value that Sluicegate did not write";
        assert_eq!(peer.error(line), expected, "{line}");
    }
    assert!(peer.error("SG.INFO cell").starts_with("SGSTATE key `cell` holds state of redis-cell"));
    assert_eq!(peer.call("SG.RESET garbage"), Value::Integer(1));
    assert_eq!(peer.integers("SG.TAKE garbage gcra:1/1h")[0], 1);
}

#[test]
fn settings_that_exclude_a_store_are_rejected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = |configure: &dyn Fn(&mut Config, &mut StoreConfig)| {
        let mut config = crate::harness::config();
        let mut at = StoreConfig::new("redis://127.0.0.1:1/");
        configure(&mut config, &mut at);
        config.store = Some(at);
        let bound = runtime.block_on(sluicegate_server::Server::bind(config));
        bound.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(
        refused(&|config, _| config.memory.state_file = Some("x".into()))
            .starts_with("invalid --state-file together with --store")
    );
    let both = refused(&|config, at| {
        config.test_clock = true;
        at.redis.prefix = b"x:".to_vec();
    });
    assert!(both.starts_with("invalid --store-prefix together with --test-clock"), "{both}");
    assert!(refused(&|_, at| at.url = "http://x".to_owned()).contains("unknown scheme `http`"));
    // The server waits for a store that is unavailable.
    assert_eq!(refused(&|_, _| {}), "");
}

/// The prefix is a part of the key: a key that the protocols allow may be too long. It is never decided by the fallback.
#[test]
fn redis_store_key_too_long_with_the_prefix_is_an_error_of_the_client() {
    for arguments in [&[][..], &["--loadmodule", sluicegate_testing::module()]] {
        let store = Server::with(Engine::Redis70, arguments);
        let server = on(&store, |config, at| {
            config.http.address = Some(any_port());
            at.on_error = OnError::Allow;
            at.redis.prefix = b"limits:".to_vec();
        });
        let (mut peer, mut client) = (server.connect(), Client::connect(&server));
        let text =
            "invalid key: expected 1 to 65536 bytes, found 65537 with the prefix of the store";
        let key = "k".repeat(65_530);
        let of = |key: &str| format!(r#""key":"{key}","policy":"gcra:1/1h""#);
        for (command, more) in [
            ("SG.TAKE", &[][..]),
            ("SG.PEEK", &[]),
            ("SG.CHARGE", &[]),
            ("SG.REFUND", &[]),
            ("SG.RESERVE", &[]),
            ("SG.WAIT", &[&b"TIMEOUT"[..], b"1000"]),
            ("SG.HOLD", &[b"id", b"TTL", b"60000000"]),
            ("SG.SETTLE", &[b"id"]),
            ("SG.RENEW", &[b"id", b"TTL", b"60000000"]),
        ] {
            let arguments = [command.as_bytes(), key.as_bytes(), b"gcra:1/1h"];
            let reply = peer.call_bytes(&[&arguments[..], more].concat());
            assert_eq!(error(&reply), format!("ERR {text}"), "{command}");
        }
        for (path, body) in [
            ("/v1/take", format!("{{{}}}", of(&key))),
            ("/v1/take", format!("{{{},\"wait_us\":1000}}", of(&key))),
            ("/v1/hold", format!("{{{},\"id\":\"a\",\"ttl_us\":60000000}}", of(&key))),
            ("/v1/take_all", format!("{{\"takes\":[{{{}}},{{{}}}]}}", of("other"), of(&key))),
            ("/v1/reset", format!("{{\"key\":\"{key}\"}}")),
        ] {
            let reply = client.post(path, body);
            assert_eq!((reply.status, &*reply.detail()), (422, text), "{path}");
        }
        // None of several keys is charged, settled or reset if one is too long.
        for (path, body) in [
            ("/v1/take_many", format!("{{\"requests\":[{{{}}},{{{}}}]}}", of("other"), of(&key))),
            (
                "/v1/settle_all",
                format!("{{\"id\":\"a\",\"settles\":[{{{}}},{{{}}}]}}", of("other"), of(&key)),
            ),
        ] {
            let reply = client.post(path, body);
            assert_eq!(reply.status, 422, "{path}");
            assert!(reply.detail().contains(text), "{path}: {}", reply.detail());
        }
        assert_eq!(peer.integers("SG.TAKE stays gcra:1/1h")[0], 1);
        let reply = peer.call_bytes(&[b"DEL", b"stays", key.as_bytes()]);
        assert_eq!(error(&reply), format!("ERR {text}"));
        assert_eq!(peer.integers("SG.PEEK stays gcra:1/1h")[0], 0, "it is not reset");
        // The longest key that fits is limited.
        let longest = key.strip_suffix('k').unwrap();
        let takes =
            [(); 2].map(|()| client.post("/v1/take", format!("{{{}}}", of(longest))).status);
        assert_eq!(takes, [200, 429]);
        assert_eq!(peer.integers("SG.PEEK other gcra:1/1h")[2], 1, "no other key is charged");
    }
}
