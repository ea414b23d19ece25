//! Our codec beside the crate `redis-protocol`, another reading of the same specification.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use proptest::prelude::{
    Just, ProptestConfig, Strategy, any as arbitrary, prop_assert_eq, prop_oneof, proptest,
};
use redis_protocol::{
    resp2::{
        self,
        types::{OwnedFrame as Frame2, Resp2Frame as _},
    },
    resp3::{
        self,
        types::{OwnedFrame as Frame3, VerbatimStringFormat},
    },
};
use sluicegate_resp::{Arguments, Limits, Parser, ProtocolError, Value, decode, encode_command};
use sluicegate_testing::check_mutations;

/// What either read of some bytes: a value and the bytes taken, too few bytes, or no RESP.
type Read<E> = Result<Option<(Value, usize)>, E>;

fn theirs(bytes: &[u8]) -> Read<String> {
    let read = resp3::decode::complete::decode(bytes).map_err(|error| error.to_string())?;
    Ok(read.map(|(frame, taken)| (unordered(value(frame)), taken)))
}

/// Maps and sets in one order, and without duplicates: the other crate hashes them. Floats as text,
/// so that `nan` equals itself.
fn unordered(value: Value) -> Value {
    let list = |values: Vec<Value>| values.into_iter().map(unordered).collect::<Vec<_>>();
    match value {
        Value::Array(values) => Value::Array(list(values)),
        Value::Push(values) => Value::Push(list(values)),
        Value::Set(values) => {
            let values = list(values).into_iter().map(|it| (format!("{it:?}"), it));
            Value::Set(values.collect::<BTreeMap<_, _>>().into_values().collect())
        }
        Value::Map(pairs) => {
            let pairs = pairs.into_iter().map(|(key, value)| (unordered(key), unordered(value)));
            let pairs = pairs.map(|pair| (format!("{:?}", pair.0), pair));
            Value::Map(pairs.collect::<BTreeMap<_, _>>().into_values().collect())
        }
        Value::Double(double) => Value::Simple(format!("double {double}").into()),
        other => other,
    }
}

fn value(frame: Frame3) -> Value {
    match frame {
        Frame3::BlobString { data, .. } => Value::Bulk(data),
        Frame3::BlobError { data, .. } => Value::Error(data),
        Frame3::SimpleString { data, .. } => Value::Simple(data),
        Frame3::SimpleError { data, .. } => Value::Error(data.into()),
        Frame3::Boolean { data, .. } => Value::Boolean(data),
        Frame3::Null => Value::Null,
        Frame3::Number { data, .. } => Value::Integer(data),
        Frame3::Double { data, .. } => Value::Double(data),
        Frame3::BigNumber { data, .. } => Value::BigNumber(String::from_utf8_lossy(&data).into()),
        Frame3::VerbatimString { data, format: VerbatimStringFormat::Text, .. } => {
            Value::Verbatim(*b"txt", data)
        }
        Frame3::VerbatimString { data, .. } => Value::Verbatim(*b"mkd", data),
        Frame3::Array { data, .. } => Value::Array(data.into_iter().map(value).collect()),
        Frame3::Set { data, .. } => Value::Set(data.into_iter().map(value).collect()),
        Frame3::Push { data, .. } => Value::Push(data.into_iter().map(value).collect()),
        Frame3::Map { data, .. } => {
            Value::Map(data.into_iter().map(|(key, it)| (value(key), value(it))).collect())
        }
        Frame3::Hello { .. } => Value::Simple(b"HELLO".into()),
        Frame3::ChunkedString(data) => Value::Simple([b"chunk ", &data[..]].concat()),
    }
}

