use std::iter;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::check::requests;
use crate::encode_command;

/// The result of reading `input`, in pieces of every size: commands as `name argument | name`, escaped, then the rest
/// or the error.
fn check(limits: Limits, input: &[u8], expected: &str) {
    let mut sizes = vec![1, 2, 3, 7, input.len().max(1)];
    sizes.dedup();
    for size in sizes {
        let ends = (size..input.len()).step_by(size).chain([input.len()]);
        let (commands, end) = requests(input, ends, limits);
        let mut parts: Vec<String> = commands.iter().map(|command| show(command)).collect();
        match end {
            Ok(consumed) if consumed == input.len() => {}
            Ok(consumed) => parts.push(format!("+{}", input.len() - consumed)),
            Err(error) => parts.push(error.to_string().replace("Protocol error: ", "! ")),
        }
        assert_eq!(parts.join(" | "), expected, "{} by {size}", input.escape_ascii());
    }
}

fn show(command: &[Vec<u8>]) -> String {
    let words = command.iter().map(|word| format!("<{}>", word.escape_ascii()));
    words.collect::<Vec<_>>().join(" ")
}

fn known(input: impl AsRef<[u8]>, expected: &str) {
    check(Limits::default(), input.as_ref(), expected);
}

fn stranger(input: impl AsRef<[u8]>, expected: &str) {
    check(Limits::UNAUTHENTICATED, input.as_ref(), expected);
}

/// A command of `count` arguments.
fn array(count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_command(&vec![b"x".as_slice(); count], &mut bytes);
    bytes
}

/// A command of one argument of `length` bytes.
fn bulk(length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_command(&[&vec![b'x'; length]], &mut bytes);
    bytes
}

#[test]
fn parse_array_of_bulks_returns_its_arguments() {
    known("", "");
    known("*1\r\n$4\r\nPING\r\n", "<PING>");
    known("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", "<ECHO> <>");
    known("*2\r\n$4\r\nECHO\r\n$3\r\n\r\n\0\r\n", "<ECHO> <\\r\\n\\x00>");
    known(b"*1\r\n$2\r\n\xff\x80\r\n", "<\\xff\\x80>");
    known("*1\r\n$12\r\nCL.THROTTLE!\r\n", "<CL.THROTTLE!>");
    known("*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1", "<PING> | <GET> <k> | +2");
}

#[test]
fn parse_empty_command_is_consumed() {
    known("*0\r\n*-1\r\n*-7\r\n\r\n\n  \r\n*1\r\n$1\r\na\r\n", " |  |  |  |  |  | <a>");
}

#[test]
fn parse_inline_command_returns_its_words() {
    known("PING\r\n", "<PING>");
    known("PING\n", "<PING>");
    known("  GET\t k  \r\n", "<GET> <k>");
    known("CONFIG GET save\r\n*1\r\n$1\r\na\r\nPING\r\n", "<CONFIG> <GET> <save> | <a> | <PING>");
    known("PING", "+4");
    known(b"\xff\0\n", "<\\xff\\x00>");
}

