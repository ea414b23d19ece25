//! The library of functions: the conformance kit, its error texts, and its descriptions.

use std::time::Duration;

use redis::{Connection, Value};
use sluicegate_commands::{HostOptions, KeyDescription, parse};
use sluicegate_conformance::{
    Answer, Invocation, MultiKeySubject, Shape, Subject, answer_from_integers, check_histories,
    check_keys, check_multi_key, check_multi_key_holds, check_traces,
};
use sluicegate_core::{Entry, Operation, Policy, Timestamp, as_micros};
use sluicegate_redis::script::{Library, Reply};
use sluicegate_testing::{Engine, Server};

use crate::store::{Store, read, test_key};

/// The servers with functions.
pub(crate) const ENGINES: [Engine; 2] = [Engine::Redis70, Engine::Valkey91];

/// A connection to a server that has the library.
pub(crate) fn install(server: &Server) -> Connection {
    let mut connection = server.connect();
    let load = redis::cmd("FUNCTION").arg("LOAD").arg(Library::text()).query(&mut connection);
    assert_eq!(load, Ok(Library::NAME.to_owned()));
    connection
}

/// Calls a function with one key.
pub(crate) fn call(
    connection: &mut Connection,
    name: &str,
    key: &[u8],
    arguments: &[&[u8]],
) -> Result<Value, String> {
    let answer = redis::cmd("FCALL").arg(name).arg(1).arg(key).arg(arguments).query(connection);
    answer.map_err(|error: redis::RedisError| {
        let code = error.code().unwrap_or_default();
        format!("{code} {}", error.detail().unwrap_or_default())
    })
}

/// The functions as a store. Policies with other zones than UTC use scripts, on the same keys.
pub(crate) struct Functions {
    connection: Connection,
    scripts: Store,
}

impl Functions {
    pub(crate) fn new(server: &Server) -> Self {
        Self { connection: install(server), scripts: Store::new(server.connect()) }
    }
}

impl Subject for Functions {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        let text = policy.to_string();
        // With the prefix of tests a key may be longer than any other.
        if text.contains("tz=") || test_key(key).len() > 65_536 {
            return self.scripts.apply(question);
        }
        let key = test_key(key);
        let mut options = vec![("AT", now.as_micros())];
        let name = match operation {
            Operation::Take(_) => "sg_take",
            Operation::Peek(_) => "sg_peek",
            Operation::Charge(_) => "sg_charge",
            Operation::Refund(_) => "sg_refund",
            Operation::Reserve { max_wait, .. } => {
                options.push(("MAXWAIT", as_micros(max_wait).min(1 << 50)));
                "sg_reserve"
            }
            Operation::Reset => {
                let at = now.as_micros().to_string();
                call(&mut self.connection, "sg_reset", &key, &[b"AT", at.as_bytes()])?;
                "sg_peek"
            }
            Operation::Hold { cost, ttl, .. } => {
                options.push(("COST", cost.into()));
                options.extend(ttl.map(|ttl| ("TTL", as_micros(ttl))));
                "sg_hold"
            }
            Operation::Settle { used, .. } => {
                options.extend(used.map(|used| ("USED", used.into())));
                "sg_settle"
            }
            Operation::Renew { ttl, .. } => {
                options.extend(ttl.map(|ttl| ("TTL", as_micros(ttl))));
                "sg_renew"
            }
        };
        let options = options.into_iter().map(|(name, number)| (name, number.to_string()));
        let (options, cost) = (options.collect::<Vec<_>>(), operation.cost().to_string());
        // The id of a hold, or the cost, which needs no name.
        let mut words = vec![text.as_bytes(), operation.id().unwrap_or(cost.as_bytes())];
        for (name, number) in &options {
            words.extend([name.as_bytes(), number.as_bytes()]);
        }
        match read(&call(&mut self.connection, name, &key, &words)?)? {
            Reply::Decision(decision) => Ok(decision),
            other @ Reply::Calendars { .. } => Err(format!("{other:?}")),
        }
    }
}

