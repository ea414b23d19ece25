//! Mistakes in commands, each with its whole error, which names the value and what is valid.
//!
//! The list comes from a review of 33 mistakes of new users, with some more.

use crate::{HostOptions, parse};

const COUNT: &str = "ERR wrong number of arguments for";
const MTAKE: &str = "SG.MTAKE n key policy [COST] cost [key policy [COST] cost ...]";
const UNITS: &str = "expected a whole number from 0 to 4294967295";
const SPAN: &str = "expected a whole number of microseconds from 0 to 1125899906842624";
const TIME: &str = "expected a whole number of microseconds from 0 to 4503599627370496";
const KEY: &str = "ERR invalid key: expected 1 to 65536 bytes, found 0";
const SCRIPTS: &str = "(this is a Sluicegate server, which runs no scripts: use 'SG.TAKE' and others; 'SG.HELP' lists them)";
const CLOCK: &str = "ERR option AT is unavailable: the server runs without --test-clock";

#[test]
fn command_mistakes_name_the_value_and_what_is_valid() {
    // A space separates arguments; `''` is an empty one.
    let table = [
        // Numbers of arguments.
        ("SG.TAKE", "COUNT 'sg.take' command; expected SG.TAKE key policy [COST cost]"),
        ("sg.take k", "COUNT 'sg.take' command; expected SG.TAKE key policy [COST cost]"),
        ("SG.PEEK k", "COUNT 'sg.peek' command; expected SG.PEEK key policy [COST cost]"),
        ("SG.CHARGE k", "COUNT 'sg.charge' command; expected SG.CHARGE key policy [COST cost]"),
        ("SG.REFUND k", "COUNT 'sg.refund' command; expected SG.REFUND key policy [COST cost]"),
        (
            "SG.RESERVE k",
            "COUNT 'sg.reserve' command; expected SG.RESERVE key policy [COST cost] [MAXWAIT microseconds]",
        ),
        (
            "SG.WAIT k",
            "COUNT 'sg.wait' command; expected SG.WAIT key policy [COST cost] [TIMEOUT microseconds]",
        ),
        ("SG.RESET", "COUNT 'sg.reset' command; expected SG.RESET key"),
        ("SG.INFO", "COUNT 'sg.info' command; expected SG.INFO key"),
        (
            "CL.THROTTLE",
            "COUNT 'cl.throttle' command; expected CL.THROTTLE key max_burst count period [quantity]",
        ),
        (
            "CL.THROTTLE k 1 2",
            "COUNT 'cl.throttle' command; expected CL.THROTTLE key max_burst count period [quantity]",
        ),
        (
            "CL.THROTTLE k 1 2 3 4 5",
            "COUNT 'cl.throttle' command; expected CL.THROTTLE key max_burst count period [quantity]",
        ),
        ("SG.MTAKE", "COUNT 'sg.mtake' command; expected MTAKE"),
        ("SG.MTAKE 1 k gcra:1/s", "COUNT 'sg.mtake' command; expected MTAKE"),
        (
            "SG.MTAKE 2 a gcra:1/1s 1",
            "COUNT 'sg.mtake' command; 2 announced and 1 given; expected MTAKE",
        ),
        (
            "SG.MTAKE 2 a gcra:1/1s 1 b gcra:1/1s",
            "COUNT 'sg.mtake' command; 2 announced and 1 given (the last one is incomplete); expected MTAKE",
        ),
        (
            "SG.MTAKE 1 a gcra:1/1s 1 b gcra:1/1s 1",
            "COUNT 'sg.mtake' command; 1 announced and 2 given; expected MTAKE",
        ),
        // Commands.
        (
            "SG.TAK k p",
            "ERR unknown command 'SG.TAK', with args beginning with: 'k' 'p' (did you mean 'SG.TAKE'?)",
        ),
        (
            "TAKE k p",
            "ERR unknown command 'TAKE', with args beginning with: 'k' 'p' (did you mean 'SG.TAKE'?)",
        ),
        (
            "sg_take k p",
            "ERR unknown command 'sg_take', with args beginning with: 'k' 'p' (did you mean 'SG.TAKE'?)",
        ),
        (
            "CL.THROTLE k",
            "ERR unknown command 'CL.THROTLE', with args beginning with: 'k' (did you mean 'CL.THROTTLE'?)",
        ),
        ("KEYS *", "ERR unknown command 'KEYS', with args beginning with: '*' (use 'SG.KEYS')"),
        ("scan 0", "ERR unknown command 'scan', with args beginning with: '0' (use 'SG.KEYS')"),
        (
            "FCALL sg_take 1 k gcra:1/1s",
            "ERR unknown command 'FCALL', with args beginning with: 'sg_take' '1' 'k' 'gcra:1/1s' SCRIPTS",
        ),
        ("EVAL x 0", "ERR unknown command 'EVAL', with args beginning with: 'x' '0' SCRIPTS"),
        (
            "SG.BLOCK k",
            "ERR unknown command 'SG.BLOCK', with args beginning with: 'k' (use `POST /admin/block` and `/admin/unblock` over HTTP)",
        ),
        ("SET a b", "ERR unknown command 'SET', with args beginning with: 'a' 'b' "),
        ("GET a b", "ERR unknown command 'GET', with args beginning with: 'a' 'b' "),
        ("''", "ERR unknown command '', with args beginning with: "),
        // Keys.
        ("SG.TAKE '' gcra:1/1s", KEY),
        ("SG.WAIT '' gcra:1/1s", KEY),
        ("SG.MTAKE 2 a gcra:1/1s 1 '' gcra:1/1s 1", KEY),
        // Policies.
        ("SG.TAKE k gcra:30/0s", "SGPOLICY invalid period `0s`: expected 1ms to 366d"),
        (
            "SG.MTAKE 2 k gcra:1/s 1 k gcra:1/60 1",
            "SGPOLICY invalid period `60`: expected a duration such as `60s`",
        ),
        (
            "SG.TAKE k 100/minute",
            "SGPOLICY invalid policy `100/minute`: expected an algorithm, such as `gcra:100/1m` or `fixed-window:100/1m`",
        ),
        (
            "SG.TAKE gcra:1/1s a",
            "SGPOLICY invalid policy `a`: the key `gcra:1/1s` looks like a policy; expected the key first, then the policy",
        ),
        (
            "SG.HOLD gcra:1/1s,sliding-log:9/1m user7 id",
            "SGPOLICY invalid policy `user7`: the key `gcra:1/1s,sliding-log:9/1m` looks like a policy; expected the key first, then the policy",
        ),
        (
            "SG.MTAKE 1 gcra:1/1s a 1",
            "SGPOLICY invalid policy `a`: the key `gcra:1/1s` looks like a policy; expected the key first, then the policy",
        ),
        ("SG.TAKE k 15 30 60", "ERR unknown option `30` for SG.TAKE: did you mean `COST 30`?"),
        (
            "SG.TAKE k @gold",
            "SGPOLICY unknown policy `@gold`: only a Sluicegate server with rules knows names; expected a policy such as `gcra:30/1m`",
        ),
        // Options.
        ("SG.TAKE k gcra:1/s 5", "ERR unknown option `5` for SG.TAKE: did you mean `COST 5`?"),
        ("SG.TAKE k gcra:1/s CST 5", "ERR unknown option `CST` for SG.TAKE: did you mean `COST`?"),
        ("SG.TAKE k gcra:1/s MAXWAIT 5", "ERR unknown option `MAXWAIT` for SG.TAKE: expected COST"),
        (
            "SG.HOLD k concurrency:1/1s id SESSION",
            "ERR unknown option `SESSION` for SG.HOLD: expected COST, TTL or TIMEOUT",
        ),
        ("SG.CHARGE k gcra:1/s ''", "ERR unknown option `` for SG.CHARGE: expected COST"),
        ("SG.TAKE k gcra:1/s it's 1", "ERR unknown option `it's` for SG.TAKE: expected COST"),
        (
            "SG.REFUND k gcra:1/s cost",
            "ERR option COST has no value: expected COST and a whole number, such as `COST 5`",
        ),
        (
            "SG.RESERVE k gcra:1/s x 5",
            "ERR unknown option `x` for SG.RESERVE: expected COST or MAXWAIT",
        ),
        (
            "SG.RESERVE k gcra:1/s MAX_WAIT 5",
            "ERR unknown option `MAX_WAIT` for SG.RESERVE: did you mean `MAXWAIT`?",
        ),
        (
            "SG.WAIT k gcra:1/s MAXWAIT 5",
            "ERR unknown option `MAXWAIT` for SG.WAIT: expected COST or TIMEOUT",
        ),
        (
            "SG.WAIT k gcra:1/s TIMEOUT",
            "ERR option TIMEOUT has no value: expected TIMEOUT and a whole number, such as `TIMEOUT 5`",
        ),
        (
            "SG.TAKEALL 1 k gcra:1/s 1 ID",
            "ERR option ID has no value: expected ID and an id, such as `ID call-7`",
        ),
        (
            "SG.WAIT k gcra:1/s AT 5",
            "ERR option AT is unavailable: a request waits by the clock of the server",
        ),
        ("SG.TAKE k gcra:1/s AT 5", CLOCK),
        ("SG.RESET k AT 5", CLOCK),
        ("SG.MTAKE 1 k gcra:1/s 1 AT 5", CLOCK),
        ("SG.RESET k l", "ERR unknown option `l` for SG.RESET: expected none"),
        ("SG.INFO k COST 1", "ERR unknown option `COST` for SG.INFO: expected none"),
        ("SG.MTAKE 1 k gcra:1/s 1 x", "ERR unknown option `x` for SG.MTAKE: expected none"),
        ("SG.TAKE k gcra:1/s COST 1 cost 2", "ERR duplicate option COST: expected it once"),
        (
            "SG.RESERVE k gcra:1/s MAXWAIT 1 MAXWAIT 1",
            "ERR duplicate option MAXWAIT: expected it once",
        ),
        (
            "SG.WAIT k gcra:1/s TIMEOUT 1 TIMEOUT 1",
            "ERR duplicate option TIMEOUT: expected it once",
        ),
        // Numbers.
        (
            "CL.THROTTLE k -1 30 60",
            "ERR invalid max_burst `-1`: expected a whole number from 0 to 4294967294",
        ),
        (
            "CL.THROTTLE k +5 30 60",
            "ERR invalid max_burst `+5`: expected a whole number from 0 to 4294967294",
        ),
        (
            "CL.THROTTLE k 15 0 60",
            "ERR invalid count `0`: expected a whole number from 1 to 4294967295",
        ),
        (
            "CL.THROTTLE k 15 30 0",
            "ERR invalid period `0`: expected a whole number of seconds from 1 to 31622400",
        ),
        (
            "CL.THROTTLE k 15 30 60s",
            "ERR invalid period `60s`: expected a whole number of seconds from 1 to 31622400",
        ),
        (
            "CL.THROTTLE k 15 30 31622401",
            "ERR invalid period `31622401`: expected a whole number of seconds from 1 to 31622400",
        ),
        ("CL.THROTTLE k 15 30 60 -1", "ERR invalid quantity `-1`: UNITS"),
        ("CL.THROTTLE k 15 30 60 ''", "ERR invalid quantity ``: UNITS"),
        (
            "CL.THROTTLE k 4294967294 1 31622400",
            "ERR invalid max_burst `4294967294` with count `1` and period `31622400`: expected one that recovers within 35 years; use a smaller max_burst",
        ),
        ("SG.TAKE k gcra:1/s COST -1", "ERR invalid COST `-1`: UNITS"),
        ("SG.PEEK k gcra:1/s COST 4294967296", "ERR invalid COST `4294967296`: UNITS"),
        ("SG.CHARGE k gcra:1/s COST 01", "ERR invalid COST `01`: UNITS"),
        ("SG.REFUND k gcra:1/s COST 1e3", "ERR invalid COST `1e3`: UNITS"),
        (
            "SG.WAIT k gcra:1/s COST 18446744073709551616",
            "ERR invalid COST `18446744073709551616`: UNITS",
        ),
        (
            "SG.RESERVE k gcra:1/s MAXWAIT 1125899906842625",
            "ERR invalid MAXWAIT `1125899906842625`: SPAN",
        ),
        ("SG.WAIT k gcra:1/s TIMEOUT 1s", "ERR invalid TIMEOUT `1s`: SPAN"),
        ("SG.MTAKE 0 k gcra:1/s 1", "ERR invalid n `0`: expected a whole number from 1 to 256"),
        ("SG.MTAKE 257 k gcra:1/s 1", "ERR invalid n `257`: expected a whole number from 1 to 256"),
        ("SG.MTAKE a gcra:1/s 1 k", "ERR invalid n `a`: expected a whole number from 1 to 256"),
        ("SG.MTAKE 1 k gcra:1/s x", "ERR invalid cost `x`: UNITS"),
    ];
    check(&table, HostOptions { test_clock: false });
    check(
        &[
            ("SG.TAKE k gcra:1/s x 1", "ERR unknown option `x` for SG.TAKE: expected COST or AT"),
            ("SG.TAKE k gcra:1/s AT 4503599627370497", "ERR invalid AT `4503599627370497`: TIME"),
            ("SG.RESET k AT -1", "ERR invalid AT `-1`: TIME"),
            ("SG.INFO k AT now", "ERR invalid AT `now`: TIME"),
            ("SG.INFO k AT 5 at 5", "ERR duplicate option AT: expected it once"),
        ],
        HostOptions { test_clock: true },
    );
}

