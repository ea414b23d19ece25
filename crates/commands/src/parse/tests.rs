use proptest::prelude::*;
use sluicegate_core::Policy;

use super::*;

const CLOCK: Options = Options { test_clock: true };
const NO_CLOCK: Options = Options { test_clock: false };

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

/// The operation and the time of a decision.
fn decision(line: &str) -> (Operation, Option<u64>) {
    match parse(&words(line), CLOCK).unwrap() {
        Request::Decide { key: b"k", operation, at, .. } => {
            (operation, at.map(Timestamp::as_micros))
        }
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn parse_operations_with_defaults_returns_decide() {
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
fn parse_other_commands_returns_request() {
    let policy: Policy = "gcra:1/s".parse().unwrap();
    let at = Some(Timestamp::from_micros(5).unwrap());
    let wait = |cost, micros| Request::Wait {
        key: b"k",
        policy: policy.clone(),
        cost,
        timeout: Duration::from_micros(micros),
    };
    let take = |key, cost| Take { key, policy: policy.clone(), cost };
    let table = [
        ("SG.WAIT k gcra:1/s", wait(1, 30_000_000)),
        ("SG.WAIT k gcra:1/s timeout 7 cost 2", wait(2, 7)),
        ("SG.RESET k", Request::Reset { key: b"k", at: None }),
        ("SG.RESET k AT 5", Request::Reset { key: b"k", at }),
        ("SG.INFO k", Request::Info { key: b"k", at: None }),
        ("SG.INFO k AT 5", Request::Info { key: b"k", at }),
        ("SG.MTAKE 1 k gcra:1/s 0", Request::TakeMany { takes: vec![take(b"k", 0)], at: None }),
        (
            "SG.MTAKE 2 k gcra:1/s 1 at gcra:1/s 2 AT 5",
            Request::TakeMany { takes: vec![take(b"k", 1), take(b"at", 2)], at },
        ),
    ];
    for (line, request) in table {
        assert_eq!(parse(&words(line), CLOCK), Ok(request), "{line}");
    }
}

#[test]
fn parse_mtake_with_and_without_cost_keyword_is_equal() {
    let plain = parse(&words("SG.MTAKE 2 k gcra:1/s 3 cost gcra:1/s 4 AT 5"), CLOCK).unwrap();
    for line in [
        "SG.MTAKE 2 k gcra:1/s COST 3 cost gcra:1/s cost 4 AT 5",
        "SG.MTAKE 2 k gcra:1/s cost 3 cost gcra:1/s 4 AT 5",
    ] {
        assert_eq!(parse(&words(line), CLOCK).as_ref(), Ok(&plain), "{line}");
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
            // redis-cell allows an empty key: it can also be read and reset.
            &[b"CL.THROTTLE", &key, b"1", b"1", b"1"],
            &[b"SG.RESET", &key],
            &[b"SG.INFO", &key],
        ];
        for (index, line) in lines.into_iter().enumerate() {
            let found = parse(line, NO_CLOCK).map(|_| ()).map_err(|error| error.to_string());
            let valid = length <= 65_536 && (length > 0 || index >= 6);
            let expected = format!("ERR invalid key: expected 1 to 65536 bytes, found {length}");
            let expected = if valid { Ok(()) } else { Err(expected) };
            assert_eq!(found, expected, "{}", line[0].escape_ascii());
        }
    }
}

#[test]
fn parse_at_policy_is_what_resolve_returns() {
    let at = |line: &str| {
        let words = words(line);
        let index = crate::position(words[0]).unwrap();
        let mut resolved = Vec::new();
        let parsed = parse_at(index, &words, NO_CLOCK, |text| {
            resolved.push(format!("{text:?}"));
            Ok(resolved.len())
        });
        let held = match parsed.unwrap() {
            Request::Throttle { policy, .. }
            | Request::Decide { policy, .. }
            | Request::Wait { policy, .. } => vec![policy],
            Request::TakeMany { takes, .. } => takes.iter().map(|take| take.policy).collect(),
            Request::Reset { .. } | Request::Info { .. } => Vec::new(),
        };
        assert_eq!(held, (1..=resolved.len()).collect::<Vec<_>>(), "{line}");
        held.len()
    };
    assert_eq!(at("CL.THROTTLE k a b c"), 1);
    assert_eq!(at("SG.TAKE k anything"), 1);
    assert_eq!(at("SG.WAIT k anything"), 1);
    assert_eq!(at("SG.MTAKE 3 k x 1 k y 1 k z 1"), 3);
    assert_eq!(at("SG.RESET k"), 0);
    assert!(parse_at(99, &words("SG.RESET k"), NO_CLOCK, PolicyText::parse).is_err());
    assert!(parse_at(0, &[], NO_CLOCK, PolicyText::parse).is_err());
}

/// Arguments that get past the first checks more often than random bytes would.
fn arguments() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let names = crate::COMMANDS.iter().map(|command| command.name).collect::<Vec<_>>();
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
    /// Whatever is resolved: a request, or an error in one printable line that begins with its class.
    #[test]
    fn parse_any_arguments_returns_request_or_one_line_error(arguments in arguments(), test_clock: bool) {
        let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        if let Err(error) = parse(&slices, Options { test_clock }) {
            let text = error.to_string();
            let class = ["ERR ", "SGPOLICY "].iter().any(|class| text.starts_with(class));
            prop_assert!(class && text.len() <= 512, "{text}");
            prop_assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}
