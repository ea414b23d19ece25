//! The reply to any arguments is a result or an error with the text of all protocols. No panic crosses into the server.

use redis::Value;
use sluicegate_commands::{CommandSpec, HostOptions, parse, table};
use sluicegate_testing::Engine;

use crate::{
    on_both,
    server::{serve, serve_with},
};

const EVIL: [&[u8]; 22] = [
    b"",
    b" ",
    b"-1",
    b"+5",
    b"0",
    b"00",
    b"1.5",
    b"1e9",
    b"0x10",
    b"4294967295",
    b"4294967296",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"\xff\xfe\x00\x80",
    b"a\r\nb",
    b"gcra:30/1m",
    b"gcra:0/1m",
    b"sliding-log:4294967295/366d",
    b"COST",
    b"AT",
    b"MAXWAIT",
];

/// Valid arguments of each command.
fn right(name: &str) -> Vec<&'static [u8]> {
    match name {
        "CL.THROTTLE" => vec![b"k", b"15", b"30", b"60", b"1"],
        "SG.HOLD" => vec![b"k", b"concurrency:30/1m", b"id", b"COST", b"1", b"TTL", b"5000"],
        "SG.SETTLE" => vec![b"k", b"concurrency:30/1m", b"id", b"USED", b"1"],
        "SG.RENEW" => vec![b"k", b"concurrency:30/1m", b"id", b"TTL", b"5000"],
        "SG.MTAKE" | "SG.TAKEALL" => {
            vec![b"2", b"k", b"gcra:30/1m", b"1", b"l", b"gcra:9/1h", b"2"]
        }
        "SG.RESET" | "SG.INFO" => vec![b"k"],
        "SG.RESERVE" => vec![b"k", b"gcra:30/1m", b"COST", b"1", b"MAXWAIT", b"5"],
        "SG.WAIT" => vec![b"k", b"gcra:30/1m", b"COST", b"1", b"TIMEOUT", b"0"],
        _ => vec![b"k", b"gcra:30/1m", b"COST", b"1"],
    }
}

fn command_invalid_arguments_return_errors(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let long = vec![b'x'; 70_000];
    let mut calls = 0;
    let mut check = |arguments: &[&[u8]]| {
        let found = peer.call_bytes(arguments);
        calls += 1;
        match (parse(arguments, HostOptions::default()), found) {
            // An error is one line on the wire.
            (Err(error), Err(found)) => {
                let error = error.to_string().replace(['\r', '\n'], " ");
                // The server itself counts the arguments, without a syntax.
                let counted = found.ends_with(" command") && error.starts_with(&found);
                assert!(found == error || counted, "{found}, not {error}");
            }
            (Err(error), Ok(_)) => panic!("expected {error}"),
            // Valid arguments may still be denied, or have a policy that does not support the operation.
            (Ok(_), Err(found)) => {
                let known = [
                    "ERR reserve",
                    "ERR invalid id",
                    "ERR invalid ttl",
                    "ERR missing ttl",
                    "ERR invalid operation",
                ];
                assert!(known.iter().any(|text| found.starts_with(text)), "{found}");
            }
            (Ok(_), Ok(_)) => {}
        }
    };
    for command in table::<&CommandSpec>() {
        let name = command.name.as_bytes();
        let right = right(command.name);
        for count in 0..=right.len() {
            let mut arguments = vec![name];
            arguments.extend(&right[..count]);
            check(&arguments);
            for evil in EVIL.into_iter().chain([long.as_slice()]) {
                let mut more = arguments.clone();
                more.push(evil);
                check(&more);
                more.extend(right.get(count + 1..).unwrap_or_default());
                check(&more);
            }
        }
        let many: Vec<&[u8]> = std::iter::once(name).chain([b"1".as_slice(); 511]).collect();
        check(&many);
    }
    println!("{engine:?}: {calls} calls");
    assert_eq!(peer.info_value("sluicegate", "sluicegate_panics"), 0);
    assert_eq!(peer.call("PING"), Ok(Value::SimpleString("PONG".to_owned())));
}

