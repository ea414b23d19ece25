//! Lines of text whose format is a string, such as nginx's `log_format` or Apache's `LogFormat`.

use std::net::Ipv6Addr;

use memchr::{memchr, memmem, memrchr};

use super::{LogError, LogFault};

/// Maximum number of fields that are read.
pub(super) const MAX_FIELDS: usize = 12;

/// Formats by name, those that are detected first.
pub(super) const NAMED: [(&str, &str); 6] = [
    ("combined", r#"%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i""#),
    ("common", r#"%h %l %u %t "%r" %>s %b"#),
    (
        "envoy",
        r#"[$start_time] "$request" $status $response_flags $bytes_received $bytes_sent $duration $upstream_service_time "$http_x_forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream_host""#,
    ),
    (
        "istio",
        r#"[$start_time] "$request" $status $response_flags $response_code_details $connection_termination_details "$upstream_transport_failure_reason" $bytes_received $bytes_sent $duration $upstream_service_time "$http_x_forwarded_for" "$http_user_agent" "$request_id" "$host" "$upstream_host""#,
    ),
    (
        "alb",
        r#"$type $time $elb $remote_addr $target $request_processing_time $target_processing_time $response_processing_time $status $target_status_code $received_bytes $sent_bytes "$request" "$http_user_agent""#,
    ),
    ("vhost_combined", r#"%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i""#),
];
/// How many of them are detected.
pub(super) const DETECTED: usize = 5;

/// Names and literals in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// The text that every line begins with.
    start: Vec<u8>,
    variables: Vec<Variable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Variable {
    name: String,
    /// Its index among the values to read.
    slot: Option<usize>,
    /// The text after it; empty at the end of the line.
    end: Vec<u8>,
    /// Whether a value to read is found by counting the spaces from here on: an empty value may be padding then.
    is_counted: bool,
    /// Whether it is one of the columns before a quote, none of which can begin with it.
    is_before_quote: bool,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, LogError> {
        let named = NAMED.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
        // As a configuration file of Apache has it, between quotes.
        let format = named.unwrap_or(text).replace("\\\"", "\"").replace("\\t", "\t");
        let pieces = match &*format {
            format if format.contains('$') => nginx(format),
            format if format.contains('%') => apache(format),
            _ => None,
        };
        let pieces = pieces.ok_or_else(|| LogError::Format(text.to_owned()))?;
        let mut pattern = Self { start: Vec::new(), variables: Vec::new() };
        for piece in pieces {
            match (piece, pattern.variables.last_mut()) {
                (Piece::Text(text), None) => pattern.start.extend(text.bytes()),
                (Piece::Text(text), Some(variable)) => variable.end.extend(text.bytes()),
                (Piece::Variable(_), Some(variable)) if variable.end.is_empty() => {
                    // The end of the first one cannot be found.
                    return Err(LogError::Format(text.to_owned()));
                }
                (Piece::Variable(name), _) => {
                    pattern.variables.push(Variable { name, ..Variable::default() });
                }
            }
        }
        Ok(pattern)
    }

    /// Reads `name` into `slot`; false if no line has it.
    pub(super) fn read_into(&mut self, name: &str, slot: usize) -> bool {
        let found = self.variables.iter_mut().find(|it| it.slot.is_none() && it.name == name);
        found.map(|variable| variable.slot = Some(slot)).is_some()
    }

    /// Removes everything after the last variable to read, but not the columns that are found together with it.
    pub(super) fn cut(&mut self) {
        let (mut is_counted, mut is_before_quote) = (false, false);
        for variable in self.variables.iter_mut().rev() {
            let is_column = variable.end.iter().all(|byte| *byte == b' ');
            if !is_column {
                is_counted = false;
                is_before_quote = variable.end.starts_with(b" \"");
            }
            is_counted |= variable.slot.is_some();
            variable.is_counted = is_counted && is_column && !variable.end.is_empty();
            variable.is_before_quote = is_before_quote;
        }
        let last = self.variables.iter().rposition(|variable| variable.slot.is_some());
        self.variables.truncate(last.map_or(0, |last| last + 1 + self.columns_after(last)));
    }

    /// Number of columns after the variable `last`, if it is one of several with the same separator: where one of
    /// them is missing, the line has too few.
    fn columns_after(&self, last: usize) -> usize {
        let is_column = |variable: &&Variable| variable.end == self.variables[last].end;
        let after = self.variables[last + 1..].iter().take_while(is_column).count();
        let before = last.checked_sub(1).map(|before| &self.variables[before]);
        let is_one_of_several = after > 0 || before.as_ref().is_some_and(is_column);
        if is_one_of_several { after + 1 } else { 0 }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|variable| variable.name.as_str()).filter(|name| !name.is_empty())
    }

    /// Puts the values of `line` into their slots.
    pub(super) fn read<'a>(
        &self,
        line: &'a [u8],
        values: &mut [&'a [u8]; MAX_FIELDS],
    ) -> Result<(), LogFault> {
        let missing =
            |name: &str, end: &[u8]| LogFault::Missing { after: name.to_owned(), text: end.into() };
        let mut rest = line.strip_prefix(&*self.start).ok_or_else(|| missing("", &self.start))?;
        for variable in &self.variables {
            let end = match &*variable.end {
                [] => Some(rest.len()),
                [b' ', ..] if variable.is_list() => list_end(rest, &variable.end),
                [b'"', ..] => quoted_end(rest, &variable.end),
                b":" if variable.name == "remote_addr" => address_end(rest),
                [byte] => memchr(*byte, rest),
                end => find(rest, end),
            };
            let end = end.ok_or_else(|| missing(&variable.name, &variable.end))?;
            let value = &rest[..end];
            if variable.is_counted && value.is_empty() {
                return Err(LogFault::Empty(variable.name.clone()));
            }
            if variable.is_before_quote && value.starts_with(b"\"") {
                return Err(missing(&variable.name, &variable.end));
            }
            if let Some(slot) = variable.slot {
                values[slot] = value;
            }
            if variable.name == "remote_user" && has_prefix_of_line(value) {
                return Err(LogFault::Misplaced { name: "user", value: value.into() });
            }
            rest = &rest[end + variable.end.len()..];
        }
        Ok(())
    }
}

impl Variable {
    /// Whether its value may be a list with spaces: of addresses of proxies, or of several upstream servers.
    fn is_list(&self) -> bool {
        let is_of = |start: &&str| self.name.starts_with(*start);
        ["http_", "upstream_", "remote_addr", "proxy_add_x_forwarded_for"].iter().any(is_of)
    }
}

/// Whether the value of `%u` has the ` - ` that is before it: the first word of the line was not the client then.
fn has_prefix_of_line(user: &[u8]) -> bool {
    user.starts_with(b"- ") || memmem::find(user, b" - ").is_some()
}

/// Finds a literal that begins with a space, but not inside a list: behind a comma, or beside a colon between spaces.
fn list_end(text: &[u8], literal: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + find(&text[from..], literal)?;
        let (before, after) = (&text[..at], &text[at..]);
        if !before.ends_with(b",") && !before.ends_with(b" :") && !after.starts_with(b" : ") {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Finds the colon between an address and its port, which is not one of those in an address of IPv6.
fn address_end(text: &[u8]) -> Option<usize> {
    if text.starts_with(b"[") {
        return memmem::find(text, b"]:").map(|at| at + 1);
    }
    let is_inside = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
    let length = text.iter().take(MAX_IPV6_PORT).take_while(|byte| is_inside(byte)).count();
    let last = memrchr(b':', &text[..length]);
    let is_ipv6 = |at: &usize| {
        str::from_utf8(&text[..*at]).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok())
    };
    last.filter(is_ipv6).or_else(|| memchr(b':', text))
}

/// Bytes of the longest address of IPv6, a colon and a port.
const MAX_IPV6_PORT: usize = 45 + 1 + 5;

/// Finds a literal; short ones fastest by their first byte.
fn find(text: &[u8], literal: &[u8]) -> Option<usize> {
    if literal.len() > 4 {
        return memmem::find(text, literal);
    }
    let mut from = 0;
    loop {
        let at = from + memchr(literal[0], &text[from..])?;
        if text[at..].starts_with(literal) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Finds a literal that begins with a quote, but not with one after a backslash.
fn quoted_end(text: &[u8], literal: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr(b'"', &text[from..])?;
        let backslashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 0 {
            return text[at..].starts_with(literal).then_some(at);
        }
        from = at + 1;
    }
}

#[derive(Debug)]
enum Piece {
    Text(String),
    Variable(String),
}

/// `$remote_addr - $remote_user [$time_local]`, `${name}` too.
fn nginx(text: &str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut parts = text.split('$');
    pieces.extend(parts.next().map(|text| Piece::Text(text.to_owned())));
    for part in parts {
        let (name, behind) = match part.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => {
                let word = |it: char| it.is_ascii_alphanumeric() || it == '_';
                part.split_at(part.find(|it| !word(it)).unwrap_or(part.len()))
            }
        };
        if name.is_empty() {
            return None;
        }
        pieces.push(Piece::Variable(name.to_owned()));
        if !behind.is_empty() {
            pieces.push(Piece::Text(behind.to_owned()));
        }
    }
    Some(pieces)
}

/// `%h %l %u %t "%r" %>s %b "%{Referer}i"`, with nginx's names where nginx has one.
fn apache(text: &str) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut parts = text.split('%');
    let mut literal = parts.next().unwrap_or("").to_owned();
    while let Some(part) = parts.next() {
        if part.is_empty() {
            // `%%` is a per cent sign; the rest is text.
            literal.push('%');
            literal += parts.next()?;
            continue;
        }
        let part = part.trim_start_matches(['<', '>']);
        let (argument, rest) = match part.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => ("", part),
        };
        let mut letters = rest.chars();
        let name = match letters.next()? {
            'h' | 'a' => "remote_addr".to_owned(),
            'u' => "remote_user".to_owned(),
            't' if argument.is_empty() => "time_local".to_owned(),
            // Other arguments are parts of a time, whole seconds, or the end of the request.
            't' => match argument.strip_prefix("begin:").unwrap_or(argument) {
                "msec" | "usec" => "msec".to_owned(),
                _ => "time".to_owned(),
            },
            'r' => "request".to_owned(),
            's' => "status".to_owned(),
            'b' | 'B' | 'O' => "body_bytes_sent".to_owned(),
            'm' => "request_method".to_owned(),
            'U' => "uri".to_owned(),
            'v' | 'V' => "host".to_owned(),
            'i' => format!("http_{}", argument.to_ascii_lowercase().replace('-', "_")),
            letter => format!("%{argument}{letter}"),
        };
        // The brackets are not in the format, but on the line.
        let (open, close) = if name == "time_local" { ("[", "]") } else { ("", "") };
        literal += open;
        if !literal.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Variable(name));
        literal = close.to_owned() + letters.as_str();
    }
    if !literal.is_empty() {
        pieces.push(Piece::Text(literal));
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: &str, names: &[&str], line: &str) -> Result<Vec<String>, String> {
        let mut pattern = Pattern::new(format).map_err(|error| error.to_string())?;
        for (slot, name) in names.iter().enumerate() {
            assert!(pattern.read_into(name, slot), "{name}");
        }
        pattern.cut();
        let mut values = [&b""[..]; MAX_FIELDS];
        pattern.read(line.as_bytes(), &mut values).map_err(|fault| fault.to_string())?;
        let text = |value: &&[u8]| String::from_utf8_lossy(value).into_owned();
        Ok(values[..names.len()].iter().map(text).collect())
    }

    const LINE: &str = "10.0.0.1 - a b [10/Oct/2000:13:55:36 -0700] \"GET /\\\"x HTTP/1.0\" 200 23 \
                        \"-\" \"agent [1]\"";

    #[test]
    fn format_fields_end_at_the_text_after_them() {
        let names = ["remote_addr", "remote_user", "time_local", "request", "http_user_agent"];
        let values =
            ["10.0.0.1", "a b", "10/Oct/2000:13:55:36 -0700", "GET /\\\"x HTTP/1.0", "agent [1]"];
        assert_eq!(read("combined", &names, LINE).unwrap(), values);
        let nginx = "$remote_addr - $remote_user [$time_local] \"$request\" $status ${bytes} \
                     \"$http_referer\" \"$http_user_agent\"";
        assert_eq!(read(nginx, &names, LINE).unwrap(), values);
        let only = read("%h %l", &["remote_addr"], "::1 -").unwrap();
        assert_eq!(only, ["::1"]);
        assert_eq!(read("%% %h", &["remote_addr"], "% x").unwrap(), ["x"]);
    }

    #[test]
    fn format_address_ends_before_its_port() {
        for (address, port) in [
            ("203.0.113.5", "33317"),
            ("2001:db8::1", "33317"),
            ("2001:db8::1", "80"),
            ("2001:db8:1:2:3:4:5:6", "2817"),
            ("::ffff:203.0.113.5", "80"),
            ("[2001:db8::1]", "80"),
            ("client.example", "80"),
        ] {
            let line = format!("haproxy[1]: {address}:{port} [x] a");
            let format = "$prefix]: $remote_addr:$client_port [$start_time]";
            let names = ["remote_addr", "client_port", "start_time"];
            assert_eq!(read(format, &names, &line).unwrap(), [address, port, "x"], "{line}");
            assert_eq!(read(format, &names[..1], &line).unwrap(), [address], "{line}");
        }
    }

    #[test]
    fn format_list_ends_behind_its_last_entry() {
        let lists = |format: &str, name, line: &str| read(format, &[name], line).unwrap();
        for line in ["1.1.1.1, 2.2.2.2 - -", "1.1.1.1 - -"] {
            let (list, _) = line.split_once(" - ").unwrap();
            assert_eq!(lists("%{X-Forwarded-For}i %l %u", "http_x_forwarded_for", line), [list]);
        }
        let upstreams = "0.1, 0.2 : 0.3 x";
        assert_eq!(
            lists("$upstream_response_time $a", "upstream_response_time", upstreams),
            ["0.1, 0.2 : 0.3"]
        );
        assert_eq!(lists("$uri $a", "uri", "/a, x"), ["/a,"]);
    }

    #[test]
    fn format_text_before_the_client_is_an_error() {
        for prefix in ["shop.example", "shop.example:80", "Oct 10 13:55:36 host nginx:", "web-1  |"]
        {
            for user in ["-", "bob"] {
                let line = format!("{prefix} 10.0.0.1 - {user} [x] \"GET\"");
                let fault = read("common", &["remote_addr", "time_local"], &line).unwrap_err();
                assert!(
                    fault.ends_with("expected the client at the beginning of the line"),
                    "{line}: {fault}"
                );
            }
        }
    }

    #[test]
    fn format_quotes_with_backslashes_are_those_of_a_configuration_file() {
        let format = r#"%h %l %u %t \"%r\" %>s"#;
        assert_eq!(read(format, &["request"], LINE).unwrap(), ["GET /\\\"x HTTP/1.0"]);
        for format in [r"%h\t%m", r"$remote_addr\t$request_method"] {
            assert_eq!(read(format, &["request_method"], "a\tGET").unwrap(), ["GET"]);
        }
    }

    #[test]
    fn format_column_that_is_missing_shifts_no_other() {
        let columns = "$msec $elapsed $remote_addr $server $code";
        let address = |format: &str, line: &str| {
            read(format, &["remote_addr"], line).map(|values| values[0].clone())
        };
        let empty = |name: &str| {
            Err(format!("missing {name} before a space; if the space is padding, use `tr -s ' '`"))
        };
        let missing = |end: &str, name: &str| Err(format!("missing `{end}` after {name}"));
        let client = || Ok("10.0.0.1".to_owned());
        for (line, expected) in [
            ("7 5 10.0.0.1 10.0.0.2 200", client()),
            ("7 5 10.0.0.1 10.0.0.2 200 more", client()),
            ("7 5 10.0.0.1   10.0.0.2 200", client()),
            // A value that is missing, and padding.
            ("7  10.0.0.1 10.0.0.2 200", empty("elapsed")),
            ("7  5 10.0.0.1 10.0.0.2 200", empty("elapsed")),
            (" 7 5 10.0.0.1 10.0.0.2 200", empty("msec")),
            ("7 5  10.0.0.2 200", empty("remote_addr")),
            // A column that is missing with its separator.
            ("7 10.0.0.1 10.0.0.2 200", missing(" ", "server")),
        ] {
            assert_eq!(address(columns, line), expected, "{line}");
        }
        // Other separators are no padding.
        let piped = "$msec|$elapsed|$remote_addr|$server|$code";
        assert_eq!(address(piped, "7||10.0.0.1||200"), client());
        assert_eq!(address(piped, "7|10.0.0.1|10.0.0.2|200"), missing("|", "server"));
        // A quote shows where the columns end.
        let quoted = "$msec $elapsed $remote_addr $server \"$request\" $code";
        assert_eq!(address(quoted, "7 5 10.0.0.1 10.0.0.2 \"GET /a\" 200"), client());
        for line in ["7 10.0.0.1 10.0.0.2 \"GET /a\" \"200", "7 10.0.0.1 \"GET /a b\" \"200"] {
            assert!(address(quoted, line).unwrap_err().starts_with("missing ` "), "{line}");
        }
        // An empty value between other texts is in its place.
        assert_eq!(read("common", &["remote_user"], "10.0.0.1 -  [x] \"GET\"").unwrap(), [""]);
        assert_eq!(address("[$time] $a $b \"$remote_addr\"", "[7]  2 \"10.0.0.1\""), client());
    }

    #[test]
    fn format_missing_field_is_an_error() {
        let actual = |format, name, line| read(format, &[name], line).unwrap_err();
        assert_eq!(
            actual("combined", "request", "10.0.0.1 - - [x] GET"),
            "missing `] \"` after time_local"
        );
        assert_eq!(actual("> $a", "a", "< 1"), "expected `> ` at the beginning");
        assert!(Pattern::new("$a$b").is_err());
        assert!(Pattern::new("plain").is_err());
        assert!(Pattern::new("$ a").is_err());
        assert!(Pattern::new("%{a").is_err());
    }
}
