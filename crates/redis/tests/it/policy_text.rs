//! Policies as text: the functions accept and reject the same texts as the core.

use redis::Value;
use sluicegate_core::{Entry, Policy};
use sluicegate_testing::{Engine, Server};

use crate::{
    functions::{call, install},
    store::test_key,
};

/// So many texts.
const TEXTS: u64 = 40_000;

/// Pseudo-random numbers (Marsaglia's xorshift, 2003).
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % bound
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn number(&mut self) -> String {
        let odd = [
            "0",
            "00",
            "007",
            "4294967295",
            "4294967296",
            "1048576",
            "1048577",
            "",
            "-1",
            "1.5",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999",
            "1e3",
            "9007199254740993",
        ];
        if self.below(4) == 0 { self.pick(&odd).to_owned() } else { self.below(5000).to_string() }
    }

    fn period(&mut self) -> String {
        let units = [
            "us", "ms", "s", "sec", "second", "m", "min", "minute", "h", "hour", "d", "w", "MS",
            "S", "secs", "seconds", "M", "Mins", "MINUTES", "hr", "hours", "day", "Days", "week",
            "weeks", "msec",
        ];
        match self.below(8) {
            0 => self
                .pick(&[
                    "day", "week", "month", "year", "1month", "days", "", "60", "Month", "DAY",
                    "2years", "1 m", "1M", "1.5s",
                ])
                .to_owned(),
            1 => self.pick(&units).to_owned(),
            2 => self.number() + self.pick(&units),
            _ => format!("{}{}", 1 + self.below(400), self.pick(&units)),
        }
    }

    fn option(&mut self) -> String {
        match self.below(12) {
            0 => "borrow".to_owned(),
            1 | 2 => format!("burst={}", self.number()),
            3 => format!("capacity={}", self.number()),
            4 => format!("refill={}", self.pick(&["interval", "interval", "continuous", "x"])),
            5 => format!("align={}", self.pick(&["first", "clock", "clock", ""])),
            6 => format!("count={}", self.pick(&["all", "allowed", "none"])),
            7 => format!("keep={}", self.period()),
            8 => format!("keep-max={}", self.number()),
            9 => format!("tz={}", self.pick(&["UTC", "utc", "UTC"])),
            10 => self
                .pick(&[
                    "burst",
                    "borrow=1",
                    "foo",
                    "foo=1",
                    "",
                    "=",
                    "keep-max",
                    "Brust=3",
                    "BURST=4",
                    "16",
                    "keep_max=9",
                    "Borrow",
                    "Count=ALL",
                    "align=Clock",
                    "z=1",
                    "capcity",
                ])
                .to_owned(),
            _ => format!("{}={}", self.pick(&["burst", "keep", "count"]), self.number()),
        }
    }

    fn limit(&mut self) -> String {
        let names = [
            "gcra",
            "token-bucket",
            "leaky-bucket",
            "leaky-queue",
            "fixed-window",
            "sliding-log",
            "sliding-counter",
        ];
        let others = [
            "leaky",
            "GCRA",
            "Token-Bucket",
            "token_bucket",
            "gcar",
            "sliding-window",
            "moving window",
            "bucket",
            "window",
            "et",
            "taken-backet",
            "slidinglogs",
            "fixed",
            "-",
            "nonsense",
            "",
        ];
        let name = if self.below(8) == 0 { self.pick(&others) } else { self.pick(&names) };
        if self.below(12) == 0 {
            return self.rate();
        }
        let mut text = format!("{name}:{}/{}", self.number(), self.period());
        for _ in 0..self.below(4) {
            text = format!("{text}:{}", self.option());
        }
        text
    }

    /// A limit as other tools write it.
    fn rate(&mut self) -> String {
        let between = ["/", " per ", "r/", " requests / ", "reqs per ", "R/", "x/", "", " "];
        let ends = ["rps", "rpm", "RPD", "rpw"];
        match self.below(6) {
            0 => format!("{}{}", self.number(), self.pick(&ends)),
            1 => self.pick(&["gcra", "Fixed-Window", "gold", "100"]).to_owned(),
            _ => format!("{}{}{}", self.number(), self.pick(&between), self.period()),
        }
    }

    /// One to ten limits, now and then with a character more, less or other.
    fn text(&mut self) -> String {
        let count = if self.below(4) > 0 { 1 } else { 1 + self.below(10) };
        let limits: Vec<_> = (0..count).map(|_| self.limit()).collect();
        let mut text: Vec<char> = limits.join(",").chars().collect();
        let strange: Vec<char> = ":/=,; GéＡ𝄞%-0w".chars().collect();
        while self.below(3) == 0 {
            let at = self.below(text.len() + 1);
            // (No NUL: the server cuts the text of an error there.)
            let other = strange[self.below(strange.len())];
            match self.below(3) {
                0 => text.insert(at, other),
                1 if at < text.len() => text[at] = other,
                _ => drop((at < text.len()).then(|| text.remove(at))),
            }
        }
        text.into_iter().collect()
    }
}