impl MultiKeySubject for Functions {
    /// Calls `sg_takeall`.
    fn apply_all(
        &mut self,
        invocations: &[Invocation<'_>],
    ) -> Result<sluicegate_core::Answer, String> {
        let mut command = redis::cmd("FCALL");
        command.arg("sg_takeall").arg(invocations.len());
        for it in invocations {
            command.arg(test_key(it.key));
        }
        for it in invocations {
            command.arg(it.policy.to_string()).arg(it.operation.cost());
        }
        let first = invocations.first().expect("at least one key");
        command.arg("AT").arg(first.now.as_micros());
        if let Operation::Hold { id, ttl, .. } = first.operation {
            command.arg("ID").arg(id);
            ttl.map(|ttl| command.arg("TTL").arg(as_micros(ttl)));
        }
        let replied: redis::RedisResult<Vec<Vec<i64>>> = command.query(&mut self.connection);
        // As the errors of the core, which have no code.
        let arrays = replied.map_err(|error| error.detail().unwrap_or_default().to_owned())?;
        Ok(answer_from_integers(&arrays))
    }
}

#[test]
fn functions_several_keys_decide_as_core() {
    let shape = Shape { zones: false, ..Shape::default() };
    for engine in ENGINES {
        let server = Server::start(engine);
        let mut functions = Functions::new(&server);
        check_multi_key(&mut functions, 910_000, 200, shape);
        check_multi_key_holds(&mut functions, 920_000, 300, shape);
    }
}

#[test]
fn functions_takeall_invalid_arguments_are_errors() {
    let server = Server::start(Engine::Redis70);
    let mut connection = install(&server);
    let mut call = |keys: &[&str], words: &str| {
        let mut command = redis::cmd("FCALL");
        command.arg("sg_takeall").arg(keys.len()).arg(keys);
        words.split_terminator(' ').for_each(|word| {
            command.arg(word);
        });
        command.query::<Value>(&mut connection).map_err(|error| error.to_string())
    };
    let nine = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for (keys, words, expected) in [
        (&[][..], "", "invalid number of keys `0`: expected 1 to 8"),
        (&nine, "", "invalid number of keys `9`: expected 1 to 8"),
        (&["a", "b"], "gcra:1/1s 1 gcra:1/1s", "wrong number of arguments for 'sg_takeall'"),
        (&["a"], "gcra:1/1s x", "invalid cost `x`: expected a whole number from 0 to 4294967295"),
        (&["a"], "gcra:1/1s 1 TTL 1000", "option TTL has no ID"),
        (
            &["a"],
            "gcra:1/1s 1 ID",
            "option ID has no value: expected ID and an id, such as `ID call-7`",
        ),
        (
            &["a"],
            "gcra:1/1s 1 ID x TTL",
            "option TTL has no value: expected TTL and a whole number, such as `TTL 5`",
        ),
        (&["a"], "gcra:1/1s 1 ID x", "missing ttl"),
        (&["a"], "gcra:1/1s 1 ID x TTL 999", "invalid ttl `999`"),
        (&["a"], "gcra:1/1s 1 ID  TTL 1000", "invalid id of 0 bytes: expected 1 to 64 bytes"),
        (&["a"], "concurrency:1/1s 1", "invalid operation under a policy with `concurrency`"),
        (&["a"], "leaky-queue:1/1s 1 ID x TTL 1000", "expected one without `leaky-queue`"),
        (&["sg:test:a", "a"], "gcra:1/1s 1 gcra:1/1s 1 AT 5", "option AT is unavailable"),
        (&["a"], "gcra:1/1s 1 MAXWAIT 5", "unknown option `MAXWAIT` for sg_takeall"),
        (&["a"], "gcra:1/1 1", "invalid"),
    ] {
        let error = call(keys, words).unwrap_err();
        assert!(error.contains(expected), "{words}: {error}");
    }
    // If a key is given twice, only the first take counts, and each has a decision.
    let twice = call(&["a", "a", "b"], "gcra:5/1h 2 gcra:5/1h 4 gcra:1/1h 1").unwrap();
    let Value::Array(parts) = twice else { panic!("{twice:?}") };
    let part = |index: usize| redis::from_redis_value::<Vec<i64>>(parts[index].clone()).unwrap();
    let expected: Vec<_> = [5, 5, 1].into_iter().zip([3, 3, 0]).collect();
    let each: Vec<_> = (1..parts.len()).map(|index| (part(index)[1], part(index)[2])).collect();
    assert_eq!(
        (each, part(0)[7]),
        (expected, 2),
        "the index of the binding key is that of its take"
    );
}

fn passes_the_kit(engine: Engine) {
    let server = Server::start(engine);
    let mut functions = Functions::new(&server);
    check_traces(&mut functions);
    check_keys(&mut functions);
    let shape = Shape { zones: false, ..Shape::default() };
    check_histories(&mut functions, 700_000, 600, shape);
    check_histories(&mut functions, 800_000, 600, Shape { changes: false, ..shape });
}

#[test]
fn functions_redis_7_0_decide_as_core() {
    passes_the_kit(Engine::Redis70);
}

#[test]
fn functions_valkey_9_1_decide_as_core() {
    passes_the_kit(Engine::Valkey91);
}

#[test]
fn functions_cost_alone_uses_the_clock_of_the_server() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let connection = &mut install(&server);
        let taken = call(connection, "sg_take", b"user123", &[b"gcra:30/60s:burst=16", b"1"]);
        let Value::Array(taken) = taken.unwrap() else { panic!("no array") };
        assert_eq!(taken[..3], [Value::Int(1), Value::Int(16), Value::Int(15)]);
        let taken = call(connection, "sg_take", b"user123", &[b"gcra:30/60s:burst=16"]).unwrap();
        assert!(matches!(read(&taken), Ok(Reply::Decision(it)) if it.remaining == 14));
        let left: i64 = redis::cmd("PTTL").arg("user123").query(connection).unwrap();
        assert!(left > 3_000 && left <= 4_001, "{left}");