fn key_of_another_program_is_an_error(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    peer.call("SET text hello").unwrap();
    peer.call_bytes(&[b"SET", b"empty", b""]).unwrap();
    peer.call_bytes(&[b"SET", b"newer", b"\x05\x01"]).unwrap();
    peer.call_bytes(&[b"SET", b"cut", b"\x02\x01\x01\x1e"]).unwrap();
    peer.call_bytes(&[b"SET", b"log", b"\x02\x01\x08\x1e\0\0\0\0\x87\x93\x03\0\0\xff\xff\xff\xff"])
        .unwrap();
    peer.call("RPUSH list 1").unwrap();
    peer.call("HSET hash a 1").unwrap();
    peer.call("XADD stream * a 1").unwrap();
    for command in table::<&CommandSpec>() {
        if ["SG.MTAKE", "SG.TAKEALL", "SG.RESET"].contains(&command.name) {
            continue;
        }
        for key in ["text", "empty", "newer", "cut", "log", "list", "hash", "stream"] {
            let mut arguments = right(command.name);
            arguments[0] = key.as_bytes();
            arguments.insert(0, command.name.as_bytes());
            let error = peer.call_bytes(&arguments).expect_err(command.name);
            let class = match key {
                "list" | "hash" | "stream" => "WRONGTYPE key `KEY` does not hold a string",
                "newer" => "SGSTATE key `KEY` holds state of version 5",
                "text" | "empty" => "SGSTATE key `KEY` holds a value that Sluicegate did not write",
                _ => "SGSTATE key `KEY` holds damaged state: ",
            };
            let class = class.replace("KEY", key);
            assert!(error.starts_with(&class), "{} {key}: {error}", command.name);
            for advice in ["reset", "delete", "deleting"] {
                assert!(!error.contains(advice), "{error}");
            }
        }
    }
    // Takes are independent: an error of one does not affect the other.
    let both = peer.call("SG.MTAKE 2 list gcra:1/1h 1 fine gcra:1/1h 1");
    assert!(both.is_err() || matches!(&both, Ok(Value::Array(it)) if it.len() == 2), "{both:?}");
    assert_eq!(peer.call("EXISTS fine"), Ok(Value::Int(1)));
    // A state that cannot be decoded counts as one, and can be reset.
    peer.call("SET cell 1700000000000000000").unwrap();
    for key in ["newer", "cut", "cell"] {
        assert_eq!(peer.call(&format!("SG.RESET {key}")), Ok(Value::Int(1)), "{key}");
    }
    // Values of other programs stay.
    for key in ["text", "empty"] {
        assert!(peer.error(&format!("SG.RESET {key}")).starts_with("SGSTATE"), "{key}");
        assert_eq!(peer.call(&format!("EXISTS {key}")), Ok(Value::Int(1)), "{key}");
    }
    assert!(peer.error("SG.RESET list").starts_with("WRONGTYPE"));
    assert_eq!(peer.info_value("sluicegate", "sluicegate_panics"), 0);
}

fn panic_ends_one_command_only(engine: Engine) {
    let server = serve_with(engine, &["test-panic", "yes"]);
    let mut peer = server.raw_client();
    let mut panics = 0;
    let mut panicked = |peer: &mut sluicegate_testing::RawClient| {
        panics += 1;
        peer.eventually_true(|it| it.info_value("sluicegate", "sluicegate_panics") == panics);
    };
    let failed = "ERR internal error in sluicegate";
    for command in table::<&CommandSpec>() {
        peer.call("SG.PANIC command").unwrap();
        let mut arguments = right(command.name);
        arguments.insert(0, command.name.as_bytes());
        let error = peer.call_bytes(&arguments).expect_err(command.name);
        assert!(error.starts_with(failed), "{error}");
        panicked(&mut peer);
        assert!(peer.call_bytes(&arguments).is_ok(), "{}", command.name);
    }
    for (armed, line) in [
        ("info", "INFO sluicegate"),
        ("get", "CONFIG GET sluicegate.notify-denials"),
        ("keys", "COMMAND GETKEYS SG.MTAKE 1 k gcra:1/1h 1"),
        ("set", "CONFIG SET sluicegate.notify-denials yes"),
    ] {
        peer.call(&format!("SG.PANIC {armed}")).unwrap();
        let _ = peer.call(line);
        panicked(&mut peer);
    }
    // While a client waits: its timer, its reply, and its disconnection.
    for armed in ["timer", "reply"] {
        peer.call("SG.RESET w").unwrap();
        peer.call("SG.TAKE w gcra:1/1h").unwrap();
        let mut waiter = server.raw_client();
        let thread =
            std::thread::spawn(move || waiter.call("SG.WAIT w gcra:1/1h TIMEOUT 10000000000"));
        peer.eventually_true(|it| it.info_value("sluicegate", "sluicegate_waiting") == 1);
        peer.call(&format!("SG.PANIC {armed}")).unwrap();
        peer.call("SG.RESET w").unwrap();
        let error = thread.join().unwrap().unwrap_err();
        assert!(error.starts_with(failed), "{armed}: {error}");
        panicked(&mut peer);
    }
    assert_eq!(peer.call("PING"), Ok(Value::SimpleString("PONG".to_owned())));
}

on_both! {
    command_invalid_arguments_return_errors
    key_of_another_program_is_an_error
    panic_ends_one_command_only
}