#[test]
fn parse_inline_quotes_and_escapes_are_resolved() {
    known(r#"SET "a b" 'c d'"#.to_owned() + "\n", "<SET> <a b> <c d>");
    known(r#"A "" '' b"#.to_owned() + "\n", "<A> <> <> <b>");
    known(r#""\n\r\t\b\a""#.to_owned() + "\n", r"<\n\r\t\x08\x07>");
    known(r#""\x41\xfF\x4g\q\\\"" z"#.to_owned() + "\n", r#"<A\xffx4gq\\\"> <z>"#);
    known(r#"'\n\x41 \' "' z"#.to_owned() + "\n", r#"<\\n\\x41 \' \"> <z>"#);
    known("key\" with\"\n", "<key with>");
    known("a\\n'b'\n", "<a\\\\nb>");
    for open in ["\"a", "'a", "'a\"", "\"a'", "\"a\\\"", "'a\\'", "\"a\"b", "'a'b", "\"a\\", "x \""]
    {
        known(format!("{open}\n"), "! unbalanced quotes in request");
        known(format!("{open}\r\n"), "! unbalanced quotes in request");
    }
}

#[test]
fn parse_malformed_command_returns_the_error_of_redis() {
    for count in ["", "x", "+1", " 1", "1 ", "01", "-0", "99999999999999999999", "1\rx"] {
        known(format!("*{count}\r\n"), "! invalid multibulk length");
        known(format!("*1\r\n${count}\r\n"), "! invalid bulk length");
    }
    known("*1\r\n$-1\r\n", "! invalid bulk length");
    known("*2\r\n$1\r\na\r\nx", "! expected '$', got 'x'");
    known("*1\r\n\r\n", "! expected '$', got '\\r'");
    known(b"*1\r\n\xff", "! expected '$', got '\\xff'");
    known("*1\r\n$1\r\nabc\r\n", "! expected CRLF after a bulk");
    known("*1\r\n$1\r\na\rb", "! expected CRLF after a bulk");
    known("*1\r\n$1\r\na\n\n", "! expected CRLF after a bulk");
    known(format!("*{}", "1".repeat(40)), "! too big mbulk count string");
    known(format!("*1\r\n${}", "1".repeat(40)), "! too big bulk count string");
    known("*1\r\n$1\r\na\r\n*x\r\n", "<a> | ! invalid multibulk length");
}

#[test]
fn parse_command_above_a_limit_is_an_error() {
    let whole = |count: usize| vec!["<x>"; count].join(" ");
    for limits in [Limits::default(), Limits::UNAUTHENTICATED] {
        let Limits { max_arguments, max_bulk, max_inline, authenticated } = limits;
        let who = if authenticated { "invalid" } else { "unauthenticated" };

        check(limits, &array(max_arguments - 1), &whole(max_arguments - 1));
        check(limits, &array(max_arguments), &whole(max_arguments));
        check(limits, &array(max_arguments + 1), &format!("! {who} multibulk length"));

        check(limits, &bulk(max_bulk - 1), &format!("<{}>", "x".repeat(max_bulk - 1)));
        check(limits, &bulk(max_bulk), &format!("<{}>", "x".repeat(max_bulk)));
        check(limits, &bulk(max_bulk + 1), &format!("! {who} bulk length"));

        let line = |length: usize| "x".repeat(length) + "\n";
        check(
            limits,
            line(max_inline - 1).as_bytes(),
            &format!("<{}>", "x".repeat(max_inline - 1)),
        );
        check(limits, line(max_inline).as_bytes(), &format!("<{}>", "x".repeat(max_inline)));
        check(limits, line(max_inline + 1).as_bytes(), "! too big inline request");
        check(limits, "x".repeat(max_inline).as_bytes(), &format!("+{max_inline}"));
        check(limits, "x".repeat(max_inline + 1).as_bytes(), "! too big inline request");

        let words = |count: usize| "x ".repeat(count) + "\n";
        check(limits, words(max_arguments).as_bytes(), &whole(max_arguments));
        check(limits, words(max_arguments + 1).as_bytes(), "! too big inline request");
    }
    stranger("*11\r\n", "! unauthenticated multibulk length");
    stranger("*x\r\n", "! invalid multibulk length");
    stranger("*1\r\n$16385\r\n", "! unauthenticated bulk length");
    stranger("*1\r\n$-1\r\n", "! invalid bulk length");
}

#[test]
fn parse_declared_size_allocates_nothing() {
    known("*1000000000\r\n", "! invalid multibulk length");
    known("*1\r\n$536870912\r\n", "! invalid bulk length");

    // Nor where the limits would allow them.
    let all = usize::MAX;
    let limits = Limits { max_arguments: all, max_bulk: all, ..Limits::default() };
    let mut parser = Parser::new(limits);
    let mut bytes = b"*9223372036854775807\r\n$1\r\na\r\n$9223372036854775807\r\n".to_vec();
    let mut arguments = Arguments::new();
    assert_eq!(parser.parse(&mut bytes.as_mut_slice(), &mut arguments), Ok(false));
    assert!(parser.spans.capacity() <= 8);
    assert!(!arguments.spilled());
}

#[test]
fn parse_unfinished_command_is_not_read_again() {
    let mut parser = Parser::new(Limits::default());
    let mut bytes = array(1000);
    let whole = bytes.len();
    let start = &mut bytes[..whole - 1];
    assert_eq!(parser.parse(&mut &mut *start, &mut Arguments::new()), Ok(false));
    assert_eq!((parser.missing, whole - parser.position), (1, "$1\r\nx\r\n".len()));
    // The bytes read so far are not read again: they may even change.
    bytes[7..whole - 7].fill(b'?');
    let mut arguments = Arguments::new();
    assert_eq!(parser.parse(&mut bytes.as_mut_slice(), &mut arguments), Ok(true));
    assert_eq!(arguments.len(), 1000);
}

#[test]
fn parse_pipeline_returns_one_command_at_a_time() {
    let mut bytes = b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\nECHO 'b c'\r\n*2\r\n$4\r\nEC".to_vec();
    let mut parser = Parser::new(Limits::UNAUTHENTICATED);
    let mut unread = bytes.as_mut_slice();
    let mut arguments = Arguments::new();
    // Slices outlive the next call, so a batch of commands can be decided together.
    let mut texts = Vec::new();
    while parser.parse(&mut unread, &mut arguments).unwrap() {
        parser.set_limits(Limits::default());
        texts.push(arguments[1]);
    }
    assert!(arguments.is_empty());
    assert_eq!(texts, [b"a".as_slice(), b"b c"]);
    assert_eq!(unread, b"*2\r\n$4\r\nEC");
}

#[test]
fn parse_after_an_error_returns_nothing_of_the_bad_command() {
    for bad in ["long-word w 'x\n", "*2\r\n$1\r\na\r\nx"] {
        for next in ["*0\r\n", "*1\r\n$1\r\nb\r\n", "bbbbbbbbbbbbbbbbbbbb\n"] {
            let (mut bad, mut next) = (bad.to_owned().into_bytes(), next.to_owned().into_bytes());
            let mut parser = Parser::default();
            parser.parse(&mut bad.as_mut_slice(), &mut Arguments::new()).unwrap_err();
            let mut arguments = Arguments::new();
            // Framing is lost, therefore any result is valid except for parts of `bad`.
            let _ = parser.parse(&mut next.as_mut_slice(), &mut arguments);
            assert!(arguments.len() <= 1, "{arguments:?}");
        }
    }
}

/// A line that [`Parser`] should read as `words`: the naive inverse of splitting.
fn quote(words: &[Vec<u8>], single: bool) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        if single && !word.iter().any(|byte| b"\\\n".contains(byte)) {
            let text = word
                .iter()
                .flat_map(|&byte| iter::repeat_n(b'\\', usize::from(byte == b'\'')).chain([byte]));
            line.extend(iter::once(b'\'').chain(text).chain(*b"' "));
        } else {
            let text = word.iter().flat_map(|byte| format!("\\x{byte:02x}").into_bytes());
            line.extend(iter::once(b'"').chain(text).chain(*b"\" "));
        }
    }
    line.push(b'\n');
    line
}

fn commands() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    vec(vec(vec(any::<u8>(), 0..20), 1..6), 0..5)
}

proptest! {
    #[test]
    fn parse_encoded_commands_at_any_cut_returns_them(commands in commands(), form in 0..3) {
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for command in &commands {
            match form {
                0 => {
                    let arguments: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
                    encode_command(&arguments, &mut bytes);
                }
                form => bytes.extend(quote(command, form == 1)),
            }
            ends.push(bytes.len());
        }
        for cut in 0..=bytes.len() {
            let complete = ends.iter().filter(|&&end| 0 < end && end <= cut).count();
            let (read, end) = requests(&bytes[..cut], [cut], Limits::default());
            prop_assert_eq!((&read[..], end), (&commands[..complete], Ok(ends[complete])));
            let (read, end) = requests(&bytes, [cut, bytes.len()], Limits::default());
            prop_assert_eq!((&read, end), (&commands, Ok(bytes.len())));
        }
    }

    #[test]
    fn parse_any_bytes_in_any_pieces_returns_the_same(
        bytes in vec(prop_oneof![3 => prop::sample::select(b"*$01259-\r\n\"'\\x ".to_vec()), 1 => any::<u8>()], 0..80),
    ) {
        crate::check::check(&bytes);
    }
}
