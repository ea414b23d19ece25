//! The bytes on the wire, in both protocols.

use sluicegate_resp::{Value, encode_command};

use crate::harness::{Running, bulk, simple};

/// Checks that the replies to the inline commands in `sent` are `expected`.
fn check(server: &Running, sent: &str, expected: &str) {
    let mut peer = server.connect();
    let sent = sent.lines().map(|line| line.trim().to_owned() + "\r\n").collect::<String>();
    peer.send(sent + "QUIT\r\n");
    let expected = expected.lines().map(|line| line.to_owned() + "\r\n").collect::<String>();
    assert_eq!(peer.rest(), expected + "+OK\r\n");
}

#[test]
fn transcript_of_commands_in_resp2_matches() {
    let server = Running::with_test_clock();
    check(&server, "PING\nping hello\nEcho \"a b\"", "+PONG\n$5\nhello\n$3\na b");
    check(&server, "SG.TAKE a gcra:30/60s:burst=16 AT 0", "*7\n:1\n:16\n:15\n:0\n:2000000\n:0\n:0");
    check(&server, "CL.THROTTLE user123 15 30 60", "*5\n:0\n:16\n:15\n:-1\n:2");
    check(
        &server,
        "SG.INFO a AT 1",
        "*10\n$6\npolicy\n$19\ngcra:30/1m:burst=16\n$14\nreset_after_us\n:1999999\n$11\nlifetime_us\n\
         :1999999\n$5\nbytes\n:24\n$6\nlimits\n*1\n*10\n$5\nlimit\n$19\ngcra:30/1m:burst=16\n$8\n\
         capacity\n:16\n$4\nused\n:1\n$9\nremaining\n:15\n$14\nreset_after_us\n:1999999",
    );
    check(&server, "SG.INFO none\nCLIENT GETNAME", "$-1\n$-1");
    check(
        &server,
        "SG.MTAKE 2 m fixed-window:1/s 1 m fixed-window:1/s 1 AT 0",
        "*2\n*7\n:1\n:1\n:0\n:0\n:1000000\n:0\n:0\n*7\n:0\n:1\n:0\n:1000000\n:1000000\n:0\n:0",
    );
    check(&server, "SG.RESET m AT 0\nSG.RESET m AT 0", ":1\n:0");
    check(
        &server,
        "CONFIG GET save\nconfig get Append*",
        "*2\n$4\nsave\n$0\n\n*2\n$10\nappendonly\n$2\nno",
    );
    check(
        &server,
        "SELECT 0\nSELECT 1\nSELECT x",
        "+OK\n-ERR DB index is out of range\n-ERR value is not an integer or out of range",
    );
    check(
        &server,
        "ROLE\nLATENCY LATEST\nSLOWLOG GET\nSLOWLOG LEN",
        "*3\n$6\nmaster\n:0\n*0\n*0\n*0\n:0",
    );
    check(&server, "CLUSTER SLOTS", "-ERR This instance has cluster support disabled");
    check(&server, "MGET x y", "-ERR unknown command 'MGET', with args beginning with: 'x' 'y' ");
    check(
        &server,
        "SG.TAKE x",
        "-ERR wrong number of arguments for 'sg.take' command; expected SG.TAKE key policy [COST cost]",
    );
    check(
        &server,
        "ECHO",
        "-ERR wrong number of arguments for 'echo' command; expected ECHO message",
    );
    check(&server, "SG.TAKE x gcra:30/0s", "-SGPOLICY invalid period `0s`: expected 1ms to 366d");
    check(
        &server,
        "SG.RESERVE x fixed-window:1/s",
        "-ERR reserve needs every limit to be gcra, token-bucket (refill=continuous), leaky-bucket or leaky-queue",
    );
}

#[test]
fn transcript_of_commands_in_resp3_matches() {
    let server = Running::with_test_clock();
    let check = |sent: &str, expected: &str| {
        let mut peer = server.connect();
        let Value::Map(hello) = peer.call("HELLO 3") else { panic!("no map") };
        assert_eq!(hello.len(), 7);
        assert_eq!(hello[2], (bulk("proto"), Value::Integer(3)));
        peer.send(format!("{sent}\r\nQUIT\r\n"));
        let expected = expected.lines().map(|line| line.to_owned() + "\r\n").collect::<String>();
        assert_eq!(peer.rest(), expected + "+OK\r\n");
    };
    check("SG.TAKE a gcra:30/60s:burst=16 AT 0", "*7\n:1\n:16\n:15\n:0\n:2000000\n:0\n:0");
    check("CL.THROTTLE user123 15 30 60", "*5\n:0\n:16\n:15\n:-1\n:2");
    check(
        "SG.INFO a AT 1",
        "%5\n$6\npolicy\n$19\ngcra:30/1m:burst=16\n$14\nreset_after_us\n:1999999\n$11\nlifetime_us\n\
         :1999999\n$5\nbytes\n:24\n$6\nlimits\n*1\n%5\n$5\nlimit\n$19\ngcra:30/1m:burst=16\n$8\n\
         capacity\n:16\n$4\nused\n:1\n$9\nremaining\n:15\n$14\nreset_after_us\n:1999999",
    );
    check("SG.INFO none", "_");
    check("CONFIG GET save", "%1\n$4\nsave\n$0\n\n");
    check("INFO cluster", "=34\ntxt:# Cluster\ncluster_enabled:0\n\n");
}