        // Functions that only read may be called on a replica.
        let only = |name: &str, rest: &[&str], connection: &mut Connection| -> Value {
            let mut call = redis::cmd("FCALL_RO");
            call.arg(name).arg(1).arg("user123").arg(rest).query(connection).unwrap()
        };
        let _ = only("sg_peek", &["gcra:30/60s:burst=16"], connection);
        assert_ne!(only("sg_info", &[], connection), Value::Nil);
        let reset = |connection: &mut Connection| call(connection, "sg_reset", b"user123", &[]);
        assert_eq!(reset(connection), Ok(Value::Int(1)));
        assert_eq!(reset(connection), Ok(Value::Int(0)));
        assert_eq!(only("sg_info", &[], connection), Value::Nil);
    }
}

/// The arguments of a function, after its key.
type Words<'a> = &'a [&'a [u8]];

/// Invalid arguments of a function fail with the same text as those of the equivalent command.
#[test]
fn functions_invalid_arguments_fail_as_commands_do() {
    let server = Server::start(Engine::Redis70);
    let connection = &mut install(&server);
    let policy: &[u8] = b"gcra:30/1m";
    let long = vec![b'k'; 65_537];
    let cases: [(&str, &[u8], Words<'_>); 29] = [
        ("take", b"k", &[]),
        ("take", b"k", &[policy, b"COST"]),
        ("take", b"k", &[policy, b"COST", b"-2"]),
        ("take", b"k", &[policy, b"cost", b"01"]),
        ("take", b"k", &[policy, b"COST", b"4294967296"]),
        ("take", b"k", &[policy, b"COST", b"99999999999999999999999"]),
        ("take", b"k", &[policy, b"COST", b"a\r\n\t'\"\\\x00\xff\x7f"]),
        ("take", b"k", &[policy, b"COST", &[b'x'; 41]]),
        ("take", b"k", &[policy, b"COST", b"1", b"COST", b"1"]),
        ("take", b"k", &[policy, b"COST", b"1", b"MAXWAIT", b"1"]),
        ("take", b"k", &[policy, b"COST", b"1", b"FOO", b"1"]),
        ("reserve", b"k", &[policy, b"COST", b"1", b"FOO", b"1"]),
        ("reserve", b"k", &[policy, b"MAXWAIT", b"1125899906842625"]),
        ("reserve", b"k", &[policy, b"MAXWAIT", b"1", b"MAXWAIT", b"1"]),
        ("reserve", b"k", &[b"sliding-log:1/1s"]),
        ("charge", &long, &[policy]),
        ("refund", b"k", &[b"gcra:30/1m\xff\xfe"]),
        ("peek", b"k", &[b"gcra:30/0s", b"COST", b"1"]),
        ("reset", b"k", &[b"COST", b"1"]),
        ("info", &long, &[]),
        ("take", b"", &[policy]),
        ("take", b"k", &[policy, b"COST", b"1", b"CST", b"1"]),
        ("reserve", b"k", &[policy, b"COST", b"1", b"max_wait", b"1"]),
        ("take", b"k", &[policy, b"COST", b"1", b"7"]),
        ("take", b"k", &[policy, b"CSOT", b"5"]),
        ("peek", b"k", &[policy, b"x"]),
        ("take", b"gcra:1/1s", &[b"k"]),
        ("take", b"gcra:1/1s", &[b"gcra:1/0s"]),
        ("hold", b"gcra:1/1s", &[b"k", b"id"]),
    ];
    for (verb, key, rest) in cases {
        let actual = call(connection, &format!("sg_{verb}"), key, rest).unwrap_err();
        let name = format!("SG.{}", verb.to_uppercase());
        let words = [&[name.as_bytes(), key], rest].concat();
        let expected = match parse(&words, HostOptions::default()) {
            Err(error) => error.to_string(),
            Ok(_) => {
                let policy: Policy = "sliding-log:1/1s".parse().unwrap();
                let wait = Operation::Reserve { cost: 1, max_wait: Duration::ZERO };
                let now = Timestamp::EPOCH;
                let error = sluicegate_core::apply(&policy, &mut None, now, wait).unwrap_err();
                format!("ERR {error}")
            }
        };
        let expected =
            expected.replace(&format!("expected {name} "), &format!("expected FCALL sg_{verb} 1 "));
        let expected = expected.replace(&name, &format!("sg_{verb}"));
        let expected = expected.replace(&name.to_lowercase(), &format!("sg_{verb}"));
        assert_eq!(actual, expected, "{}", key.len());
    }

    for (rest, expected) in [
        (
            &[policy, b"-2"][..],
            "ERR invalid cost `-2`: expected a whole number from 0 to 4294967295",
        ),
        (&[policy, b"1", b"COST", b"1"], "ERR duplicate option COST: expected it once"),
        (
            &[policy, b"1", b"AT", b"5"],
            "ERR option AT is unavailable: it is only for keys that begin with `sg:test:`",
        ),
        (
            &[b"fixed-window:10/day:tz=Asia/Shanghai"],
            "SGPOLICY unknown time zone `Asia/Shanghai`: functions know only `tz=UTC`; use a Sluicegate \
             client or server for others",
        ),
    ] {
        assert_eq!(call(connection, "sg_take", b"k", rest), Err(expected.to_owned()));
    }
    let none = redis::cmd("FCALL").arg("sg_take").arg(0).query::<Value>(connection);
    assert!(none.unwrap_err().to_string().contains("wrong number of arguments for 'sg_take'"));
}

/// Names and values in turn.
fn field<'a>(described: &'a [Value], name: &str) -> &'a Value {
    let mut pairs = described.chunks(2);
    let found = pairs.find(|pair| pair[0] == Value::BulkString(name.into()));
    &found.unwrap_or_else(|| panic!("no {name} in {described:?}"))[1]
}

