use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::check::{encode, replies};

/// `input` is this one value, and no shorter part of it is.
fn check(input: &str, expected: &Value) {
    for cut in 0..input.len() {
        assert_eq!(decode(&input.as_bytes()[..cut]), Ok(None), "{input:?} cut at {cut}");
    }
    for rest in ["", "+rest\r\n"] {
        let bytes = [input, rest].concat();
        assert_eq!(
            decode(bytes.as_bytes()),
            Ok(Some((expected.clone(), input.len()))),
            "{input:?}"
        );
    }
}

fn fails(input: impl AsRef<[u8]>, expected: &str) {
    let input = input.as_ref();
    let error = decode(input).expect_err("is refused");
    assert_eq!(
        error.to_string(),
        format!("Protocol error: {expected}"),
        "{}",
        input.escape_ascii()
    );
    assert_eq!(replies(input, 0..=input.len()), (vec![], Err(error)));
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn decode_each_type_returns_its_value() {
    use Value::*;
    check("+OK\r\n", &Simple("OK".into()));
    check("+\r\n", &Simple(vec![]));
    check("-ERR no\r\n", &Error("ERR no".into()));
    check(":0\r\n", &Integer(0));
    check(":-9223372036854775808\r\n", &Integer(i64::MIN));
    check(":+7\r\n", &Integer(7));
    check("$0\r\n\r\n", &bulk(""));
    check("$4\r\na\r\nb\r\n", &bulk("a\r\nb"));
    check("$-1\r\n", &Null);
    check("*-1\r\n", &Null);
    check("_\r\n", &Null);
    check("*0\r\n", &Array(vec![]));
    check(
        "*3\r\n:1\r\n$-1\r\n*1\r\n+a\r\n",
        &Array(vec![Integer(1), Null, Array(vec![Simple("a".into())])]),
    );
    check("#t\r\n", &Boolean(true));
    check("#f\r\n", &Boolean(false));
    check(",1.5\r\n", &Double(1.5));
    check(",10\r\n", &Double(10.0));
    check(",-1e300\r\n", &Double(-1e300));
    check(",inf\r\n", &Double(f64::INFINITY));
    check(",-inf\r\n", &Double(f64::NEG_INFINITY));
    check(
        "(-3492890328409238509324850943850943825024385\r\n",
        &BigNumber("-3492890328409238509324850943850943825024385".into()),
    );
    check("!8\r\nERR a\r\nb\r\n", &Error("ERR a\r\nb".into()));
    check("=7\r\ntxt:a b\r\n", &Verbatim(*b"txt", "a b".into()));
    check(
        "%2\r\n+a\r\n:1\r\n:2\r\n%0\r\n",
        &Map(vec![(Simple("a".into()), Integer(1)), (Integer(2), Map(vec![]))]),
    );
    check("~2\r\n:1\r\n:1\r\n", &Set(vec![Integer(1), Integer(1)]));
    check(">2\r\n+message\r\n$1\r\nx\r\n", &Push(vec![Simple("message".into()), bulk("x")]));
    assert!(matches!(decode(b",nan\r\n"), Ok(Some((Double(value), 6))) if value.is_nan()));
}

#[test]
fn decode_attribute_is_dropped() {
    check("|1\r\n+ttl\r\n:3600\r\n$1\r\nx\r\n", &bulk("x"));
    check("|0\r\n|1\r\n+a\r\n*1\r\n:1\r\n:2\r\n", &Value::Integer(2));
    check(
        "*2\r\n:1\r\n|1\r\n+a\r\n:9\r\n:2\r\n",
        &Value::Array(vec![Value::Integer(1), Value::Integer(2)]),
    );
}

#[test]
fn decode_malformed_reply_returns_its_error() {
    fails("x", "unknown reply type 'x'");
    fails("\r\n", "unknown reply type '\\r'");
    fails("*1\r\n@\r\n", "unknown reply type '@'");
    fails("+a\nb\r\n", "malformed reply of type '+'");
    fails("-a\rb\r\n", "malformed reply of type '-'");
    for text in ["", "x", "1.5", " 1", "9223372036854775808"] {
        fails(format!(":{text}\r\n"), "malformed reply of type ':'");
    }
    fails(",1,5\r\n", "malformed reply of type ','");
    fails(b",\xff\r\n", "malformed reply of type ','");
    fails("#x\r\n", "malformed reply of type '#'");
    fails("_x\r\n", "malformed reply of type '_'");
    for text in ["", "-", "+-1", "1.0", "1x"] {
        fails(format!("({text}\r\n"), "malformed reply of type '('");
    }
    fails("=3\r\ntxt\r\n", "malformed reply of type '='");
    fails("=5\r\ntext:\r\n", "malformed reply of type '='");
    fails("$1\r\nab\r\n", "expected CRLF after a bulk");
    for (kinds, error) in [("$!=", "invalid bulk length"), ("*%~>|", "invalid multibulk length")] {
        for kind in kinds.chars() {
            fails(format!("{kind}?\r\n"), error);
            fails(format!("{kind}-2\r\n"), error);
            fails(format!("{kind}9999999999\r\n"), error);
            let null = format!("{kind}-1\r\n");
            if "$*".contains(kind) { check(&null, &Value::Null) } else { fails(null, error) }
        }
    }
    fails("$".to_owned() + &"1".repeat(40), "too big bulk count string");
    fails("*".to_owned() + &"1".repeat(40), "too big mbulk count string");
}

#[test]
fn decode_nesting_above_the_limit_is_an_error() {
    for header in ["*1\r\n", "~1\r\n", ">1\r\n", "%1\r\n:0\r\n", "|1\r\n:0\r\n"] {
        let nested = |depth| header.repeat(depth) + ":1\r\n" + &":2\r\n".repeat(depth);
        assert!(decode(nested(MAX_DEPTH - 1).as_bytes()).unwrap().is_some());
        assert!(decode(nested(MAX_DEPTH).as_bytes()).unwrap().is_some());
        assert_eq!(decode(nested(MAX_DEPTH + 1).as_bytes()), Err(ProtocolError::TooDeep));
        assert_eq!(decode(nested(100_000).as_bytes()), Err(ProtocolError::TooDeep));
    }
    // A chain of attributes is long, not deep.
    check(&("|0\r\n".repeat(100) + ":1\r\n"), &Value::Integer(1));
}

#[test]
fn decode_declared_size_allocates_nothing() {
    assert_eq!(decode(format!("${MAX_BULK}\r\n").as_bytes()), Ok(None));
    assert_eq!(decode(format!("*{MAX_ELEMENTS}\r\n").as_bytes()), Ok(None));
    fails(format!("${}\r\n", MAX_BULK + 1), "invalid bulk length");
    fails(format!("*{}\r\n", MAX_ELEMENTS + 1), "invalid multibulk length");
    for kind in "*%~>|".chars() {
        assert_eq!(decode(format!("{kind}1000000000\r\n").as_bytes()), Ok(None));
    }
    // A count is accepted only if the received bytes can contain it, and no element is read before.
    assert_eq!(decode(b"*4\r\n?_\r\n_\r\n_\r\n"), Ok(None));
    assert_eq!(decode(b"*4\r\n?_\r\n_\r\n_\r\n_\r\n"), Err(ProtocolError::UnknownType(b'?')));
}

#[test]
fn encode_command_appends_an_array_of_bulks() {
    let mut out = b"before".to_vec();
    encode_command(&[b"GET", b"", b"\r\n\xff"], &mut out);
    assert_eq!(out, b"before*3\r\n$3\r\nGET\r\n$0\r\n\r\n$3\r\n\r\n\xff\r\n");
}

fn values() -> impl Strategy<Value = Value> {
    let line = || vec(any::<u8>().prop_filter("one line", |byte| !b"\r\n".contains(byte)), 0..9);
    let text = || vec(any::<u8>(), 0..12);
    let leaf = prop_oneof![
        line().prop_map(Value::Simple),
        line().prop_map(Value::Error),
        any::<i64>().prop_map(Value::Integer),
        text().prop_map(Value::Bulk),
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        (proptest::num::f64::ANY)
            .prop_filter("equal to itself", |v| !v.is_nan())
            .prop_map(Value::Double),
        "[+-]?[0-9]{1,40}".prop_map(Value::BigNumber),
        (any::<[u8; 3]>(), text()).prop_map(|(format, text)| Value::Verbatim(format, text)),
    ];
    leaf.prop_recursive(4, 24, 5, |value| {
        prop_oneof![
            vec(value.clone(), 0..5).prop_map(Value::Array),
            vec(value.clone(), 0..5).prop_map(Value::Set),
            vec(value.clone(), 0..5).prop_map(Value::Push),
            vec((value.clone(), value), 0..4).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn decode_encoded_value_returns_it(values in vec(values(), 1..4)) {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| encode(value, &mut bytes));
        prop_assert_eq!(&replies(&bytes, 0..=bytes.len()), &(values.clone(), Ok(bytes.len())));
        let mut first = Vec::new();
        encode(&values[0], &mut first);
        for cut in 0..first.len() {
            prop_assert_eq!(decode(&first[..cut]), Ok(None));
        }
    }

    #[test]
    fn decode_any_bytes_in_any_pieces_returns_the_same(
        bytes in vec(prop_oneof![4 => prop::sample::select(b"*%~>|$!=:,(#_+-t0123\r\n".to_vec()), 1 => any::<u8>()], 0..80),
    ) {
        crate::check::check(&bytes);
    }
}
