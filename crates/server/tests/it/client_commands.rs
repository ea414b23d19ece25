//! `CLIENT`, `COMMAND`, `INFO` and the generic commands.

use std::time::SystemTime;

use sluicegate_core::{Entry, Timestamp};
use sluicegate_resp::Value;

use crate::harness::{Running, bulk, simple};

fn text(value: Value) -> String {
    let (Value::Bulk(text) | Value::Verbatim(_, text)) = value else {
        panic!("no text: {value:?}")
    };
    String::from_utf8(text).unwrap()
}

fn elements(value: Value) -> Vec<Value> {
    let Value::Array(elements) = value else { panic!("no array: {value:?}") };
    elements
}

#[test]
fn client_setname_and_setinfo_are_listed() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.call("CLIENT SETNAME me"), simple("OK"));
    assert_eq!(peer.call("client setinfo lib-name test"), simple("OK"));
    assert_eq!(peer.call("CLIENT SETINFO LIB-VER 1.2"), simple("OK"));
    let Value::Integer(id) = peer.call("CLIENT ID") else { panic!("no id") };
    let info = text(peer.call("CLIENT INFO"));
    let address = peer.stream.local_addr().unwrap();
    for part in [
        &*format!("id={id} addr={address} "),
        " name=me ",
        " cmd=client ",
        " resp=2 lib-name=test lib-ver=1.2\n",
    ] {
        assert!(info.contains(part), "{info}");
    }
    assert_eq!(text(peer.call("CLIENT LIST")), info);
    for line in
        ["CLIENT NO-EVICT ON", "CLIENT NO-TOUCH off", "CLIENT REPLY ON", "CLIENT TRACKING OFF"]
    {
        assert_eq!(peer.call(line), simple("OK"), "{line}");
    }
    for (sent, expected) in [
        (
            "CLIENT MAINT_NOTIFICATIONS ON",
            "ERR unknown subcommand 'MAINT_NOTIFICATIONS' of CLIENT: expected one that CLIENT HELP lists",
        ),
        (
            "CLIENT ID 5",
            "ERR wrong number of arguments for 'client|id' command; expected a form that CLIENT HELP lists",
        ),
        (
            "CLIENT",
            "ERR wrong number of arguments for 'client' command; expected CLIENT subcommand",
        ),
        (
            "CONFIG GET",
            "ERR wrong number of arguments for 'config|get' command; expected CONFIG GET pattern [pattern ...]",
        ),
        ("CLIENT SETINFO x y", "ERR Unrecognized option 'x'"),
        ("CLIENT KILL 127.0.0.1:1", "ERR No such client"),
        ("CLIENT KILL ID x", "ERR client-id should be greater than 0"),
        ("CLIENT KILL WHO ME", "ERR syntax error"),
        ("CLIENT REPLY SKIP", "ERR unsupported CLIENT REPLY `SKIP`: expected ON"),
        (
            "CLIENT TRACKING off BCAST",
            "ERR unsupported CLIENT TRACKING OFF `BCAST`: expected no option",
        ),
        ("CLIENT TRACKING on BCAST", "ERR unsupported CLIENT TRACKING `on`: expected OFF"),
        ("CONFIG SET save x", "ERR unknown subcommand 'SET' of CONFIG: expected GET"),
    ] {
        assert_eq!(peer.error(sent), expected);
    }
    let name = peer.call_bytes(&[b"CLIENT", b"SETNAME", b"a b"]);
    assert!(crate::harness::error(&name).starts_with("ERR Client names cannot contain spaces"));
    let long = [b'x'; 257];
    for (words, what) in [
        (&[&b"CLIENT"[..], b"SETNAME"][..], "client name"),
        (&[b"CLIENT", b"SETINFO", b"LIB-NAME"], "lib-name"),
        (&[b"HELLO", b"2", b"SETNAME"], "client name"),
    ] {
        let reply = peer.call_bytes(&[words, &[&long]].concat());
        let text = format!("ERR invalid {what}: expected at most 256 bytes, found 257");
        assert_eq!(crate::harness::error(&reply), text);
    }
}

