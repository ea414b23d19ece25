//! Arguments, and the actions that commands make of them.

mod mistakes;

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_core::{Operation, Policy, Timestamp};

use crate::{
    Action, CommandSpec, DecisionFormat, HostOptions, KeyArgument, KeyOperation, MAX_SPAN, parse,
    table,
};

const CLOCK: HostOptions = HostOptions { test_clock: true };
const NO_CLOCK: HostOptions = HostOptions { test_clock: false };

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

/// An action as text, without the address of a function.
fn text(action: &Action<'_, Policy>) -> String {
    match action {
        Action::Read { key, at, .. } => format!("Read {key:?} {at:?}"),
        other => format!("{other:?}"),
    }
}

fn key(bytes: &[u8], index: usize) -> KeyArgument<'_> {
    KeyArgument { bytes, index }
}

/// The operation and the time of a decision on the key `k`.
fn decision(line: &str) -> (Operation<'_>, Option<u64>) {
    match parse(&words(line), CLOCK).unwrap() {
        Action::Apply {
            key: KeyArgument { bytes: b"k", index: 1 },
            policy,
            operation,
            at,
            format,
        } => {
            assert_eq!(policy, "gcra:1/s".parse().unwrap());
            assert_eq!(format, DecisionFormat::Sluicegate);
            (operation, at.map(Timestamp::as_micros))
        }
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn parse_operations_with_defaults_returns_apply() {
    let reserve =
        |cost, max_wait| Operation::Reserve { cost, max_wait: Duration::from_micros(max_wait) };
    let table = [
        ("SG.TAKE k gcra:1/s", Operation::Take(1), None),
        ("sg.take k gcra:1/s cost 0", Operation::Take(0), None),
        ("Sg.Take k gcra:1/s AT 0 COST 4294967295", Operation::Take(u32::MAX), Some(0)),
        ("SG.TAKE k gcra:1/s at 4503599627370496", Operation::Take(1), Some(1 << 52)),
        ("SG.PEEK k gcra:1/s COST 2", Operation::Peek(2), None),
        ("SG.CHARGE k gcra:1/s COST 3", Operation::Charge(3), None),
        ("SG.REFUND k gcra:1/s COST 4", Operation::Refund(4), None),
        ("SG.RESERVE k gcra:1/s", reserve(1, MAX_SPAN), None),
        ("SG.RESERVE k gcra:1/s MAXWAIT 0 COST 9", reserve(9, 0), None),
        ("SG.RESERVE k gcra:1/s maxwait 1125899906842624 at 7", reserve(1, MAX_SPAN), Some(7)),
    ];
    for (line, operation, at) in table {
        assert_eq!(decision(line), (operation, at), "{line}");
    }
}

#[test]
fn parse_other_commands_with_defaults_returns_action() {
    let at = Some(Timestamp::from_micros(5).unwrap());
    let take = |bytes, index, cost| KeyOperation {
        key: key(bytes, index),
        policy: "gcra:1/s".parse().unwrap(),
        operation: Operation::Take(cost),
    };
    let wait = |cost, micros| Action::Wait {
        operations: vec![take(b"k", 1, cost)],
        repeated: None,
        timeout: Duration::from_micros(micros),
    };
    let table = [
        ("SG.WAIT k gcra:1/s", wait(1, 30_000_000)),
        ("SG.WAIT k gcra:1/s timeout 7 cost 2", wait(2, 7)),
        ("SG.RESET k", Action::Reset { key: key(b"k", 1), at: None }),
        ("SG.RESET k AT 5", Action::Reset { key: key(b"k", 1), at }),
        ("SG.INFO k", Action::Read { key: key(b"k", 1), at: None, reply: |_, _, _| () }),
        ("SG.INFO k AT 5", Action::Read { key: key(b"k", 1), at, reply: |_, _, _| () }),
        (
            "SG.MTAKE 1 k gcra:1/s 0",
            Action::ApplyMany { operations: vec![take(b"k", 2, 0)], at: None },
        ),
        (
            "SG.MTAKE 2 k gcra:1/s 1 at gcra:1/s 2 AT 5",
            Action::ApplyMany { operations: vec![take(b"k", 2, 1), take(b"at", 5, 2)], at },
        ),
        (
            "SG.MTAKE 3 k gcra:1/s COST 1 cost gcra:1/s cost 4 l gcra:1/s 2",
            Action::ApplyMany {
                operations: vec![take(b"k", 2, 1), take(b"cost", 6, 4), take(b"l", 10, 2)],
                at: None,
            },
        ),
    ];
    for (line, action) in table {
        let parsed = parse(&words(line), CLOCK).unwrap();
        assert_eq!(text(&parsed), text(&action), "{line}");
    }
}

#[test]
fn parse_key_of_1_to_65536_bytes_is_accepted() {
    for length in [0, 1, 65_536, 65_537] {
        let key = vec![0xff; length];
        let lines: [&[&[u8]]; 9] = [
            &[b"SG.TAKE", &key, b"gcra:1/s"],
            &[b"SG.PEEK", &key, b"gcra:1/s"],
            &[b"SG.CHARGE", &key, b"gcra:1/s"],
            &[b"SG.RESERVE", &key, b"gcra:1/s"],
            &[b"SG.WAIT", &key, b"gcra:1/s"],
            &[b"SG.MTAKE", b"1", &key, b"gcra:1/s", b"1"],
            &[b"CL.THROTTLE", &key, b"1", b"1", b"1"],
            // redis-cell allows an empty key: it can be read and reset.
            &[b"SG.RESET", &key],
            &[b"SG.INFO", &key],
        ];
        for (index, line) in lines.into_iter().enumerate() {
            let found = parse(line, NO_CLOCK).map(|_| ()).map_err(|error| error.to_string());
            let valid = length <= 65_536 && (length > 0 || index >= 7);
            let expected = format!("ERR invalid key: expected 1 to 65536 bytes, found {length}");
            let expected = if valid { Ok(()) } else { Err(expected) };
            assert_eq!(found, expected, "{}", line[0].escape_ascii());
        }
    }
}

/// Arguments that get past the first checks more often than random bytes would.
fn arguments() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let names = table::<&CommandSpec>().iter().map(|spec| spec.name).collect::<Vec<_>>();
    let words = [
        "k",
        "",
        "gcra:1/s",
        "leaky-queue:5/1s:capacity=20,fixed-window:9/day",
        "gcra:0/s",
        "COST",
        "at",
        "MaxWait",
        "TIMEOUT",
        "0",
        "1",
        "2",
        "-1",
        "256",
        "4294967295",
        "4294967296",
        "1125899906842624",
    ];
    let word = prop_oneof![
        8 => prop::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ];
    let name = prop::sample::select(names).prop_map(|name| name.as_bytes().to_vec());
    (name, prop::collection::vec(word, 0..9)).prop_map(|(name, mut rest)| {
        rest.insert(0, name);
        rest
    })
}

proptest! {
    #[test]
    fn parse_any_arguments_returns_action_or_one_line_error(arguments in arguments(), test_clock: bool) {
        let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        if let Err(error) = parse(&slices, HostOptions { test_clock }) {
            let text = error.to_string();
            let class = ["ERR ", "SGPOLICY "].iter().any(|class| text.starts_with(class));
            prop_assert!(class && text.len() <= 512, "{text}");
            prop_assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}
