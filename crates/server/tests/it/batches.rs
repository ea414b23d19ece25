//! All commands of one read are decided at one time and answered in order; few clients use all workers.

use sluicegate_resp::{Value, encode_command};

use crate::harness::{RawClient, Running, bulk, integers, simple};

/// A policy that does not recover during a test.
const SLOW: &str = "gcra:1/1d:burst=1000";

/// The first three integers of a decision, which do not depend on time.
fn timeless(value: &Value) -> Vec<i64> {
    integers(value)[..3].to_vec()
}

/// Commands of all kinds, with their replies when they are sent one by one.
fn mixed(count: usize) -> Vec<(String, Value)> {
    let mut state = 7_u64;
    let (mut left, mut throttled) = (1000, 1000);
    let decision = |left: i64| Value::Array([1, 1000, left].map(Value::Integer).to_vec());
    let mut take = |cost: i64| {
        left -= cost;
        decision(left)
    };
    let commands = (0..count).map(|index| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (state >> 33) % 12 {
            0..4 => (format!("SG.TAKE k {SLOW} COST 1"), take(1)),
            4 => (format!("SG.PEEK k {SLOW}"), take(0)),
            5 => (format!("SG.REFUND k {SLOW} COST 1"), take(-1)),
            6 => {
                throttled -= 1;
                let received = [0, 1000, throttled].map(Value::Integer).to_vec();
                ("CL.THROTTLE t 999 1 86400".to_owned(), Value::Array(received))
            }
            7 => {
                let line = format!("SG.MTAKE 3 k {SLOW} 1 k {SLOW} 0 k {SLOW} 1");
                (line, Value::Array(vec![take(1), take(0), take(1)]))
            }
            8 => (format!("ECHO {index}"), bulk(&index.to_string())),
            9 => (format!("sg.charge k {SLOW} cost 1"), take(1)),
            10 => {
                let received = format!("SGPOLICY `x{index}` is no policy");
                (format!("SG.TAKE k x{index}"), Value::Error(received.into_bytes()))
            }
            _ => ("PING".to_owned(), simple("PONG")),
        }
    });
    commands.collect()
}

/// The replies, without integers that depend on time.
fn without_time(received: Value) -> Value {
    match received {
        Value::Array(elements) if matches!(elements[0], Value::Array(_)) => {
            Value::Array(elements.into_iter().map(without_time).collect())
        }
        Value::Array(_) => {
            Value::Array(timeless(&received).into_iter().map(Value::Integer).collect())
        }
        other => other,
    }
}

fn send_all(peer: &mut RawClient, lines: impl Iterator<Item = String>) {
    let mut bytes = Vec::new();
    for line in lines {
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        encode_command(&arguments, &mut bytes);
    }
    peer.send(bytes);
}

#[test]
fn pipeline_of_all_commands_is_answered_in_order_and_counted() {
    let server = Running::new();
    let mut peer = server.connect();
    let commands = mixed(700);
    send_all(&mut peer, commands.iter().map(|(line, _)| line.clone()));
    let (mut decisions, mut errors) = (0, 0);
    for (index, (line, expected)) in commands.iter().enumerate() {
        let received = without_time(peer.read_reply());
        match (&received, expected) {
            (Value::Error(received), Value::Error(_)) => {
                errors += 1;
                assert!(received.starts_with(b"SGPOLICY "), "{index}: {line}");
            }
            _ => assert_eq!(&received, expected, "{index}: {line}"),
        }
        decisions += match line.split(' ').next().unwrap() {
            "SG.MTAKE" => 3,
            "ECHO" | "PING" => 0,
            _ => u64::from(!matches!(received, Value::Error(_))),
        };
    }
    assert_eq!(server.info_value("decisions"), decisions);
    assert_eq!((server.info_value("allowed"), server.info_value("denied")), (decisions, 0));
    assert_eq!(server.info_value("total_error_replies"), errors);
}

#[test]
fn pipeline_repeated_command_cut_anywhere_is_answered() {
    let server = Running::with(|config| config.workers = Some(1));
    let [mut peer, mut other] = [server.connect(), server.connect()];
    let mut left = 1000;
    let mut next = || {
        left -= 1;
        vec![1, 1000, left]
    };
    for peer in [&mut peer, &mut other] {
        assert_eq!(timeless(&peer.call(&format!("SG.TAKE k {SLOW}"))), next());
    }
    let mut bytes = Vec::new();
    encode_command(&[b"SG.TAKE", b"k", SLOW.as_bytes()], &mut bytes);
    for cut in 1..bytes.len() {
        // An incomplete command waits; other clients are served.
        peer.send(&bytes[..cut]);
        assert_eq!(timeless(&other.call(&format!("SG.TAKE k {SLOW}"))), next(), "{cut}");
        peer.send([&bytes[cut..], &*bytes].concat());
        assert_eq!(timeless(&peer.read_reply()), next(), "{cut}");
        assert_eq!(timeless(&peer.read_reply()), next(), "{cut}");
    }
    let Value::Bulk(listed) = other.call("CLIENT LIST") else { panic!("no text") };
    let listed = String::from_utf8(listed).unwrap();
    assert_eq!(listed.matches("cmd=sg.take").count(), 1, "{listed}");
}