/// The reason why both may differ about `bytes`, or `None`: then one of them is wrong.
///
/// This codec is stricter, except where a server may really send bytes that the other one does not read.
fn reason(bytes: &[u8], ours: &Read<ProtocolError>, theirs: &Read<String>) -> Option<&'static str> {
    let lone = || {
        let text = bytes.windows(2).any(|pair| {
            (pair[0] == b'\r') != (pair[1] == b'\n') || pair[0] == b'\n' && pair[1] == b'\n'
        });
        text || bytes.first() == Some(&b'\n')
    };
    match (ours, theirs) {
        (Err(_), Err(_)) => Some("no RESP, to both"),
        // One detects at once what the other detects with the next bytes.
        (Ok(None), Err(_)) => Some("too short to tell, for ours"),
        (Err(_), Ok(None)) => Some("too short to tell, for theirs"),
        (Err(error), Ok(Some(_))) => match error {
            ProtocolError::UnterminatedBulk => Some("they skip any two bytes after a bulk"),
            ProtocolError::InvalidBulkLength | ProtocolError::InvalidMultibulkLength => {
                Some("they read lengths such as 007 and +7")
            }
            ProtocolError::UnknownType(b'H' | b';' | b'.') => {
                Some("they read HELLO lines and streamed types, which no server sends")
            }
            ProtocolError::MalformedReply(b'_' | b'(' | b'=') => {
                Some("they take any text for null and for a big number, and `txt-` for `txt:`")
            }
            ProtocolError::MalformedReply(_) if lone() => {
                Some("they read lines with a CR or LF in them")
            }
            ProtocolError::TooDeep => Some("they nest without bound"),
            _ => None,
        },
        (Ok(Some((value, taken))), _) => {
            let (bytes, theirs_reads) = (&bytes[..*taken], matches!(theirs, Ok(Some(_))));
            if bytes.windows(3).any(|it| it == b"$-1" || it == b"*-1") {
                Some("they take the nulls of RESP2 for the begin of a stream")
            } else if bytes.contains(&b'|') && !theirs_reads {
                Some("they attach attributes to some types only")
            } else if !theirs_reads && any(value, &is_unhashable) {
                Some("they hash: no aggregate is a key or a member of a set")
            } else if theirs_reads && any(value, &has_twice) {
                Some("they keep any one of two equal keys")
            } else if !theirs_reads && any(value, &is_rare) {
                Some("they read errors as UTF-8, and no format but txt and mkd")
            } else {
                None
            }
        }
        (Ok(None), Ok(_)) => None,
    }
}

/// Whether it is so of the value, or of any within.
fn any(value: &Value, is_so: &dyn Fn(&Value) -> bool) -> bool {
    is_so(value)
        || match value {
            Value::Array(list) | Value::Set(list) | Value::Push(list) => {
                list.iter().any(|it| any(it, is_so))
            }
            Value::Map(pairs) => pairs.iter().any(|(key, it)| any(key, is_so) || any(it, is_so)),
            _ => false,
        }
}

fn is_unhashable(value: &Value) -> bool {
    let aggregate =
        |it: &Value| matches!(it, Value::Array(_) | Value::Set(_) | Value::Push(_) | Value::Map(_));
    match value {
        Value::Set(list) => list.iter().any(aggregate),
        Value::Map(pairs) => pairs.iter().any(|(key, _)| aggregate(key)),
        _ => false,
    }
}

fn has_twice(value: &Value) -> bool {
    let Value::Map(pairs) = value else { return false };
    let keys: BTreeSet<_> = pairs.iter().map(|(key, _)| format!("{key:?}")).collect();
    keys.len() < pairs.len()
}

fn is_rare(value: &Value) -> bool {
    match value {
        Value::Error(text) => std::str::from_utf8(text).is_err(),
        Value::Verbatim(format, _) => !matches!(format, b"txt" | b"mkd"),
        _ => false,
    }
}

