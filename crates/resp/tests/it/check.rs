//! Checks for any bytes that are read as RESP. The fuzz target `resp` and tests run them.

use sluicegate_resp::{
    Arguments, Limits, Parser, ProtocolError, Value, Version, Writer, decode, encode_command,
};

/// Reads `data` as requests and as replies, whole and in pieces, and writes the result again.
///
/// # Panics
/// If two ways of reading disagree, or the written bytes are read as something else.
pub(crate) fn check(data: &[u8]) {
    let tight = Limits { max_arguments: 3, max_bulk: 9, max_inline: 20, authenticated: true };
    for limits in [Limits::default(), Limits::UNAUTHENTICATED, tight] {
        let whole = requests(data, [data.len()], limits);
        assert_eq!(whole, requests(data, pieces(data), limits), "requests depend on the cut");
        for command in whole.0.iter().filter(|command| !command.is_empty()) {
            let mut bytes = Vec::new();
            let arguments: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            encode_command(&arguments, &mut bytes);
            // A word of a line may be longer than a bulk: only the line is bounded there.
            let limits = Limits { max_bulk: limits.max_bulk.max(limits.max_inline), ..limits };
            let again = requests(&bytes, [bytes.len()], limits);
            assert_eq!(again, (vec![command.clone()], Ok(bytes.len())), "a command changed");
        }
    }

    let whole = replies(data, [data.len()]);
    // As text, because `nan` is not equal to itself.
    let text = format!("{whole:?}");
    assert_eq!(text, format!("{:?}", replies(data, pieces(data))), "replies depend on the cut");
    for value in &whole.0 {
        let mut bytes = Vec::new();
        encode(value, &mut bytes);
        let again = replies(&bytes, [bytes.len()]);
        let mut twice = Vec::new();
        again.0.iter().for_each(|value| encode(value, &mut twice));
        assert_eq!((again.0.len(), again.1), (1, Ok(bytes.len())), "a reply lost its framing");
        assert_eq!(bytes.escape_ascii().to_string(), twice.escape_ascii().to_string());
    }
}

/// All commands in `data` as it arrives in pieces that end at `ends`, then the number of consumed bytes, or the
/// error.
pub(crate) fn requests(
    data: &[u8],
    ends: impl IntoIterator<Item = usize>,
    limits: Limits,
) -> (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>) {
    let (mut parser, mut commands, mut buffer) = (Parser::new(limits), Vec::new(), Vec::new());
    let (mut received, mut consumed) = (0, 0);
    for end in ends {
        buffer.extend_from_slice(&data[received..end]);
        received = end;
        let mut arguments = Arguments::new();
        let mut unread = buffer.as_mut_slice();
        loop {
            match parser.parse(&mut unread, &mut arguments) {
                Ok(true) => commands.push(arguments.iter().map(|text| text.to_vec()).collect()),
                Ok(false) => break,
                Err(error) => return (commands, Err(error)),
            }
        }
        let left = unread.len();
        drop(arguments);
        let taken = buffer.len() - left;
        buffer.drain(..taken);
        consumed += taken;
    }
    (commands, Ok(consumed))
}

/// The same for replies.
pub(crate) fn replies(
    data: &[u8],
    ends: impl IntoIterator<Item = usize>,
) -> (Vec<Value>, Result<usize, ProtocolError>) {
    let (mut values, mut consumed) = (Vec::new(), 0);
    for end in ends {
        loop {
            match decode(&data[consumed..end]) {
                Ok(Some((value, taken))) => {
                    values.push(value);
                    consumed += taken;
                }
                Ok(None) => break,
                Err(error) => return (values, Err(error)),
            }
        }
    }
    (values, Ok(consumed))
}

/// Appends `value` as RESP3.
pub(crate) fn encode(value: &Value, out: &mut Vec<u8>) {
    let elements = |values: &[Value], out: &mut Vec<u8>| {
        values.iter().for_each(|value| encode(value, out));
    };
    let mut writer = Writer::new(out, Version::Resp3);
    match value {
        Value::Simple(text) => writer.simple(text),
        Value::Error(text) => writer.error(text),
        Value::Integer(value) => writer.integer(*value),
        Value::Bulk(text) => writer.bulk(text),
        Value::Null => writer.null(),
        Value::Boolean(value) => out.extend_from_slice(if *value { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Double(value) => out.extend(format!(",{value:?}\r\n").to_lowercase().bytes()),
        Value::BigNumber(digits) => out.extend(format!("({digits}\r\n").bytes()),
        Value::Verbatim(format, text) => writer.verbatim(format, text),
        Value::Array(values) => {
            writer.array(values.len());
            elements(values, out);
        }
        Value::Set(values) => {
            writer.set(values.len());
            elements(values, out);
        }
        Value::Push(values) => {
            out.extend(format!(">{}\r\n", values.len()).bytes());
            elements(values, out);
        }
        Value::Map(pairs) => {
            writer.map(pairs.len());
            for (key, value) in pairs {
                encode(key, out);
                encode(value, out);
            }
        }
    }
}

/// Where to cut `data`: at every byte if it is short, else in steps that its own bytes choose, so
/// that the fuzzer chooses them.
fn pieces(data: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut end = 0;
    while end < data.len() {
        end += if data.len() <= 128 { 1 } else { 1 + usize::from(data[end]) };
        end = end.min(data.len());
        ends.push(end);
    }
    ends
}