#[test]
fn client_kill_closes_clients() {
    let server = Running::new();
    let mut peer = server.connect();
    let mut victim = server.connect();
    let Value::Integer(id) = victim.call("CLIENT ID") else { panic!("no id") };
    assert_eq!(peer.call(&format!("CLIENT KILL ID {id}")), Value::Integer(1));
    assert_eq!(victim.rest(), "");

    let mut victim = server.connect();
    assert_eq!(victim.call("PING"), simple("PONG"));
    let address = victim.stream.local_addr().unwrap();
    assert_eq!(peer.call(&format!("CLIENT KILL {address}")), simple("OK"));
    assert_eq!(victim.rest(), "");

    let own = peer.stream.local_addr().unwrap();
    assert_eq!(peer.call(&format!("CLIENT KILL ADDR {own}")), Value::Integer(0), "it skips itself");
    assert_eq!(peer.call(&format!("CLIENT KILL ADDR {own} SKIPME no")), Value::Integer(1));
    assert_eq!(peer.rest(), "");
}

#[test]
fn client_kill_removes_waiting_clients() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE l gcra:1/1h")[0], 1);
    let mut victim = server.connect();
    let Value::Integer(id) = victim.call("CLIENT ID") else { panic!("no id") };
    victim.send_command("SG.WAIT l gcra:1/1h TIMEOUT 10000000000");
    server.until_exactly("blocked_clients", 1);
    assert_eq!(peer.call(&format!("CLIENT KILL ID {id}")), Value::Integer(1));
    assert_eq!(victim.rest(), "");
    server.until_exactly("blocked_clients", 0);
}

#[test]
fn command_describes_all_commands() {
    let server = Running::new();
    let mut peer = server.connect();
    let Value::Integer(count) = peer.call("COMMAND COUNT") else { panic!("no count") };
    for line in ["COMMAND", "COMMAND INFO", "COMMAND LIST"] {
        assert_eq!(elements(peer.call(line)).len(), usize::try_from(count).unwrap(), "{line}");
    }
    let entries = elements(peer.call("COMMAND INFO sg.take nonsense SG.MTAKE"));
    let entry = elements(entries[0].clone());
    assert_eq!(entry.len(), 10);
    assert_eq!(entry[..2], [bulk("sg.take"), Value::Integer(-3)]);
    assert_eq!(entry[2], Value::Array(vec![simple("write"), simple("denyoom"), simple("fast")]));
    assert_eq!(entry[3..6], [Value::Integer(1), Value::Integer(1), Value::Integer(1)]);
    assert_eq!(entries[1], Value::Null);
    let text = format!("{:?}", elements(entries[2].clone())[8]);
    assert!(text.contains(&format!("{:?}", bulk("keynum"))), "{text}");

    for (line, keys) in [
        ("COMMAND GETKEYS SG.TAKE k gcra:1/s", vec![bulk("k")]),
        ("COMMAND GETKEYS CL.THROTTLE k 1 1 1", vec![bulk("k")]),
        ("COMMAND GETKEYS SG.MTAKE 2 a p 1 b p 1", vec![bulk("a"), bulk("b")]),
        ("COMMAND GETKEYS DEL a b c", vec![bulk("a"), bulk("b"), bulk("c")]),
    ] {
        assert_eq!(elements(peer.call(line)), keys, "{line}");
    }
    for (sent, expected) in [
        ("COMMAND GETKEYS PING", "ERR The command has no key arguments"),
        ("COMMAND GETKEYS nonsense", "ERR Invalid command specified"),
        ("COMMAND GETKEYS SG.TAKE k", "ERR Invalid number of arguments specified for command"),
        ("COMMAND GETKEYS SG.MTAKE 9 a p 1", "ERR Invalid arguments specified for command"),
        (
            "COMMAND NONSENSE",
            "ERR unknown subcommand 'NONSENSE' of COMMAND: expected COUNT, DOCS, GETKEYS, INFO or LIST",
        ),
    ] {
        assert_eq!(peer.error(sent), expected, "{sent}");
    }

    assert!(matches!(peer.call("HELLO 3"), Value::Map(_)));
    let Value::Map(docs) = peer.call("COMMAND DOCS") else { panic!("no map") };
    assert_eq!(docs.len(), usize::try_from(count).unwrap());
    let Value::Map(docs) = peer.call("COMMAND DOCS sg.wait nonsense") else { panic!("no map") };
    let [(name, Value::Map(doc))] = &docs[..] else { panic!("not one: {docs:?}") };
    assert_eq!(name, &bulk("sg.wait"));
    let names: Vec<_> = doc.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, [bulk("summary"), bulk("since"), bulk("group"), bulk("arguments")]);
}