#[test]
fn functions_info_describes_state_as_the_server_does() {
    let server = Server::start(Engine::Valkey91);
    let connection = &mut install(&server);
    for text in [
        "gcra:30/60s:burst=16:borrow",
        "leaky-queue:30/90s:burst=16,token-bucket:5/7d:burst=9:refill=interval",
        "fixed-window:9/1500us:align=clock:count=all,fixed-window:3/month",
        "sliding-log:9/1m:keep=2m,sliding-log:9/1m:keep=2m:keep-max=7:count=all",
        "sliding-counter:9/250ms,leaky-bucket:7/36h",
    ] {
        let policy: Policy = text.parse().unwrap();
        let key = test_key(text.as_bytes());
        let mut entry: Option<Entry> = None;
        for (at, cost) in [(1_700_000_000_000_000_u64, "3"), (1_700_000_000_000_100, "1")] {
            let words = [text, cost, "AT", &at.to_string()].map(|it| it.as_bytes().to_vec());
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            call(connection, "sg_charge", &key, &words).unwrap();
            let now = Timestamp::from_micros(at).unwrap();
            let charge = Operation::Charge(cost.parse().unwrap());
            let _ = sluicegate_core::apply(&policy, &mut entry, now, charge).unwrap();
        }
        let now = Timestamp::from_micros(1_700_000_000_000_200).unwrap();
        let expected = KeyDescription::of(entry.as_ref().unwrap(), now).unwrap();
        let at = now.as_micros().to_string();
        let actual = call(connection, "sg_info", &key, &[b"AT", at.as_bytes()]).unwrap();
        let Value::Array(actual) = actual else { panic!("no array: {actual:?}") };
        let bulk = |text: &str| Value::BulkString(text.into());
        assert_eq!(field(&actual, "policy"), &bulk(&expected.policy));
        assert_eq!(field(&actual, "reset_after_us"), &Value::Int(expected.reset_after_us));
        assert_eq!(field(&actual, "lifetime_us"), &Value::Int(expected.lifetime_us));
        let length: i64 = redis::cmd("STRLEN").arg(&key).query(connection).unwrap();
        assert_eq!(field(&actual, "bytes"), &Value::Int(length));
        let Value::Array(limits) = field(&actual, "limits") else { panic!("no limits") };
        assert_eq!(limits.len(), expected.limits.len());
        for (limit, expected) in limits.iter().zip(&expected.limits) {
            let Value::Array(limit) = limit else { panic!("no limit") };
            assert_eq!(field(limit, "limit"), &bulk(&expected.limit));
            assert_eq!(field(limit, "capacity"), &Value::Int(expected.capacity));
            assert_eq!(field(limit, "used"), &Value::Int(expected.used));
            assert_eq!(field(limit, "remaining"), &Value::Int(expected.remaining));
            assert_eq!(field(limit, "reset_after_us"), &Value::Int(expected.reset_after_us));
        }
    }
}