#[test]
fn policy_text_is_read_as_by_the_core() {
    let server = Server::start(Engine::Redis70);
    let connection = &mut install(&server);
    let mut draw = SeededRng(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    let key = test_key(b"it");
    for _ in 0..TEXTS {
        let text = draw.text();
        let actual =
            call(connection, "sg_charge", &key, &[text.as_bytes(), b"1", b"AT", b"1000000"]);
        match text.parse::<Policy>() {
            Err(_) => {
                let actual = actual.unwrap_err();
                assert!(actual.starts_with("SGPOLICY "), "{text}: {actual}");
            }
            Ok(policy) => {
                assert!(actual.is_ok(), "{text}: {actual:?}");
                let stored: Vec<u8> = redis::cmd("GET").arg(&key).query(connection).unwrap();
                assert_eq!(Entry::decode(&stored).unwrap().policy(), &policy, "{text}");
                let info = call(connection, "sg_info", &key, &[b"AT", b"1000000"]).unwrap();
                let Value::Array(info) = info else { panic!("no array") };
                let canonical = Value::BulkString(policy.to_string().into_bytes());
                assert_eq!(info[..2], [Value::BulkString("policy".into()), canonical], "{text}");
                call(connection, "sg_reset", &key, &[]).unwrap();
                accepted += 1;
            }
        }
    }
    assert!(accepted > TEXTS / 20, "{accepted} of {TEXTS} texts were policies");
}

/// An error says what is invalid and what is expected.
#[test]
fn policy_text_invalid_is_an_error_with_what_is_expected() {
    let server = Server::start(Engine::Valkey91);
    let connection = &mut install(&server);
    let period = "expected a duration from 1ms to 366d, such as `250ms`, `60s`, `1m`, `2h` or `1d`";
    let ten = ["gcra:1/1s"; 10].join(",");
    for (text, expected) in [
        (
            &b"30/1m"[..],
            "invalid policy `30/1m`: expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`",
        ),
        (b"gcra:30", "invalid policy `gcra:30`: expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`"),
        (b"gcra:1/1s,", "invalid policy ``: expected ALGORITHM:N/PERIOD, such as `gcra:30/1m`"),
        (ten.as_bytes(), &format!("invalid policy `{}...`: expected 1 to 8 limits", &ten[..40])),
        (
            b"\xff\r\n:1/1s",
            "unknown algorithm `\\xff\\r\\n`: expected gcra, token-bucket, leaky-bucket, leaky-queue, fixed-window, \
             sliding-log, sliding-counter, concurrency",
        ),
        (b"gcra:0/1s", "invalid limit `0`: expected a whole number from 1 to 4294967295"),
        (b"concurrency:65537/1s", "invalid limit `65537`: expected a whole number from 1 to 65536"),
        (b"gcra:1/60", &format!("invalid period `60`: {period}")),
        (b"gcra:1/367d", &format!("invalid period `367d`: {period}")),
        (b"gcra:1/day", &format!("invalid period `day`: {period}")),
        (b"gcra:1/1s:16", "unknown option `16` for gcra: expected borrow or burst"),
        (b"concurrency:1/1s:burst=2", "unknown option `burst` for concurrency: expected none"),
        (b"gcra:1/1s:burst=1:capacity=1", "duplicate option `burst`: expected it once"),
        (b"gcra:1/1s:burst", "invalid option `burst`: expected burst=VALUE"),
        (b"gcra:1/1s:borrow=1", "invalid option `borrow=1`: expected borrow without a value"),
        (
            b"gcra:1/366d:burst=4294967295",
            "invalid burst `4294967295`: expected one that drains within 35 years",
        ),
        (b"token-bucket:1/1s:refill=x", "invalid refill `x`: expected continuous or interval"),
        (
            b"fixed-window:1/1d:tz=UTC",
            "invalid period `1d`: expected day, week, month or year with `tz`",
        ),
        (
            b"fixed-window:1/day:align=first",
            "invalid align `first`: expected `align=clock` with a period of the calendar",
        ),
        (b"sliding-log:1/1s:keep-max=5", "missing option `keep`: `keep-max` needs it"),
    ] {
        let actual = call(connection, "sg_take", b"k", &[text]);
        assert_eq!(actual, Err(format!("SGPOLICY {expected}")));
        let core = std::str::from_utf8(text).map(str::parse::<Policy>);
        assert!(!matches!(core, Ok(Ok(_))), "{expected}");
    }
}

/// Policies are cached by their texts, in bounded memory.
#[test]
fn policy_cache_many_policies_stays_in_bounds() {
    let server = Server::start(Engine::Redis70);
    let connection = &mut install(&server);
    for round in 0..2 {
        for n in 1..3_000 {
            let text = format!("gcra:{n}/1h");
            let actual = call(connection, "sg_peek", b"k", &[text.as_bytes()]).unwrap();
            let Value::Array(actual) = actual else { panic!("no array") };
            assert_eq!(actual[1], Value::Int(n), "round {round}");
        }
    }
}
