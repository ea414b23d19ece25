use serde_json::json;

use super::*;

/// A record with some members changed or, if null, left out.
fn record(changes: &Value) -> String {
    let mut record = json!({
        "time": "2026-11-29T12:00:01.500000Z", "count": 1, "shadow": false, "key": "user7",
        "operation": "take", "cost": 1, "policy": "gcra:30/1m", "limit": "gcra:30/1m",
        "capacity": 30, "remaining": 0, "used": 30, "held": 0, "reset_after_us": 60_000_000,
        "wait_us": 1_799_999, "source": "store",
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(record.as_object_mut().unwrap().remove(name)),
            value => record[name] = value.clone(),
        }
    }
    let members = record.to_string();
    format!("{RECORD}{}", &members[1..])
}

fn sentence(changes: &Value) -> String {
    Denial::parse(&record(changes)).unwrap().sentence()
}

#[test]
fn sentence_describes_each_denial() {
    let rule = json!({"rule": "login", "rules_version": 3, "key": "rule:login|198.51.100.7"});
    let with = |one: &Value, more: Value| {
        let mut both = one.as_object().unwrap().clone();
        both.extend(more.as_object().unwrap().clone());
        Value::Object(both)
    };
    let never = |more: Value| {
        let mut line = record(&more);
        line = line.replace("\"wait_us\":1799999", "\"wait_us\":null");
        Denial::parse(&line).unwrap().sentence()
    };
    let no_limit = json!({
        "limit": null, "capacity": null, "remaining": null, "used": null, "held": null,
        "reset_after_us": null,
    });
    for (found, expected) in [
        (
            sentence(&json!({})),
            "the limit denied key `user7`: 30 of 30 units of `gcra:30/1m` were in use, and it asked for 1 \
             unit. It would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if no other request \
             came first), or at once with a capacity of at least 31.",
        ),
        (
            sentence(&with(&rule, json!({"count": 12, "unrecorded": 1}))),
            "rule `login` (version 3) denied key `rule:login|198.51.100.7`: 30 of 30 units of \
             `gcra:30/1m` were in use, and it asked for 1 unit. It would have passed 1.8s later (at \
             2026-11-29T12:00:03.299999Z, if no other request came first), or at once with a capacity of \
             at least 31. Denied 12 times in this second. Of the time before it, 1 denial has no record.",
        ),
        (
            sentence(&with(&rule, json!({"shadow": true, "level": "user"}))),
            "shadow rule `login`, level `user` (version 3) would have denied key \
             `rule:login|198.51.100.7`: 30 of 30 units of `gcra:30/1m` were in use, and it asked for 1 \
             unit. It would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if no other request \
             came first), or at once with a capacity of at least 31.",
        ),
        (
            sentence(&json!({
                "policy": "fixed-window:9/1h,gcra:30/1m", "cost": 4, "used": 28, "remaining": 2,
            })),
            "the limit denied key `user7`: 28 of 30 units of `gcra:30/1m`, the binding limit of \
             `fixed-window:9/1h,gcra:30/1m`, were in use, and it asked for 4 units. It would have passed \
             1.8s later (at 2026-11-29T12:00:03.299999Z, if no other request came first), or at once with \
             a cost of at most 2, or at once with a capacity of at least 32 in this limit, as far as the \
             other limits allow it.",
        ),
        (
            never(json!({"cost": 31, "used": 0, "remaining": 30})),
            "the limit denied key `user7`: 0 of 30 units of `gcra:30/1m` were in use, and it asked for 31 \
             units. No wait is long enough: 31 units exceed the capacity. It would have passed at once \
             with a cost of at most 30, or at once with a capacity of at least 31.",
        ),
        (
            never(json!({"cost": 31, "used": null, "held": null, "source": "cache"})),
            "the limit denied key `user7`: the last denial of the store by `gcra:30/1m` still applied, and it \
             asked for 31 units. No wait is long enough: 31 units exceed the capacity. Only a cost of up to \
             30 can pass.",
        ),
        (
            sentence(
                &json!({"cost": 9, "used": null, "held": null, "remaining": 0, "source": "cache"}),
            ),
            "the limit denied key `user7`: the last denial of the store by `gcra:30/1m` still applied, and it \
             asked for 9 units. By this limit alone, it would have passed 1.8s later (at \
             2026-11-29T12:00:03.299999Z, if no other request came first).",
        ),
        // Under `borrow`, any cost passes with one unit.
        (
            sentence(&json!({
                "policy": "gcra:30/1m,gcra:37/1h:borrow", "cost": 20, "used": null, "held": null,
                "remaining": 7,
            })),
            "the limit denied key `user7`: 7 of 30 units of `gcra:30/1m`, the binding limit of \
             `gcra:30/1m,gcra:37/1h:borrow`, were left, and it asked for 20 units. It would have passed 1.8s \
             later (at 2026-11-29T12:00:03.299999Z, if no other request came first).",
        ),
        (
            sentence(&json!({
                "operation": "hold", "policy": "concurrency:30/1m", "limit": "concurrency:30/1m",
                "held": 30,
            })),
            "the limit denied key `user7`: 30 of 30 units of `concurrency:30/1m` were held, and it asked \
             to hold 1 unit. It would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if no other \
             request came first), or as soon as holds of 1 unit were settled, or at once with a capacity of \
             at least 31.",
        ),
        (
            sentence(&json!({"operation": "hold", "held": 12, "max_wait_us": 20_000})),
            "the limit denied key `user7`: 30 of 30 units of `gcra:30/1m` were in use, 12 of them held, \
             and it asked to hold 1 unit with a timeout of 20ms. It would have passed 1.8s later (at \
             2026-11-29T12:00:03.299999Z, if no other request came first), or at once with a capacity of \
             at least 31.",
        ),
        (
            sentence(&json!({"operation": "hold", "max_wait_us": 20_000, "stopped": true})),
            "the limit denied key `user7`: 30 of 30 units of `gcra:30/1m` were in use, and it asked to hold \
             1 unit within 20ms, and waited until the server stopped. It would have passed 1.8s later (at \
             2026-11-29T12:00:03.299999Z, if no other request came first), or at once with a capacity of \
             at least 31.",
        ),
        (
            sentence(&json!({"also_denied": 1, "count": 2})),
            "the limit denied key `user7`: 30 of 30 units of `gcra:30/1m` were in use, and it asked for 1 \
             unit. By this limit alone, it would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, \
             if no other request came first), or at once with a capacity of at least 31. Another key or \
             rule denied the same request, too. Denied 2 times in this second.",
        ),
        (
            sentence(&with(&no_limit, json!({"source": "table_full", "also_denied": 2}))),
            "the table in memory had no space for key `user7`, and `--when-full deny` denied it. It would \
             have passed with more `--max-memory`, or once other keys had recovered. 2 other keys or rules \
             denied the same request, too.",
        ),
        (
            sentence(&json!({
                "limit": "fixed-window:30/1m:count=all", "policy": "fixed-window:30/1m:count=all",
                "cost": 4, "used": 34, "remaining": 0,
            })),
            "the limit denied key `user7`: 34 units of `fixed-window:30/1m:count=all` were in use, which \
             has a capacity of 30 and counts denied requests, too, and it asked for 4 units. It would have \
             passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if no other request came first).",
        ),
        (
            sentence(&json!({"operation": "reserve", "max_wait_us": 500_000})),
            "the limit denied key `user7`: 30 of 30 units of `gcra:30/1m` were in use, and it asked for 1 \
             unit within 500ms. It would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if no \
             other request came first).",
        ),
        (
            never(json!({"operation": "reserve", "cost": 31, "used": 12, "remaining": 18})),
            "the limit denied key `user7`: 12 of 30 units of `gcra:30/1m` were in use, and it asked for 31 \
             units after any wait. No wait is long enough: 31 units exceed the capacity. Only a cost of up \
             to 30 can pass.",
        ),
        (
            never(json!({"operation": "hold", "remaining": 30, "used": 0})),
            "the limit denied key `user7`: 0 of 30 units of `gcra:30/1m` were in use, and it asked to hold \
             1 unit. The id of its hold is invalid: expected 1 to 64 bytes.",
        ),
        (
            sentence(&json!({"operation": "hold", "remaining": 30, "used": 0})),
            "the limit denied key `user7`: 0 of 30 units of `gcra:30/1m` were in use, and it asked to hold \
             1 unit. The key has as many open holds as it can have. It would have passed as soon as one of \
             them ended: 1m later, at 2026-11-29T12:01:01.500000Z, at the latest.",
        ),
        (
            sentence(
                &json!({"source": "fallback", "on_error": "local", "used": null, "capacity": 7}),
            ),
            "the limit denied key `user7`: 0 of 7 units of this server's share of `gcra:30/1m` were left, \
             while the store was unavailable, and it asked for 1 unit. It would have passed 1.8s later (at \
             2026-11-29T12:00:03.299999Z, if no other request came first).",
        ),
        (
            sentence(&with(&no_limit, json!({"source": "fallback", "on_error": "deny"}))),
            "the store was unavailable, and `on_error` deny denied key `user7`. Its limits would have \
             decided with the store, or with `on_error` local; with `on_error` allow, it would have passed.",
        ),
        (
            sentence(&with(&no_limit, json!({"source": "block", "wait_us": 42_000_000}))),
            "an operator had blocked key `user7`, for another 42s, until 2026-11-29T12:00:43.500000Z. Its \
             limits would have decided if an operator had unblocked it.",
        ),
        (
            sentence(&with(&no_limit, with(&rule, json!({"source": "block", "key": "k"})))),
            "an operator had blocked key `k` of rule `login` (version 3), for another 1.8s, until \
             2026-11-29T12:00:03.299999Z. Its limits would have decided if an operator had unblocked it.",
        ),
        (
            sentence(&with(
                &no_limit,
                json!({
                    "source": "block", "rule": "closed", "rules_version": 1, "key": null,
                    "policy": null, "operation": null, "cost": null, "wait_us": null,
                }),
            )),
            "rule `closed` (version 1) blocked the request. It would have passed only without the block in \
             the rule.",
        ),
        (
            sentence(&with(&no_limit, json!({"source": "table_full"}))),
            "the table in memory had no space for key `user7`, and `--when-full deny` denied it. It would \
             have passed with more `--max-memory`, or once other keys had recovered.",
        ),
        (
            sentence(&json!({"key": null, "key_tag": "#3b5d5c3712", "used": null})),
            "the limit denied key #3b5d5c3712: 0 of 30 units of `gcra:30/1m` were left, and it asked for 1 \
             unit. It would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if no other request \
             came first).",
        ),
        (
            sentence(
                &json!({"key": null, "key_base64": "/wAK", "key_length": 70_000, "used": null}),
            ),
            "the limit denied key `\\xff\\x00\\n...` of 70000 bytes: 0 of 30 units of `gcra:30/1m` were \
             left, and it asked for 1 unit. It would have passed 1.8s later (at \
             2026-11-29T12:00:03.299999Z, if no other request came first).",
        ),
        (
            sentence(&json!({"key": null, "used": null})),
            "the limit denied a key that the log does not name: 0 of 30 units of `gcra:30/1m` were left, \
             and it asked for 1 unit. It would have passed 1.8s later (at 2026-11-29T12:00:03.299999Z, if \
             no other request came first).",
        ),
    ] {
        assert_eq!(found, format!("2026-11-29T12:00:01.500000Z: {expected}"));
    }
}