/// RELIABILITY 26.
#[test]
fn replies_are_read_as_another_crate_reads_them() {
    let parts: Vec<_> = super::TELLING.chunks(1).collect();
    let (same, reasons) = (Cell::new(0_u64), RefCell::new(BTreeMap::new()));
    check_mutations("resp", super::MUTATIONS, &parts, |bytes| {
        let (ours, theirs) = (decode(bytes), theirs(bytes));
        let normal = ours.clone().map(|it| it.map(|(value, taken)| (unordered(value), taken)));
        if matches!((&normal, &theirs), (Ok(ours), Ok(theirs)) if ours == theirs) {
            return same.set(same.get() + 1);
        }
        let Some(reason) = reason(bytes, &ours, &theirs) else {
            panic!("{}: {ours:?}, but {theirs:?}", bytes.escape_ascii());
        };
        *reasons.borrow_mut().entry(reason).or_insert(0_u64) += 1;
    });
    println!("figure: replies: {} inputs are read alike by redis-protocol; others:", same.get());
    reasons.borrow().iter().for_each(|(reason, count)| println!("figure:   {count}: {reason}"));
    assert!(same.get() > 10_000, "{}", same.get());
}

proptest! {
    // A failure shows the whole value: no file is needed to run it again.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decode_agrees_with_another_decoder(value in values()) {
        let mut bytes = Vec::new();
        write(&value, &mut bytes);
        let taken = bytes.len();
        bytes.extend_from_slice(b"+next\r\n");
        prop_assert_eq!(decode(&bytes), Ok(Some((value.clone(), taken))));
        let theirs = theirs(&bytes);
        if !any(&value, &is_unhashable) && !any(&value, &has_twice) {
            prop_assert_eq!(theirs, Ok(Some((unordered(value), taken))));
        }
    }

    #[test]
    fn commands_are_written_and_read_as_by_another_crate(
        arguments in proptest::collection::vec(proptest::collection::vec(arbitrary::<u8>(), 0..40), 1..20),
    ) {
        let mut bytes = Vec::new();
        let slices: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        encode_command(&slices, &mut bytes);
        let frame = Frame2::Array(arguments.iter().cloned().map(Frame2::BulkString).collect());
        prop_assert_eq!(resp2::decode::decode(&bytes).unwrap(), Some((frame.clone(), bytes.len())));
        let mut theirs = vec![0; frame.encode_len(false)];
        let length = resp2::encode::encode(&mut theirs, &frame, false).unwrap();
        prop_assert_eq!(&theirs[..length], &bytes);
    }
}

/// Any value that servers send, three deep at most.
fn values() -> impl Strategy<Value = Value> {
    let text = || proptest::collection::vec(arbitrary::<u8>(), 0..20);
    let line = || "[a-zA-Z0-9 :$*]{0,20}".prop_map(String::into_bytes);
    let leaf = prop_oneof![
        line().prop_map(Value::Simple),
        line().prop_map(Value::Error),
        text().prop_map(Value::Bulk),
        arbitrary::<i64>().prop_map(Value::Integer),
        arbitrary::<bool>().prop_map(Value::Boolean),
        (-1e9..1e9).prop_map(Value::Double),
        "-?[1-9][0-9]{0,40}".prop_map(Value::BigNumber),
        text().prop_map(|text| Value::Verbatim(*b"txt", text)),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 40, 6, |inner| {
        let list = || proptest::collection::vec(inner.clone(), 0..6);
        let pairs = proptest::collection::vec((inner.clone(), inner.clone()), 0..6);
        prop_oneof![
            list().prop_map(Value::Array),
            list().prop_map(Value::Set),
            list().prop_map(Value::Push),
            pairs.prop_map(Value::Map),
        ]
    })
}