#[test]
fn pipeline_named_policy_is_looked_up_after_a_reload() {
    let folder = crate::harness::TempDir::new();
    let file = folder.file("rules.yaml");
    let write = |limit: u32| {
        let policy = format!("policies: {{gold: 'fixed-window:{limit}/1h'}}");
        std::fs::write(&file, policy).unwrap();
    };
    write(10);
    let server = Running::with(|config| {
        config.workers = Some(1);
        config.rules = vec![file.clone()];
    });
    let mut peer = server.connect();
    for left in [9, 8, 7] {
        assert_eq!(peer.integers("SG.TAKE k @gold")[1..3], [10, left]);
    }
    write(20);
    server.reload().unwrap();
    assert_eq!(peer.integers("SG.TAKE k @gold")[1..3], [20, 16]);
}

#[test]
fn pipeline_command_after_a_decision_sees_its_effect() {
    let server = Running::new();
    let mut peer = server.connect();
    let lines = [
        "SG.TAKE k gcra:1/1h",
        "SG.TAKE k gcra:1/1h",
        "EXISTS k",
        "SG.RESET k",
        "SG.TAKE k gcra:1/1h",
        "DEL k",
        "SG.WAIT k gcra:1/1h TIMEOUT 0",
        "SG.TAKE k gcra:1/1h",
        "SG.RESERVE k fixed-window:1/s",
        "SG.TAKE k",
        "QUIT",
        "PING",
    ];
    send_all(&mut peer, lines.into_iter().map(str::to_owned));
    let mut allowed = || integers(&peer.read_reply())[0];
    assert_eq!((allowed(), allowed()), (1, 0));
    assert_eq!((peer.read_reply(), peer.read_reply()), (Value::Integer(1), Value::Integer(1)));
    assert_eq!(integers(&peer.read_reply())[0], 1);
    assert_eq!(peer.read_reply(), Value::Integer(1));
    assert_eq!((integers(&peer.read_reply())[0], integers(&peer.read_reply())[0]), (1, 0));
    assert!(matches!((peer.read_reply(), peer.read_reply()), (Value::Error(_), Value::Error(_))));
    assert_eq!((peer.read_reply(), peer.rest().as_str()), (simple("OK"), ""));
    assert_eq!((server.info_value("allowed"), server.info_value("denied")), (3, 2));
    assert_eq!(server.info_value("total_error_replies"), 2);
}

#[test]
fn pipeline_invented_policies_are_answered_and_evicted() {
    let server = Running::new();
    let mut peer = server.connect();
    // Each text once, more than the cache holds: some too long for the cache, some in a
    // command that fails or waits.
    let longest =
        ["token-bucket:4294967295/8784h:capacity=4294967295:refill=interval"; 8].join(",");
    assert!(longest.len() > 512);
    let lines = (1..=3000_u32).flat_map(|number| {
        [
            format!("SG.TAKE k{number} gcra:1/{number}s"),
            format!("SG.MTAKE 2 k gcra:2/{number}s 1 k nonsense 1"),
            format!("SG.TAKE l{number} {longest} COST 0"),
            format!("SG.WAIT w{number} gcra:3/{number}s TIMEOUT 0"),
        ]
    });
    let lines: Vec<_> = lines.collect();
    for some in lines.chunks(400) {
        send_all(&mut peer, some.iter().cloned());
        for line in some {
            match peer.read_reply() {
                Value::Error(_) => assert!(line.contains("nonsense"), "{line}"),
                received => assert_eq!(integers(&received)[0], 1, "{line}"),
            }
        }
    }
    assert_eq!(server.info_value("decisions"), 9000);
}

/// Clients, commands and decisions of each worker, by `INFO`.
fn workers(peer: &mut RawClient) -> Vec<[u64; 3]> {
    let Value::Bulk(text) = peer.call("INFO workers") else { panic!("no text") };
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("worker_"));
    let actual = lines.map(|line| {
        let numbers = line.split(['=', ',']).filter_map(|part| part.parse().ok());
        numbers.collect::<Vec<u64>>().try_into().unwrap()
    });
    actual.collect()
}

#[test]
fn workers_few_clients_are_distributed_evenly() {
    for count in [1, 2, 3] {
        let server = Running::with(|config| config.workers = Some(count));
        let mut peers: Vec<_> = (0..2 * count).map(|_| server.connect()).collect();
        for peer in &mut peers {
            for _ in 0..10 {
                assert_eq!(peer.integers("CL.THROTTLE k 99 1 3600")[0], 0);
            }
        }
        let actual = workers(&mut peers[0]);
        let each: Vec<_> =
            actual.iter().map(|[clients, _, decisions]| (*clients, *decisions)).collect();
        assert_eq!(each, vec![(2, 20); count]);
        assert_eq!(server.info_value("decisions"), 20 * count as u64);
    }
}

#[test]
fn wait_is_woken_from_any_worker() {
    let server = Running::with(|config| config.workers = Some(2));
    let mut first = server.connect();
    assert_eq!(first.integers("SG.TAKE k gcra:1/1h")[0], 1);
    let mut waiting: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for peer in &mut waiting {
        peer.send_command("SG.WAIT k gcra:1/1h TIMEOUT 36000000000");
    }
    server.until_exactly("blocked_clients", 4);
    for left in (0..4).rev() {
        assert_eq!(first.integers("SG.REFUND k gcra:1/1h")[0], 1);
        server.until_exactly("blocked_clients", left);
    }
    for peer in &mut waiting {
        assert_eq!(integers(&peer.read_reply())[0], 1);
    }
}
