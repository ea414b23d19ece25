//! Mistakes in policies, each with its whole error: it names the value and what is valid.
//!
//! The list comes from a review of 43 mistakes of new users, with some more.

use sluicegate_core::{Policy, PolicyError};

const UNIT: &str =
    "expected a whole number with a unit, such as `250ms`, `60s`, `1m`, `2h` or `1d`";
const OPTION: &str = "expected `:` before an option, without spaces";
const UNITS: &str = "expected a whole number from 1 to 4294967295";
const ALGORITHMS: &str = "expected `gcra`, `token-bucket`, `leaky-bucket`, `leaky-queue`, \
                          `fixed-window`, `sliding-log`, `sliding-counter` or `concurrency`";
const OFFSET: &str = "expected an IANA name, such as `Asia/Shanghai`; offsets are not supported";
const POLICY: &str = "expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`";

#[test]
fn policy_mistakes_name_the_value_and_what_is_valid() {
    let table: &[(&str, &str, usize)] = &[
        // Limits as other tools write them.
        (
            "100/minute",
            "invalid policy `100/minute`: expected an algorithm, such as `gcra:100/1m` or `fixed-window:100/1m`",
            0,
        ),
        (
            "30 per minute",
            "invalid policy `30 per minute`: expected an algorithm, such as `gcra:30/1m` or `fixed-window:30/1m`",
            0,
        ),
        (
            "10r/s",
            "invalid policy `10r/s`: expected an algorithm, such as `gcra:10/1s` or `fixed-window:10/1s`",
            0,
        ),
        (
            "5 per 1 hour",
            "invalid policy `5 per 1 hour`: expected an algorithm, such as `gcra:5/1h` or `fixed-window:5/1h`",
            0,
        ),
        (
            "100/day",
            "invalid policy `100/day`: expected an algorithm, such as `gcra:100/1d` or `fixed-window:100/day`",
            0,
        ),
        (
            "5000 requests per month",
            "invalid policy `5000 requests per month`: expected an algorithm, such as `gcra:5000/30d` or `fixed-window:5000/month`",
            0,
        ),
        (
            "60rpm",
            "invalid policy `60rpm`: expected an algorithm, such as `gcra:60/1m` or `fixed-window:60/1m`",
            0,
        ),
        (
            "1/1s",
            "invalid policy `1/1s`: expected an algorithm, such as `gcra:1/1s` or `fixed-window:1/1s`",
            0,
        ),
        ("30/60", "invalid policy `30/60`: POLICY", 0),
        ("0/minute", "invalid policy `0/minute`: POLICY", 0),
        ("", "invalid policy ``: POLICY", 0),
        ("30", "invalid policy `30`: POLICY", 0),
        ("gold", "invalid policy `gold`: POLICY", 0),
        ("gcra", "invalid policy `gcra`: expected a rate, such as `gcra:30/1m`", 0),
        (
            "Token-Bucket",
            "invalid policy `Token-Bucket`: expected a rate, such as `token-bucket:30/1m`",
            0,
        ),
        ("gcra 30/60s", "invalid policy `gcra 30/60s`: POLICY", 0),
        ("15 30 60", "invalid policy `15 30 60`: POLICY", 0),
        // Algorithms.
        ("token_bucket:10/1s", "unknown algorithm `token_bucket`: did you mean `token-bucket`?", 0),
        ("tokenbucket:10/1s", "unknown algorithm `tokenbucket`: did you mean `token-bucket`?", 0),
        ("TokenBucket:10/1s", "unknown algorithm `TokenBucket`: did you mean `token-bucket`?", 0),
        ("gcar:10/1s", "unknown algorithm `gcar`: did you mean `gcra`?", 0),
        ("fixedwindow:10/1s", "unknown algorithm `fixedwindow`: did you mean `fixed-window`?", 0),
        (" gcra:10/1s", "SPACE", 0),
        ("gcra:10/1s ", "SPACE", 10),
        ("gcra:30/1m, gcra:5/1s", "SPACE (limit 2)", 11),
        ("gcra:30/1m ,gcra:5/1s", "SPACE (limit 1)", 10),
        ("\"gcra:30/1m\"", "invalid character `\"`: QUOTES", 0),
        ("'gcra:30/1m,gcra:5/1s'", "invalid character `'`: QUOTES (limit 1)", 0),
        ("“gcra:30/1m”", "invalid character `“`: QUOTES", 0),
        ("gcra:30/1m”", "invalid character `”`: QUOTES", 10),
        (
            "sliding-window:10/1s",
            "unknown algorithm `sliding-window`: did you mean `sliding-log` or `sliding-counter`?",
            0,
        ),
        (
            "moving-window:10/1s",
            "unknown algorithm `moving-window`: did you mean `sliding-log` or `sliding-counter`?",
            0,
        ),
        (
            "sliding_window_counter:10/1s",
            "unknown algorithm `sliding_window_counter`: did you mean `sliding-counter`?",
            0,
        ),
        (
            "leaky:10/1s",
            "unknown algorithm `leaky`: did you mean `leaky-bucket` or `leaky-queue`?",
            0,
        ),
        (
            "bucket:10/1s",
            "unknown algorithm `bucket`: did you mean `token-bucket` or `leaky-bucket`?",
            0,
        ),
        ("window:10/1s", "unknown algorithm `window`: did you mean `fixed-window`?", 0),
        ("foo:10/1s", "unknown algorithm `foo`: ALGORITHMS", 0),
        (":10/1s", "unknown algorithm ``: ALGORITHMS", 0),
        // Rates and limits.
        ("gcra:", "invalid rate ``: expected N/PERIOD, such as `30/1m`", 5),
        ("gcra:30", "invalid rate `30`: expected N/PERIOD, such as `30/1m`", 5),
        ("gcra:30:60s", "invalid rate `30`: expected N/PERIOD, such as `30/1m`", 5),
        ("gcra:30 per 60s", "invalid rate `30 per 60s`: expected N/PERIOD, such as `30/1m`", 5),
        (
            "gcra:0/60s",
            "invalid limit `0`: expected 1 to 4294967295; to block all requests, use a rule with `block: true`",
            5,
        ),
        ("gcra:-1/1s", "invalid limit `-1`: UNITS", 5),
        ("gcra:1.5/1s", "invalid limit `1.5`: UNITS", 5),
        ("gcra:1k/1s", "invalid limit `1k`: did you mean `1000`?", 5),
        ("gcra:2M/1s", "invalid limit `2M`: did you mean `2000000`?", 5),
        ("gcra:1e3/1s", "invalid limit `1e3`: did you mean `1000`?", 5),
        ("gcra:1_000/1s", "invalid limit `1_000`: did you mean `1000`?", 5),
        ("gcra:1e10/1s", "invalid limit `1e10`: UNITS", 5),
        ("gcra:0k/1s", "invalid limit `0k`: UNITS", 5),
        ("gcra:5/1s:burst=1k", "invalid burst `1k`: did you mean `1000`?", 16),
        ("foo:1k/1s", "unknown algorithm `foo`: ALGORITHMS", 0),
        ("gcra:/60s", "invalid limit ``: UNITS", 5),
        ("gcra:4294967296/1s", "invalid limit `4294967296`: expected 1 to 4294967295", 5),
        // Periods.
        ("gcra:30/60", "invalid period `60`: expected a duration such as `60s`", 8),
        ("gcra:30/", "invalid period ``: UNIT", 8),
        ("gcra:30/1.5s", "invalid period `1.5s`: UNIT", 8),
        ("gcra:30/-1s", "invalid period `-1s`: UNIT", 8),
        ("gcra:30/1h30m", "invalid period `1h30m`: UNIT", 8),
        ("gcra:30/1fortnight", "invalid period `1fortnight`: UNIT", 8),
        (
            "gcra:30/1 minute",
            "invalid period `1 minute`: expected it without spaces, as in `1minute`",
            8,
        ),
        ("gcra:30/60 s", "invalid period `60 s`: expected it without spaces, as in `60s`", 8),
        ("gcra:30/ 60s", "invalid period ` 60s`: expected it without spaces, as in `60s`", 8),
        (
            "gcra:30/1M",
            "invalid period `1M`: expected `m` for minutes, or days such as `30d` for a month",
            8,
        ),
        (
            "gcra:30/1month",
            "invalid period `1month`: expected a duration such as `30d`, or `month` with `fixed-window`",
            8,
        ),
        (
            "sliding-log:5/day",
            "invalid period `day`: expected a duration such as `1d`, or `day` with `fixed-window`",
            14,
        ),
        (
            "fixed-window:5/2months",
            "invalid period `2months`: expected a duration such as `30d`, or `month` with `fixed-window`",
            15,
        ),
        (
            "fixed-window:5/days",
            "invalid period `days`: expected a duration such as `1d`, or `day` with `fixed-window`",
            15,
        ),
        ("gcra:30/0s", "invalid period `0s`: expected 1ms to 366d", 8),
        ("gcra:1/999us", "invalid period `999us`: expected 1ms to 366d", 7),
        ("gcra:1/53w", "invalid period `53w`: expected 1ms to 366d", 7),
        // Separators.
        ("gcra:30/60s;burst=5", "invalid separator `;`: OPTION", 11),
        ("gcra:30/60s burst=5", "invalid separator ` `: OPTION", 11),
        ("gcra:30/60s borrow", "invalid separator ` `: OPTION", 11),
        (
            "gcra:30/60s,burst=5",
            "invalid policy `burst=5`: expected an option after `:`, such as `gcra:30/1m:burst=16` (limit 2)",
            12,
        ),
        ("gcra:30/60s;gcra:5/1s", "invalid separator `;`: expected `,` between two limits", 11),
        ("gcra:30/60s gcra:5/1s", "invalid separator ` `: expected `,` between two limits", 11),
        (
            "gcra:30/60s + sliding-log:5/1s",
            "invalid separator `+`: expected `,` between two limits",
            12,
        ),
        ("gcra:30/60s|gcra:5/1s", "invalid separator `|`: expected `,` between two limits", 11),
        (
            "gcra:30 / 60s",
            "invalid space: expected a policy without spaces, such as `gcra:30/1m`",
            7,
        ),
        (
            "gcra: 30/60s",
            "invalid space: expected a policy without spaces, such as `gcra:30/1m`",
            4,
        ),
        (
            "gcra:30/60s burst 5",
            "invalid separator ` `: expected `:` before an option, without spaces",
            11,
        ),
        ("gcra：30/60s", "invalid character `：`: expected `:`", 4),
        ("gcra:30／60s", "invalid character `／`: expected `/`", 7),
        ("gcra:1,000/1s", "invalid limit `1,000`: expected it without commas: `1000` (limit 1)", 5),
        (
            "sliding-log:1,000,000/1s",
            "invalid limit `1,000,000`: expected it without commas: `1000000` (limit 1)",
            12,
        ),
        ("1,000/1d", "invalid limit `1,000`: expected it without commas: `1000` (limit 1)", 0),
        (
            "concurrency:5",
            "invalid rate `5`: expected N/PERIOD, such as `5/30s`, where the period is the longest lifetime of a hold",
            12,
        ),
        (
            "concurrency",
            "invalid policy `concurrency`: expected a rate, such as `concurrency:5/30s`",
            0,
        ),
        (
            "@gold",
            "invalid policy `@gold`: POLICY; only a server knows the names in its rules files",
            0,
        ),
        ("gcra:1/1s,000/1s", "invalid policy `000/1s`: POLICY (limit 2)", 10),
        // Options.
        ("gcra:1/1s:", "unknown option `` for gcra: expected `borrow` or `burst`", 10),
        ("gcra:1/1s:keep=1h", "unknown option `keep` for gcra: expected `borrow` or `burst`", 10),
        ("concurrency:5/1s:burst=2", "unknown option `burst` for concurrency: expected none", 17),
        ("gcra:1/1s:16", "unknown option `16` for gcra: did you mean `burst=16`?", 10),
        (
            "leaky-queue:1/1s:9",
            "unknown option `9` for leaky-queue: did you mean `capacity=9`?",
            17,
        ),
        ("gcra:1/1s:brust=5", "unknown option `brust` for gcra: did you mean `burst`?", 10),
        ("gcra:1/1s:bursts=5", "unknown option `bursts` for gcra: did you mean `burst`?", 10),
        (
            "sliding-log:1/1s:keep_max=5",
            "unknown option `keep_max` for sliding-log: did you mean `keep-max`?",
            17,
        ),
        (
            "leaky-queue:1/1s:borrow",
            "unknown option `borrow` for leaky-queue: expected `capacity`",
            17,
        ),
        ("gcra:1/1s:burst", "invalid option `burst`: expected a value, such as `burst=16`", 10),
        (
            "fixed-window:1/day:tz",
            "invalid option `tz`: expected a value, such as `tz=Asia/Shanghai`",
            19,
        ),
        ("gcra:1/1s:burst=", "invalid burst ``: UNITS", 16),
        ("gcra:1/1s:burst=0", "invalid burst `0`: expected 1 to 4294967295", 16),
        ("leaky-queue:1/1s:burst=0", "invalid capacity `0`: expected 1 to 4294967295", 23),
        ("gcra:1/1s:burst=2:burst=2", "duplicate option `burst`: expected it once", 18),
        ("gcra:1/1s:burst=2:capacity=3", "duplicate option `burst`: expected it once", 18),
        (
            "gcra:1/1s:borrow=yes",
            "invalid option `borrow=yes`: expected `borrow` without a value",
            10,
        ),
        (
            "sliding-log:1/1s:count=some",
            "invalid count `some`: expected `count=allowed` or `count=all`",
            23,
        ),
        (
            "token-bucket:1/1s:refill=step",
            "invalid refill `step`: expected `refill=continuous` or `refill=interval`",
            25,
        ),
        (
            "sliding-log:1/1s:keep-max=2",
            "invalid option `keep-max`: expected `keep` with it, such as `keep=1h`",
            26,
        ),
        (
            "sliding-log:1/1s:keep=1h:keep-max=1048577",
            "invalid keep-max `1048577`: expected 1 to 1048576",
            34,
        ),
        (
            "fixed-window:1/day:tz=Mars",
            "unknown time zone `Mars`: expected an IANA name, such as `Asia/Shanghai`",
            22,
        ),
        ("fixed-window:1/day:tz=+02:00", "invalid time zone `+02:00`: OFFSET", 22),
        ("fixed-window:1/day:tz=-5", "invalid time zone `-5`: OFFSET", 22),
        ("fixed-window:1/day:tz=UTC+2", "invalid time zone `UTC+2`: OFFSET", 22),
        (
            "fixed-window:1/1d:tz=UTC",
            "invalid period `1d` with `tz`: expected `day`, `week`, `month` or `year`",
            21,
        ),
        (
            "fixed-window:1/day:align=first",
            "invalid align `first`: expected `align=clock` with the calendar period `day`, or a duration such as `1d`",
            25,
        ),
        // Several limits.
        (
            "gcra:1/1s,gcra:1/366d:burst=100",
            "invalid burst `100`: expected one that drains within 35 years; use a lower burst, a higher limit or a shorter period (limit 2)",
            28,
        ),
        (
            "gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,gcra:1/1s,x",
            "invalid number of limits `9`: expected 1 to 8",
            0,
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected, offset) in table {
        let expected = expected
            .replace("SPACE", "invalid space: expected a policy without spaces")
            .replace("QUOTES", "expected a policy without quotes")
            .replace("OFFSET", OFFSET)
            .replace("OPTION", OPTION)
            .replace("POLICY", POLICY)
            .replace("ALGORITHMS", ALGORITHMS)
            .replace("UNITS", UNITS)
            .replace("UNIT", UNIT);
        match text.parse::<Policy>() {
            Err(error) if error.to_string() == expected && error.offset() == *offset => {}
            other => {
                wrong.push(format!("{text}\n  expected {expected} at {offset}\n  found {other:?}"))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn policy_mistakes_are_printable() {
    let table = [
        ("\u{80}\0", "invalid policy `\\u{80}\\0`: POLICY"),
        ("gcra:30/1m\u{1b}[2J", "invalid period `1m\\u{1b}[2J`: UNIT"),
        ("g\u{200b}cra:30/1m", "unknown algorithm `g\\u{200b}cra`: ALGORITHMS"),
        ("gcra:3\u{a0}0/1m", "invalid limit `3\\u{a0}0`: UNITS"),
        (
            "gcra:1/1s:\u{202e}burst=2",
            "unknown option `\\u{202e}burst` for gcra: expected `borrow` or `burst`",
        ),
        (
            "fixed-window:1/day:tz=\u{7f}",
            "unknown time zone `\\u{7f}`: expected an IANA name, such as `Asia/Shanghai`",
        ),
    ];
    for (text, expected) in table {
        let expected = expected
            .replace("POLICY", POLICY)
            .replace("ALGORITHMS", ALGORITHMS)
            .replace("UNITS", UNITS)
            .replace("UNIT", UNIT);
        assert_eq!(text.parse::<Policy>().unwrap_err().to_string(), expected);
    }
    assert_eq!(
        PolicyError::swapped("gcra:1/1s", "\r\n").to_string(),
        "invalid policy `\\r\\n`: the key `gcra:1/1s` looks like a policy; expected the key first, \
         then the policy",
    );
}