/// Writes RESP3 by the letter of the specification, without the code of either crate.
fn write(value: &Value, out: &mut Vec<u8>) {
    let text = |out: &mut Vec<u8>, kind: char, prefix: &[u8], text: &[u8]| {
        out.extend(format!("{kind}{}\r\n", prefix.len() + text.len()).bytes());
        out.extend([prefix, text, b"\r\n"].concat());
    };
    let list = |out: &mut Vec<u8>, kind: char, list: &[Value]| {
        out.extend(format!("{kind}{}\r\n", list.len()).bytes());
        list.iter().for_each(|it| write(it, out));
    };
    match value {
        Value::Simple(line) => out.extend([b"+", &line[..], b"\r\n"].concat()),
        Value::Error(line) => out.extend([b"-", &line[..], b"\r\n"].concat()),
        Value::Integer(number) => out.extend(format!(":{number}\r\n").bytes()),
        Value::Bulk(bytes) => text(out, '$', b"", bytes),
        Value::Null => out.extend(b"_\r\n"),
        Value::Boolean(value) => out.extend(if *value { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Double(double) => out.extend(format!(",{double}\r\n").bytes()),
        Value::BigNumber(digits) => out.extend(format!("({digits}\r\n").bytes()),
        Value::Verbatim(format, bytes) => {
            text(out, '=', &[&format[..], b":"].concat(), bytes);
        }
        Value::Array(values) => list(out, '*', values),
        Value::Set(values) => list(out, '~', values),
        Value::Push(values) => list(out, '>', values),
        Value::Map(pairs) => {
            out.extend(format!("%{}\r\n", pairs.len()).bytes());
            for (key, value) in pairs {
                write(key, out);
                write(value, out);
            }
        }
    }
}

/// The commands of each input for a server, up to the first that is not an array of bulks.
#[test]
fn commands_are_read_as_another_crate_reads_them() {
    let parts: Vec<_> = super::TELLING.chunks(1).collect();
    let (same, stricter) = (Cell::new(0_u64), RefCell::new(BTreeMap::new()));
    check_mutations("resp", super::MUTATIONS, &parts, |bytes| {
        if bytes.first() != Some(&b'*') {
            return;
        }
        let mut buffer = bytes.to_vec();
        let (mut parser, mut arguments) = (Parser::new(Limits::default()), Arguments::new());
        let mut unread = buffer.as_mut_slice();
        let read = parser.parse(&mut unread, &mut arguments);
        let taken = bytes.len() - unread.len();
        let ours = read.map(|read| read.then(|| arguments.iter().map(|it| it.to_vec()).collect()));
        let theirs = resp2::decode::decode(bytes);
        let same_read = match (&ours, &theirs) {
            (Ok(None), Ok(None)) | (Err(_), Err(_)) => true,
            (Ok(Some(ours)), Ok(Some((frame, length)))) => {
                taken == *length && command(frame).as_ref() == Some(ours)
            }
            _ => false,
        };
        if same_read {
            return same.set(same.get() + 1);
        }
        let reason = match (&ours, &theirs) {
            (Ok(Some(none)), Err(_)) if none.is_empty() => "they read no empty command as `*-5`",
            (Ok(None), Err(_)) | (Err(_), Ok(None)) => "one sees the error with the next bytes",
            (Err(ProtocolError::UnterminatedBulk), Ok(_)) => "they skip any two bytes after a bulk",
            (Err(ProtocolError::ExpectedBulk(_)), Ok(_)) => "they read replies, too",
            (Err(ProtocolError::InvalidBulkLength), Ok(_)) => {
                "they read nulls, and lengths such as 007 and +7"
            }
            (Err(ProtocolError::InvalidMultibulkLength), Ok(_)) => {
                "they read counts such as 007 and +7"
            }
            _ => panic!("{}: {ours:?}, but {theirs:?}", bytes.escape_ascii()),
        };
        *stricter.borrow_mut().entry(reason).or_insert(0_u64) += 1;
    });
    println!("figure: commands: {} inputs are read alike by redis-protocol; others:", same.get());
    stricter.borrow().iter().for_each(|(reason, count)| println!("figure:   {count}: {reason}"));
    assert!(same.get() > 1_000, "{}", same.get());
}

/// The arguments of an array of bulks; a null array has none.
fn command(frame: &Frame2) -> Option<Vec<Vec<u8>>> {
    let bulk = |frame: &Frame2| match frame {
        Frame2::BulkString(bytes) => Some(bytes.clone()),
        _ => None,
    };
    match frame {
        Frame2::Array(frames) => frames.iter().map(bulk).collect(),
        Frame2::Null => Some(Vec::new()),
        _ => None,
    }
}