#[test]
fn info_counts_commands_and_decisions() {
    let server = Running::new();
    let mut peer = server.connect();
    for _ in 0..3 {
        peer.integers("SG.TAKE k fixed-window:2/1h");
    }
    peer.call("SG.MTAKE 2 k gcra:1/h 0 l gcra:1/h 1");
    peer.error("SG.TAKE k");
    peer.error("nonsense");
    let info = text(peer.call("INFO"));
    for line in [
        "redis_version:7.4.0",
        "server_name:sluicegate",
        "redis_mode:standalone",
        "loading:0",
        "role:master",
        "connected_clients:1",
        "decisions:5",
        "allowed:4",
        "denied:1",
        "keys:2",
        "total_error_replies:2",
        "cmdstat_sg.take:calls=4",
        "cmdstat_sg.mtake:calls=1",
        "db0:keys=2,expires=2,avg_ttl=0",
    ] {
        assert!(info.lines().any(|found| found == line), "{line} is not in\n{info}");
    }
    let one = text(peer.call("INFO replication"));
    assert_eq!(one, "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
    assert_eq!(text(peer.call("INFO nonsense")), "");
    let two = text(peer.call("INFO cluster Replication"));
    assert_eq!(two.lines().filter(|line| line.starts_with('#')).count(), 2);
}

#[test]
fn generic_commands_work_on_limiter_keys() {
    let server = Running::new();
    let mut peer = server.connect();
    for (sent, expected) in
        [("TTL k", -2), ("PTTL k", -2), ("EXISTS k k", 0), ("DEL k", 0), ("DBSIZE", 0)]
    {
        assert_eq!(peer.call(sent), Value::Integer(expected), "{sent}");
    }
    assert_eq!(peer.integers("SG.TAKE k fixed-window:1/1h")[0], 1);
    let Value::Integer(seconds) = peer.call("TTL k") else { panic!("no integer") };
    let Value::Integer(millis) = peer.call("PTTL k") else { panic!("no integer") };
    assert!(
        (1..=3_600).contains(&seconds) && (1..=3_600_000).contains(&millis),
        "{seconds} {millis}"
    );
    for (sent, expected) in
        [("EXISTS k k l", 2), ("DBSIZE", 1), ("DEL k l", 1), ("DEL k", 0), ("EXISTS k", 0)]
    {
        assert_eq!(peer.call(sent), Value::Integer(expected), "{sent}");
    }
    let Value::Array(time) = peer.call("TIME") else { panic!("no array") };
    assert_eq!(time.len(), 2);
}

#[test]
fn get_live_key_returns_its_stored_form() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.call("GET k"), Value::Null);
    assert_eq!(peer.integers("SG.TAKE k fixed-window:9/1h COST 2")[0], 1);
    let Value::Bulk(bytes) = peer.call("GET k") else { panic!("no string") };
    let entry = Entry::decode(&bytes).unwrap();
    let now = Timestamp::EPOCH + SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let used: Vec<_> = entry.usage(now).map(|(_, usage)| usage.used).collect();
    assert_eq!((entry.policy().to_string(), used), ("fixed-window:9/1h".to_owned(), vec![2]));
    assert_eq!(peer.call("DEL k"), Value::Integer(1));
    assert_eq!(peer.call("GET k"), Value::Null);
}

/// The state is copied while others wait.
#[test]
fn get_state_that_is_too_long_is_an_error() {
    let server = Running::new();
    let mut peer = server.connect();
    let takes = "SG.TAKE log sliding-log:100000/1h\r\n".repeat(1_000);
    let error = loop {
        peer.send(takes.clone());
        for _ in 0..1_000 {
            assert_eq!(crate::harness::integers(&peer.read_reply())[0], 1);
        }
        match peer.call("GET log") {
            Value::Bulk(bytes) => assert!(bytes.len() <= 65_536),
            Value::Error(error) => break String::from_utf8(error).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert!(error.starts_with("ERR the state of the key has "), "{error}");
    assert!(error.ends_with(" bytes: expected at most 65536; use SG.INFO"), "{error}");
}
