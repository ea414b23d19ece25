//! The commands as clients see them: descriptions, replies of all kinds, counters and events.

use redis::Value;
use sluicegate_commands::{CommandSpec, Keys, table};
use sluicegate_testing::{Engine, RawClient, integers, size};

use crate::{
    on_both,
    server::{serve, serve_with, with_test_clock},
};

fn command_info(peer: &mut RawClient, name: &str) -> Vec<Value> {
    let Ok(Value::Array(all)) = peer.call(&format!("COMMAND INFO {name}")) else {
        panic!("{name}")
    };
    let Some(Value::Array(info)) = all.into_iter().next() else { panic!("no {name}") };
    info
}

fn command_info_and_docs_describe_every_command(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    for command in table::<&CommandSpec>() {
        let name = command.name.to_lowercase();
        let info = command_info(&mut peer, &name);
        assert_eq!(info[1], Value::Int(command.arity), "{name}");
        let flags = format!("{:?}", info[2]);
        for flag in command.flags {
            assert!(flags.contains(&format!("{flag:?}")), "{name}: no {flag} in {flags}");
        }
        if command.keys == Keys::First {
            assert_eq!(info[3..6], [Value::Int(1), Value::Int(1), Value::Int(1)], "{name}");
        }
        let docs = format!("{:?}", peer.call(&format!("COMMAND DOCS {name}")).unwrap());
        for word in [command.summary, "0.1.0", "module", "sluicegate"] {
            assert!(docs.contains(word), "{name}: no {word} in {docs}");
        }
        for argument in command.arguments {
            assert!(docs.contains(argument.name), "{name}: no {} in {docs}", argument.name);
        }
    }
    let keys =
        |peer: &mut RawClient, line: &str| match peer.call(&format!("COMMAND GETKEYS {line}")) {
            Ok(Value::Array(keys)) => format!("{keys:?}"),
            other => panic!("{line}: {other:?}"),
        };
    assert_eq!(keys(&mut peer, "SG.TAKE one gcra:1/1s"), "[bulk-string('\"one\"')]");
    let all = keys(&mut peer, "SG.MTAKE 3 a p 1 b p 1 c p 1 AT 5");
    assert_eq!(all, "[bulk-string('\"a\"'), bulk-string('\"b\"'), bulk-string('\"c\"')]");
    let all = keys(&mut peer, "SG.TAKEALL 2 a p 1 b p 1 ID x TIMEOUT 5");
    assert_eq!(all, "[bulk-string('\"a\"'), bulk-string('\"b\"')]");
}

/// A user with read permission may peek but not take; permissions by key pattern apply.
fn acl_read_only_user_may_peek_only(engine: Engine) {
    let server = serve(engine);
    let mut admin = server.raw_client();
    // Redis 7.0 has no categories for the commands of modules.
    let named = engine == Engine::Redis70;
    let (read, write) =
        if named { ("+sg.peek", "+sg.take +sg.mtake +sg.takeall") } else { ("+@read", "+@write") };
    admin.call(&format!("ACL SETUSER reader on nopass ~a* {read}")).unwrap();
    admin.call(&format!("ACL SETUSER taker on nopass ~a* {write}")).unwrap();
    let mut reader = server.raw_client();
    reader.call("AUTH reader x").unwrap();
    assert_eq!(reader.integers("SG.PEEK a gcra:1/1s")[0], 1);
    assert!(reader.error("SG.TAKE a gcra:1/1s").starts_with("NOPERM"));
    let mut taker = server.raw_client();
    taker.call("AUTH taker x").unwrap();
    assert_eq!(taker.integers("SG.TAKE a gcra:1/1h")[0], 1);
    assert!(taker.error("SG.TAKE b gcra:1/1s").starts_with("NOPERM"));
    assert!(taker.error("SG.MTAKE 2 a gcra:1/1s 1 b gcra:1/1s 1").starts_with("NOPERM"));
    for options in ["", " ID x", " TIMEOUT 5"] {
        let takes = format!("SG.TAKEALL 2 a gcra:9/1s 1 b gcra:9/1s 1{options}");
        assert!(taker.error(&takes).starts_with("NOPERM"), "{options}");
    }
    assert_eq!(admin.call("EXISTS b"), Ok(Value::Int(0)));
    let category = admin.call("ACL CAT ratelimit");
    assert_eq!(category.is_ok(), !named, "{category:?}");
}

fn replies_equal_those_of_the_server(engine: Engine) {
    let server = with_test_clock(engine);
    let mut peer = server.raw_client();
    let at = 1_700_000_000_000_000_u64;
    let line = format!("SG.TAKE k gcra:30/60s:burst=16 COST 16 AT {at}");
    assert_eq!(peer.integers(&line), [1, 16, 0, 0, 32_000_000, 0, 0]);
    assert_eq!(peer.integers(&line), [0, 16, 0, 32_000_000, 32_000_000, 0, 0]);
    let flat = peer.call(&format!("SG.INFO k AT {at}")).unwrap();
    let Value::Array(flat) = flat else { panic!("{flat:?}") };
    assert_eq!(flat.len(), 10);
    assert_eq!(flat[1], Value::BulkString(b"gcra:30/1m:burst=16".to_vec()));
    let map = server.raw_client_with_maps().call(&format!("SG.INFO k AT {at}")).unwrap();
    let Value::Map(map) = map else { panic!("{map:?}") };
    assert_eq!(map.len(), 5);
    assert_eq!(peer.call("SG.INFO none"), Ok(Value::Nil));
    let many = peer.call(&format!("SG.MTAKE 2 k gcra:30/60s:burst=16 1 l gcra:1/1s 1 AT {at}"));
    let Ok(Value::Array(many)) = many else { panic!("{many:?}") };
    assert_eq!(integers(&many[0])[0], 0);
    assert_eq!(integers(&many[1]), [1, 1, 0, 0, 1_000_000, 0, 0]);
    assert_eq!(peer.integers("CL.THROTTLE user123 15 30 60"), [0, 16, 15, -1, 2]);
}