#[test]
fn transcript_of_hello_matches() {
    let server = Running::new();
    let mut peer = server.connect();
    let Value::Array(actual) = peer.call("HELLO") else { panic!("no array") };
    let id = actual[7].clone();
    let modules = Value::Array(Vec::new());
    let expected = [
        bulk("server"),
        bulk("sluicegate"),
        bulk("version"),
        bulk("7.4.0"),
        bulk("proto"),
        Value::Integer(2),
        bulk("id"),
        id,
        bulk("mode"),
        bulk("standalone"),
        bulk("role"),
        bulk("master"),
        bulk("modules"),
        modules,
    ];
    assert_eq!(actual, expected);
    for (sent, expected) in [
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 NONSENSE", "ERR Syntax error in HELLO option 'NONSENSE'"),
        ("HELLO 3 AUTH default", "ERR Syntax error in HELLO option 'AUTH'"),
        (
            "HELLO 3 AUTH somebody secret",
            "WRONGPASS invalid username-password pair or user is disabled.",
        ),
    ] {
        assert_eq!(peer.error(sent), expected, "{sent}");
    }
    assert!(matches!(peer.call("hello 3 setname me"), Value::Map(_)));
    assert_eq!(peer.call("CLIENT GETNAME"), bulk("me"));
    assert_eq!(peer.call("RESET"), simple("RESET"));
    assert_eq!(peer.call("CLIENT GETNAME"), Value::Null);
    assert!(matches!(peer.call("HELLO"), Value::Array(_)), "back to RESP2");
    assert!(matches!(peer.call("HELLO 3"), Value::Map(_)));
    assert!(matches!(peer.call("HELLO 2"), Value::Array(_)));
}

#[test]
fn pipeline_is_answered_in_order() {
    let server = Running::new();
    let mut peer = server.connect();
    let mut bytes = Vec::new();
    for index in 0..100 {
        encode_command(&[b"SG.TAKE", b"pipeline", b"fixed-window:60/1h"], &mut bytes);
        encode_command(&[b"ECHO", format!("{index}").as_bytes()], &mut bytes);
    }
    peer.send(bytes);
    for index in 0..100_u32 {
        let Value::Array(decision) = peer.read_reply() else { panic!("no decision") };
        assert_eq!(decision[0], Value::Integer((index < 60).into()), "{index}");
        assert_eq!(peer.read_reply(), bulk(&index.to_string()));
    }
}

#[test]
fn command_cut_anywhere_is_answered() {
    let server = Running::new();
    let mut whole = Vec::new();
    encode_command(&[b"SG.PEEK", b"k\r\n", b"gcra:30/1m"], &mut whole);
    encode_command(&[b"ECHO", b"\0\r\n$3\r\n"], &mut whole);
    whole.extend_from_slice(b"PING inline\r\n");
    let mut peer = server.connect();
    for cut in 0..=whole.len() {
        peer.send(&whole[..cut]);
        // The first part has arrived when another connection made after it was served; it does
        // not matter if not.
        if cut % 8 == 0 {
            assert_eq!(server.connect().call("PING"), simple("PONG"));
        }
        peer.send(&whole[cut..]);
        assert!(matches!(peer.read_reply(), Value::Array(_)), "cut at {cut}");
        assert_eq!(peer.read_reply(), Value::Bulk(b"\0\r\n$3\r\n".to_vec()), "cut at {cut}");
        assert_eq!(peer.read_reply(), bulk("inline"), "cut at {cut}");
    }
}

#[test]
fn empty_requests_are_ignored() {
    let server = Running::new();
    let mut peer = server.connect();
    peer.send("\r\n\r\n*0\r\n*-1\r\nPING\r\n");
    assert_eq!(peer.read_reply(), simple("PONG"));
}

#[test]
fn half_closed_client_is_answered() {
    let server = Running::new();
    let mut peer = server.connect();
    peer.send("PING\r\nPING\r\nPIN");
    peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(peer.rest(), "+PONG\r\n+PONG\r\n");
}

#[test]
fn sg_help_lists_each_command_that_limits() {
    let Value::Array(lines) = Running::new().connect().call("SG.HELP") else { panic!("no list") };
    let lines: Vec<_> = lines
        .into_iter()
        .map(|line| match line {
            Value::Bulk(text) => String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lines.len() % 2, 0);
    let take = lines.iter().position(|line| line == "SG.TAKE key policy [COST cost]").unwrap();
    assert_eq!(lines[take + 1], "    Takes units under a policy: all of them or none.");
    for name in ["SG.HOLD ", "SG.TAKEALL ", "CL.THROTTLE ", "SG.KEYS "] {
        assert!(lines.iter().any(|line| line.starts_with(name)), "{name}: {lines:?}");
    }
    assert!(!lines.iter().any(|line| line.starts_with("PING")));
}

#[test]
fn error_of_a_client_command_says_what_is_expected() {
    let server = Running::new();
    let mut peer = server.connect();
    for (line, expected) in [
        ("ECHO", "ERR wrong number of arguments for 'echo' command; expected ECHO message"),
        ("TTL", "ERR wrong number of arguments for 'ttl' command; expected TTL key"),
        (
            "EXISTS",
            "ERR wrong number of arguments for 'exists' command; expected EXISTS key [key ...]",
        ),
        ("TIME x", "ERR wrong number of arguments for 'time' command; expected TIME"),
        (
            "SG.HOLD k gcra:1/1h id",
            "ERR missing ttl: expected 1000 to 86400000000 microseconds; only a policy with `concurrency` has a default",
        ),
        (
            "SG.TAKE gcra:1/1s k",
            "SGPOLICY invalid policy `k`: the key `gcra:1/1s` looks like a policy; expected the key first, then the policy",
        ),
        ("KEYS *", "ERR unknown command 'KEYS', with args beginning with: '*' (use 'SG.KEYS')"),
    ] {
        assert_eq!(peer.error(line), expected, "{line}");
    }
}