fn check(table: &[(&str, &str)], options: HostOptions) {
    let mut wrong = Vec::new();
    for (line, expected) in table {
        let words: Vec<&[u8]> =
            line.split(' ').map(|it| if it == "''" { b"" } else { it.as_bytes() }).collect();
        let mut expected = (*expected).to_owned();
        for (short, long) in [
            ("COUNT", COUNT),
            ("expected MTAKE", &*format!("expected {MTAKE}")),
            ("SCRIPTS", SCRIPTS),
            ("UNITS", UNITS),
            ("SPAN", SPAN),
            ("TIME`", "TIME`"),
        ] {
            expected = expected.replace(short, long);
        }
        let expected =
            expected.strip_suffix(": TIME").map_or(expected.clone(), |it| format!("{it}: {TIME}"));
        let found = parse(&words, options).map(|_| ()).map_err(|error| error.to_string());
        if found != Err(expected.clone()) {
            wrong.push(format!("{line}\n  expected {expected}\n  found    {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parse_policy_not_utf_8_is_an_error_with_offset() {
    let error = parse(&[b"SG.TAKE", b"k", b"gcra:\xff"], HostOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "SGPOLICY invalid policy: byte 5 is not UTF-8; expected ASCII such as `gcra:30/1m`"
    );
}

#[test]
fn parse_no_arguments_is_an_unknown_command() {
    let error = parse(&[], HostOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("ERR unknown"), "{error}");
}

#[test]
fn long_value_is_cut() {
    let cost = "9".repeat(500);
    let error =
        parse(&[b"SG.TAKE", b"k", b"gcra:1/s", b"COST", cost.as_bytes()], HostOptions::default());
    let expected = format!("ERR invalid COST `{}...`: {UNITS}", "9".repeat(40));
    assert_eq!(error.unwrap_err().to_string(), expected);
}