fn info_counters_add_up(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    for _ in 0..5 {
        peer.integers("SG.TAKE k gcra:2/1h");
    }
    peer.error("SG.TAKE k nonsense");
    let actual =
        ["decisions", "allowed", "denied", "errors", "policies_parsed", "waiting", "panics"]
            .map(|name| peer.info_value("sluicegate", &format!("sluicegate_{name}")));
    assert_eq!(actual, [5, 2, 3, 1, 2, 0, 0]);
}

fn denial_with_option_publishes_event(engine: Engine) {
    let server = serve_with(engine, &["notify-denials", "yes"]);
    let mut peer = server.raw_client();
    peer.call("CONFIG SET notify-keyspace-events KEd").unwrap();
    let mut listener = server.raw_client().0;
    let mut listener = listener.as_pubsub();
    listener.psubscribe("__key*__:*").unwrap();
    peer.integers("SG.TAKE k gcra:1/1h");
    peer.integers("SG.PEEK k gcra:1/1h");
    peer.integers("SG.TAKE k gcra:1/1h");
    let received: Vec<(String, String)> = (0..2)
        .map(|_| listener.get_message().unwrap())
        .map(|it| (it.get_channel_name().to_owned(), it.get_payload().unwrap()))
        .collect();
    let channel = |name: &str, payload: &str| (format!("__{name}"), payload.to_owned());
    assert_eq!(received[0], channel("keyspace@0__:k", "sluicegate.denied"));
    assert_eq!(received[1], channel("keyevent@0__:sluicegate.denied", "k"));
}

/// An allowed take aborts a transaction that watches the key; a denial does not.
fn watch_denial_does_not_abort_transaction(engine: Engine) {
    let server = serve(engine);
    let (mut peer, mut other) = (server.raw_client(), server.raw_client());
    peer.integers("SG.TAKE k gcra:1/1h");
    for (line, actual) in [
        ("SG.TAKE k gcra:1/1h", false),
        ("SG.PEEK k gcra:1/1h", false),
        ("SG.REFUND k gcra:1/1h", true),
        ("SG.TAKE k gcra:1/1h", true),
        ("SG.CHARGE k gcra:1/1h", true),
        ("SG.RESET k", true),
        ("SG.HOLD k gcra:9/1h,concurrency:3/1h a COST 2", true),
        // Denied under only `concurrency` limits, which leave the stored policy.
        ("SG.HOLD k concurrency:3/7m b COST 2", false),
        ("SG.TAKEALL 2 k concurrency:3/7m 2 other concurrency:3/7m 2 ID b", false),
        ("SG.HOLD k gcra:9/2h,concurrency:3/1h b COST 2", true),
    ] {
        peer.call("WATCH k").unwrap();
        other.call(line).unwrap();
        peer.call("MULTI").unwrap();
        peer.call("PING").unwrap();
        assert_eq!(peer.call("EXEC") == Ok(Value::Nil), actual, "{line}");
    }
}

fn memory_usage_equals_the_bytes_of_keys(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let used = |peer: &mut RawClient| peer.info_value("memory", "used_memory");
    for number in 0..20_000 {
        peer.integers(&format!("CL.THROTTLE key:{number:012} 15 30 86400"));
    }
    let Ok(Value::Int(actual)) = peer.call("MEMORY USAGE key:000000000000") else {
        panic!("no usage")
    };
    let before = used(&mut peer);
    assert_eq!(peer.call("DBSIZE"), Ok(Value::Int(20_000)));
    peer.call("FLUSHALL SYNC").unwrap();
    let each = (before - used(&mut peer)) / 20_000;
    println!("{engine:?}: {each} bytes a key, MEMORY USAGE {actual}");
    // It excludes the entry in the table of expiries, and parts of the entry in the table of keys.
    assert!((60..=180).contains(&each), "{each}");
    assert!(actual > 60 && u64::try_from(actual).unwrap() <= each + 16, "{actual} of {each}");
}

/// Expired keys are removed, and leave no memory.
fn expired_keys_leave_no_memory(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let before = peer.info_value("memory", "used_memory");
    let keys = size("SLUICEGATE_ENDING_KEYS", 20_000);
    for number in 0..keys {
        peer.integers(&format!("SG.TAKE key:{number} gcra:1000/1s"));
    }
    peer.eventually_true(|it| it.call("DBSIZE") == Ok(Value::Int(0)));
    let mut after = 0;
    peer.eventually_true(|it| {
        after = it.info_value("memory", "used_memory");
        after < before + 600_000
    });
    println!("figure: {engine:?}: {before} bytes before {keys} keys came and ended, {after} after");
}

on_both! {
    command_info_and_docs_describe_every_command
    acl_read_only_user_may_peek_only
    replies_equal_those_of_the_server
    info_counters_add_up
    denial_with_option_publishes_event
    watch_denial_does_not_abort_transaction
    memory_usage_equals_the_bytes_of_keys
    expired_keys_leave_no_memory
}