/// The keys of the sentences, and how many lines were what.
fn read(text: &str, key: Option<&[u8]>) -> (Vec<String>, [u64; 6]) {
    let mut out = Vec::new();
    let counts = write_sentences(text.as_bytes(), key, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let keys = out.lines().map(|line| {
        let (_, rest) = line.split_once("denied key ").unwrap();
        rest.split_once(':').unwrap().0.to_owned()
    });
    let Counts { records, other_keys, without_key, other_lines, damaged, first_damaged } = counts;
    (keys.collect(), [records, other_keys, without_key, other_lines, damaged, first_damaged])
}

/// Also behind the name of a container, and between lines of the server.
#[test]
fn log_other_lines_are_skipped_and_counted() {
    let of = |key: &str| record(&json!({ "key": key }));
    let long = "x".repeat(1 << 20);
    let text = format!(
        "2026-11-29T12:00:00Z  INFO sluicegate_server: started\n{}\r\n\n{{\"level\":\"INFO\"}}\n\
         server-1  | {}\n{RECORD}\"time\":\"now\"}}\n{RECORD}\n{long}{}\n{}",
        of("a"),
        of("b"),
        of("not read"),
        of("c")
    );
    let (keys, counts) = read(&text, None);
    assert_eq!(keys, ["`a`", "`b`", "`c`"]);
    assert_eq!(counts, [3, 0, 0, 3, 2, 6]);
    assert_eq!(read("", None), (vec![], [0; 6]));
}

/// A server was killed while it wrote, and another one went on in the same line.
#[test]
fn record_behind_a_part_of_another_is_read() {
    let whole = record(&json!({"key": "a"}));
    let text = format!("{whole}\n{}{whole}\n{whole}\n", &whole[..whole.len() / 2]);
    let (keys, counts) = read(&text, None);
    assert_eq!(keys, ["`a`", "`a`", "`a`"]);
    assert_eq!(counts, [3, 0, 0, 0, 1, 2]);
}

/// No number that a record has makes it end.
#[test]
fn record_with_extreme_numbers_is_explained_or_damaged() {
    for name in
        ["cost", "capacity", "remaining", "used", "held", "wait_us", "reset_after_us", "count"]
    {
        for value in [json!(0), json!(u64::MAX), json!(-1), json!(1.5), json!("1"), json!([])] {
            let line = record(&json!({ name: value }));
            if let Some(denial) = Denial::parse(&line) {
                assert!(denial.sentence().len() < 1000);
            }
        }
    }
    for changes in [
        json!({"time": "9999-12-30T00:00:00Z", "wait_us": u64::MAX}),
        json!({"limit": "gcra:0/0s"}),
        json!({"limit": "\u{1b}[31m"}),
        json!({"rule": "a\nb", "rules_version": 1}),
    ] {
        let sentence = sentence(&changes);
        assert!(!sentence.contains(char::is_control), "{sentence}");
    }
    for text in ["", "{", "[]", "{\"event\":\"denial\",}", "{\"event\":\"denial\",\"time\":3}"] {
        assert!(Denial::parse(text).is_none(), "{text}");
    }
}

#[test]
fn key_selects_denials() {
    let rule = |key: &str| record(&json!({"key": key, "rule": "r", "rules_version": 1}));
    let tag = record(&json!({"key": null, "key_tag": "#3b5d5c3712"}));
    let bytes = record(&json!({"key": null, "key_base64": "/wA="}));
    let cut = record(&json!({"key": "ab", "key_length": 4}));
    let of = |key: &str| record(&json!({ "key": key }));
    let none = record(&json!({"key": null}));
    let all =
        [of("7"), of("x|7"), rule("rule:r|7"), rule("rule:r|17"), tag, bytes, cut, of("ab"), none];
    let text = all.join("\n");
    for (key, expected) in [
        (&b"7"[..], &["`7`", "`rule"][..]),
        (b"x|7", &["`x|7`"]),
        (b"rule:r|7", &["`rule"]),
        (b"#3b5d5c3712", &["#3b5d5c3712"]),
        (b"\xff\0", &["`\\xff\\x00`"]),
        (b"abcd", &["`ab...` of 4 bytes"]),
        (b"ab", &["`ab`"]),
        (b"none", &[]),
    ] {
        let (keys, counts) = read(&text, Some(key));
        assert_eq!(keys, expected, "{}", key.escape_ascii());
        assert_eq!((counts[0] + counts[1], counts[2]), (8, 1));
    }
}
