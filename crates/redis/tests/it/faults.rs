//! Keys without a state of Sluicegate: a clear error, and nothing is lost.

use redis::{Connection, ToRedisArgs};
use sluicegate_commands::CommandError;
use sluicegate_core::{Entry, Operation, Policy, StateError, StateFault, Timestamp, apply};
use sluicegate_redis::script::Plan;
use sluicegate_testing::{Engine, Server};

use crate::store::{Store, parse_reply, test_key};

const NOW: u64 = 1_700_000_000_000_000;

fn take(connection: &mut Connection, policy: &str, operation: Operation) -> Result<(), String> {
    let plan = Plan::new(&policy.parse().unwrap());
    let now = Timestamp::from_micros(NOW).unwrap();
    let arguments = plan.arguments(operation, now, Some(now), &[]).unwrap();
    let reply = Store::run(connection, &plan, &test_key(b"it"), &arguments)?;
    parse_reply(&plan, operation, &reply).map(drop)
}

fn set(connection: &mut Connection, value: impl ToRedisArgs) {
    redis::cmd("SET").arg(test_key(b"it")).arg(value).query(connection).unwrap()
}

fn bytes(connection: &mut Connection) -> Vec<u8> {
    redis::cmd("GET").arg(test_key(b"it")).query(connection).unwrap()
}

/// The state of a policy of which one unit is used.
fn state(policy: &str) -> Vec<u8> {
    let policy: Policy = policy.parse().unwrap();
    let mut entry = None;
    let _ = apply(&policy, &mut entry, Timestamp::from_micros(NOW).unwrap(), Operation::Charge(2));
    entry.unwrap().encode()
}

#[test]
fn script_unreadable_state_is_an_error_and_is_kept() {
    for engine in [Engine::Redis70, Engine::Valkey91, Engine::Redis62] {
        let server = Server::start(engine);
        let connection = &mut server.connect();
        for policy in ["gcra:30/1m", "gcra:1/1s,sliding-log:5/1m", "sliding-counter:5/1m"] {
            let key = test_key(b"it");
            redis::cmd("DEL").arg(&key).query::<()>(connection).unwrap();
            redis::cmd("RPUSH").arg(&key).arg("a").query::<()>(connection).unwrap();
            for operation in [Operation::Take(1), Operation::Reset, Operation::Peek(1)] {
                let error = take(connection, policy, operation).unwrap_err();
                assert_eq!(StateFault::of(&error), Some(StateFault::WrongType), "{error}");
                assert_eq!(error, CommandError::wrong_type(&key).to_string(), "{engine:?}");
            }
            let length: u64 = redis::cmd("LLEN").arg(&key).query(connection).unwrap();
            assert_eq!(length, 1);
            redis::cmd("DEL").arg(&key).query::<()>(connection).unwrap();

            let newer = [&[7][..], &state(policy)[1..]].concat();
            set(connection, &newer);
            let error = take(connection, policy, Operation::Take(1)).unwrap_err();
            let expected = CommandError::state(&key, StateError::Version(7));
            assert_eq!(error, expected.to_string());
            assert_eq!(StateFault::of(&error), Some(StateFault::Version));
            assert_eq!(bytes(connection), newer);

            for garbage in
                [&b"0x"[..], b"", b"\0", b"\x02", b"\x02\x09", b"\x02\x01\x0a", &[b'x'; 28]]
            {
                set(connection, garbage);
                for operation in [Operation::Take(1), Operation::Charge(1), Operation::Peek(1)] {
                    let error = take(connection, policy, operation).unwrap_err();
                    let expected = Entry::decode(garbage).unwrap_err();
                    let expected = CommandError::state(&key, expected).to_string();
                    assert_eq!(error, expected, "{garbage:02x?}");
                    assert_eq!(StateFault::of(&error), Some(StateFault::Damaged));
                    assert_eq!(bytes(connection), garbage);
                }
            }
            // A reset deletes a damaged state, and no value of another program.
            let error = take(connection, policy, Operation::Reset).unwrap_err();
            assert_eq!(error, CommandError::state(&key, StateError::Foreign).to_string());
            assert_eq!(bytes(connection), [b'x'; 28]);
            for reset in [&b"\x02\x09"[..], &newer, b"1700000000000000000"] {
                set(connection, reset);
                take(connection, policy, Operation::Reset).unwrap();
                take(connection, policy, Operation::Take(1)).unwrap();
            }
        }
    }
}

/// Every state with any of its bytes changed or cut is an error where it is one for the core, or
/// understood as the core does.
#[test]
fn script_damaged_state_fails_as_in_the_core() {
    let server = Server::start(Engine::Redis70);
    let connection = &mut server.connect();
    for written in [
        "gcra:30/1m",
        "gcra:7/1m:borrow",
        "token-bucket:5/1m:refill=interval",
        "fixed-window:5/1m",
        "fixed-window:5/day",
        "sliding-log:5/1m",
        "sliding-log:5/1m:keep=1h",
        "sliding-counter:5/1m",
        "sliding-log:5/1m,leaky-queue:3/1s",
    ] {
        let whole = state(written);
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|end| whole[..end].to_vec()).collect();
        damaged.push([&whole[..], b"x"].concat());
        for at in 0..whole.len() {
            for bits in [0x01, 0x10, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                damaged.push(bytes);
            }
        }
        for current in [written, "gcra:30/1m:burst=9,sliding-log:3/1s"] {
            for damaged in &damaged {
                set(connection, damaged);
                let actual = take(connection, current, Operation::Peek(1));
                match Entry::decode(damaged) {
                    Err(expected @ (StateError::Version(_) | StateError::Foreign)) => {
                        let expected = CommandError::state(&test_key(b"it"), expected).to_string();
                        assert_eq!(actual, Err(expected));
                    }
                    Err(expected) => {
                        // Lua has no time zones, and reads a log in order only if the policy has changed.
                        let zone =
                            written.contains("/day") && expected.to_string().contains("param");
                        let zone = zone || expected.to_string().contains("not UTF-8");
                        let order =
                            current == written && expected.to_string().contains("out of order");
                        let error = actual.err();
                        assert!(
                            zone || order
                                || error.is_some_and(|it| it.contains("` holds damaged state: ")),
                            "{written} as {damaged:02x?} is accepted, under {current}; {expected}",
                        );
                    }
                    Ok(_) => assert_eq!(actual, Ok(()), "{written} as {damaged:02x?}"),
                }
            }
        }
    }
}
