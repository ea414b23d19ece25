use proptest::prelude::*;

use super::*;

const CLOCK: Options = Options { test_clock: true };
const NO_CLOCK: Options = Options { test_clock: false };

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

fn error(line: &str, options: Options) -> String {
    parse(&words(line), options).unwrap_err().to_string()
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
fn operations_and_their_defaults() {
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
fn the_other_commands() {
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
fn wrong_numbers_of_arguments() {
    let table = [
        ("CL.THROTTLE", "cl.throttle"),
        ("CL.THROTTLE k 1 2", "cl.throttle"),
        ("CL.THROTTLE k 1 2 3 4 5", "cl.throttle"),
        ("SG.TAKE", "sg.take"),
        ("SG.TAKE k", "sg.take"),
        ("SG.PEEK k", "sg.peek"),
        ("SG.CHARGE k", "sg.charge"),
        ("SG.REFUND k", "sg.refund"),
        ("SG.RESERVE k", "sg.reserve"),
        ("SG.WAIT k", "sg.wait"),
        ("SG.RESET", "sg.reset"),
        ("SG.INFO", "sg.info"),
        ("SG.MTAKE", "sg.mtake"),
        ("SG.MTAKE 1 k gcra:1/s", "sg.mtake"),
        ("SG.MTAKE 2 k gcra:1/s 1", "sg.mtake"),
        ("SG.MTAKE 2 k gcra:1/s 1 k gcra:1/s", "sg.mtake"),
    ];
    for (line, name) in table {
        let expected = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(error(line, CLOCK), expected, "{line}");
    }
}

#[test]
fn wrong_options() {
    let table = [
        (
            "SG.TAKE k gcra:1/s MAXWAIT 5",
            "ERR option `MAXWAIT` is unknown to SG.TAKE; COST would do",
        ),
        (
            "SG.TAKE k gcra:1/s TIMEOUT 5",
            "ERR option `TIMEOUT` is unknown to SG.TAKE; COST would do",
        ),
        ("SG.PEEK k gcra:1/s 5", "ERR option `5` is unknown to SG.PEEK; COST would do"),
        ("SG.CHARGE k gcra:1/s ", "ERR option `` is unknown to SG.CHARGE; COST would do"),
        (
            "SG.REFUND k gcra:1/s cost",
            "ERR option COST has no value; COST and a whole number would do",
        ),
        (
            "SG.RESERVE k gcra:1/s x 5",
            "ERR option `x` is unknown to SG.RESERVE; COST or MAXWAIT would do",
        ),
        (
            "SG.WAIT k gcra:1/s MAXWAIT 5",
            "ERR option `MAXWAIT` is unknown to SG.WAIT; COST or TIMEOUT would do",
        ),
        (
            "SG.WAIT k gcra:1/s TIMEOUT",
            "ERR option TIMEOUT has no value; TIMEOUT and a whole number would do",
        ),
        (
            "SG.WAIT k gcra:1/s AT 5",
            "ERR option AT is not for SG.WAIT, which waits by the server's own clock",
        ),
        ("SG.RESET k l", "ERR option `l` is unknown to SG.RESET; it has none"),
        ("SG.INFO k COST 1", "ERR option `COST` is unknown to SG.INFO; it has none"),
        ("SG.MTAKE 1 k gcra:1/s 1 x", "ERR option `x` is unknown to SG.MTAKE; it has none"),
        ("SG.TAKE k gcra:1/s COST 1 cost 2", "ERR option COST is given twice; once would do"),
        (
            "SG.RESERVE k gcra:1/s MAXWAIT 1 MAXWAIT 1",
            "ERR option MAXWAIT is given twice; once would do",
        ),
        (
            "SG.WAIT k gcra:1/s TIMEOUT 1 TIMEOUT 1",
            "ERR option TIMEOUT is given twice; once would do",
        ),
    ];
    for (line, expected) in table {
        assert_eq!(error(line, NO_CLOCK), expected, "{line}");
    }
    for name in [
        "SG.TAKE k gcra:1/s",
        "SG.PEEK k gcra:1/s",
        "SG.RESERVE k gcra:1/s",
        "SG.RESET k",
        "SG.INFO k",
        "SG.MTAKE 1 k gcra:1/s 1",
    ] {
        let line = format!("{name} AT 5");
        let expected =
            "ERR option AT needs a server that runs with --test-clock; leaving it out would do";
        assert_eq!(error(&line, NO_CLOCK), expected, "{line}");
        assert!(parse(&words(&line), CLOCK).is_ok());
        let twice = format!("{line} at 5");
        assert_eq!(error(&twice, CLOCK), "ERR option AT is given twice; once would do", "{line}");
    }
    assert_eq!(
        error("SG.TAKE k gcra:1/s x 1", CLOCK),
        "ERR option `x` is unknown to SG.TAKE; COST or AT would do"
    );
}

#[test]
fn wrong_numbers() {
    let table = [
        ("CL.THROTTLE k -1 30 60", "max_burst", "-1", "0..=4294967294"),
        ("CL.THROTTLE k 4294967295 30 60", "max_burst", "4294967295", "0..=4294967294"),
        ("CL.THROTTLE k +5 30 60", "max_burst", "+5", "0..=4294967294"),
        ("CL.THROTTLE k 15 0 60", "count", "0", "1..=4294967295"),
        ("CL.THROTTLE k 15 -30 60", "count", "-30", "1..=4294967295"),
        ("CL.THROTTLE k 15 4294967296 60", "count", "4294967296", "1..=4294967295"),
        ("CL.THROTTLE k 15 30 0", "period", "0", "1..=31622400"),
        ("CL.THROTTLE k 15 30 31622401", "period", "31622401", "1..=31622400"),
        ("CL.THROTTLE k 15 30 1.5", "period", "1.5", "1..=31622400"),
        ("CL.THROTTLE k 15 30 60 -1", "quantity", "-1", "0..=4294967295"),
        ("CL.THROTTLE k 15 30 60 4294967296", "quantity", "4294967296", "0..=4294967295"),
        ("CL.THROTTLE k 15 30 60 ", "quantity", "", "0..=4294967295"),
        ("SG.TAKE k gcra:1/s COST -1", "COST", "-1", "0..=4294967295"),
        ("SG.PEEK k gcra:1/s COST 4294967296", "COST", "4294967296", "0..=4294967295"),
        ("SG.CHARGE k gcra:1/s COST 01", "COST", "01", "0..=4294967295"),
        ("SG.REFUND k gcra:1/s COST 1e3", "COST", "1e3", "0..=4294967295"),
        (
            "SG.RESERVE k gcra:1/s MAXWAIT 1125899906842625",
            "MAXWAIT",
            "1125899906842625",
            "0..=1125899906842624",
        ),
        ("SG.WAIT k gcra:1/s TIMEOUT 1s", "TIMEOUT", "1s", "0..=1125899906842624"),
        (
            "SG.WAIT k gcra:1/s COST 18446744073709551616",
            "COST",
            "18446744073709551616",
            "0..=4294967295",
        ),
        (
            "SG.TAKE k gcra:1/s AT 4503599627370497",
            "AT",
            "4503599627370497",
            "0..=4503599627370496",
        ),
        ("SG.RESET k AT -1", "AT", "-1", "0..=4503599627370496"),
        ("SG.INFO k AT now", "AT", "now", "0..=4503599627370496"),
        ("SG.MTAKE 0 k gcra:1/s 1", "n", "0", "1..=256"),
        ("SG.MTAKE 257 k gcra:1/s 1", "n", "257", "1..=256"),
        ("SG.MTAKE 1 k gcra:1/s x", "cost", "x", "0..=4294967295"),
    ];
    for (line, argument, value, domain) in table {
        let expected = format!("ERR {argument} `{value}` is not a whole number of {domain}");
        assert_eq!(error(line, CLOCK), expected, "{line}");
    }
}

#[test]
fn a_burst_that_never_comes_back_is_refused() {
    assert_eq!(
        error("CL.THROTTLE k 4294967294 1 31622400", NO_CLOCK),
        "ERR max_burst `4294967294` with count `1` and period `31622400` would take more than 2^50us \
         (35 years) to recover; a smaller max_burst would do"
    );
    assert!(parse(&words("CL.THROTTLE k 4294967294 4294967295 31622400"), NO_CLOCK).is_ok());
}

#[test]
fn wrong_policies() {
    for command in ["SG.TAKE", "SG.PEEK", "SG.CHARGE", "SG.REFUND", "SG.RESERVE", "SG.WAIT"] {
        let message = error(&format!("{command} k gcra:30/0s"), NO_CLOCK);
        assert_eq!(message, "SGPOLICY period `0s` is outside 1ms..=366d (limit 1, at byte 8)");
    }
    let message = error("SG.MTAKE 2 k gcra:1/s 1 k nonsense 1", NO_CLOCK);
    assert!(message.starts_with("SGPOLICY "), "{message}");
    let message = parse(&[b"SG.TAKE", b"k", b"gcra:\xff"], NO_CLOCK).unwrap_err().to_string();
    assert!(message.starts_with("SGPOLICY policy is not UTF-8 from byte 5 on"), "{message}");
}

#[test]
fn keys_are_0_to_65536_bytes() {
    for length in [0, 1, 65_536, 65_537] {
        let key = vec![0xff; length];
        let lines: [&[&[u8]]; 6] = [
            &[b"CL.THROTTLE", &key, b"1", b"1", b"1"],
            &[b"SG.TAKE", &key, b"gcra:1/s"],
            &[b"SG.WAIT", &key, b"gcra:1/s"],
            &[b"SG.RESET", &key],
            &[b"SG.INFO", &key],
            &[b"SG.MTAKE", b"1", &key, b"gcra:1/s", b"1"],
        ];
        for line in lines {
            let told = parse(line, NO_CLOCK).map(|_| ()).map_err(|error| error.to_string());
            let expected = if length <= 65_536 {
                Ok(())
            } else {
                Err("ERR key has 65537 bytes, which is outside 0..=65536".to_owned())
            };
            assert_eq!(told, expected, "{}", line[0].escape_ascii());
        }
    }
}

#[test]
fn unknown_commands_are_quoted_in_safety() {
    assert_eq!(
        error("GET a b", NO_CLOCK),
        "ERR unknown command 'GET', with args beginning with: 'a' 'b' "
    );
    assert_eq!(error("", NO_CLOCK), "ERR unknown command '', with args beginning with: ");
    assert_eq!(parse(&[], NO_CLOCK).unwrap_err().to_string(), error("", NO_CLOCK));
    let many = vec![&[b'\n'; 1000][..]; 1000];
    let message = CommandError::unknown_command(b"\r\n", &many).to_string();
    assert!(message.starts_with(r"ERR unknown command '\r\n', with args beginning with: '\n\n"));
    assert!(message.len() < 300, "{}", message.len());
}

#[test]
fn long_values_are_cut() {
    let message = error(&format!("SG.TAKE k gcra:1/s COST {}", "9".repeat(500)), NO_CLOCK);
    let nines = "9".repeat(40);
    assert_eq!(message, format!("ERR COST `{nines}...` is not a whole number of 0..=4294967295"));
}

#[test]
fn a_policy_is_whatever_its_text_is_made_into() {
    let at = |line: &str| {
        let words = words(line);
        let index = crate::position(words[0]).unwrap();
        let mut asked = Vec::new();
        let parsed = parse_at(index, &words, NO_CLOCK, |text| {
            asked.push(format!("{text:?}"));
            Ok(asked.len())
        });
        let held = match parsed.unwrap() {
            Request::Throttle { policy, .. }
            | Request::Decide { policy, .. }
            | Request::Wait { policy, .. } => vec![policy],
            Request::TakeMany { takes, .. } => takes.iter().map(|take| take.policy).collect(),
            Request::Reset { .. } | Request::Info { .. } => Vec::new(),
        };
        assert_eq!(held, (1..=asked.len()).collect::<Vec<_>>(), "{line}");
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
    /// Whatever is asked: a request, or an error in one printable line that begins with its class.
    #[test]
    fn any_arguments_are_understood_or_refused(arguments in arguments(), test_clock: bool) {
        let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        if let Err(error) = parse(&slices, Options { test_clock }) {
            let text = error.to_string();
            let class = ["ERR ", "SGPOLICY "].iter().any(|class| text.starts_with(class));
            prop_assert!(class && text.len() <= 512, "{text}");
            prop_assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}
