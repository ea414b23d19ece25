//! Reads the time, the duration and the key of a line, by a format string or a directive of nginx or Apache that has one; also
//! inside the lines of a container's log.

use std::borrow::Cow;

use sluicegate_core::Timestamp;

use super::{
    duration::{self, Unit},
    error::{LogError, LogFault},
    fields::{Field, KeyTemplate, NAMES, Part, TemplatePart, unescaped},
    format::{DETECTED, MAX_FIELDS, NAMED, Pattern},
    json, time,
    w3c::Columns,
};

/// Format of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat {
    envelope: Envelope,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Text(Pattern),
    Json,
    W3c(Columns),
}

impl From<Kind> for LogFormat {
    fn from(kind: Kind) -> Self {
        Self { envelope: Envelope::None, kind }
    }
}

impl std::str::FromStr for LogFormat {
    type Err = LogError;

    /// A name of a format, or a format string of nginx (with `$`) or Apache (with `%`), also inside of its directive.
    fn from_str(text: &str) -> Result<Self, LogError> {
        let format = directive_format(text).ok_or_else(|| LogError::Format(text.to_owned()))?;
        Ok(Self::from(match &*format {
            "json" | "traefik" => Kind::Json,
            "w3c" => Kind::W3c(Columns::default()),
            format => Kind::Text(Pattern::new(format)?),
        }))
    }
}

impl LogFormat {
    /// The format of the first line that is a request in a known one: a log may begin with a broken line, or with one
    /// that is not a request. Without such a line, a log of JSON objects is `json`.
    #[must_use]
    pub fn detect<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut objects = None;
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            for envelope in Envelope::ALL {
                let Ok(inner) = envelope.open(line) else { continue };
                if let Some(kind) = Kind::of(&inner) {
                    return Some(Self { envelope, kind });
                }
                if inner.starts_with(b"{") && envelope != Envelope::Json {
                    objects = objects.or(Some(Self { envelope, kind: Kind::Json }));
                }
            }
        }
        objects
    }

    /// This format, inside of the lines of a container if `lines` are such: the first line that has `key` and its time,
    /// as it is or inside, decides.
    #[must_use]
    pub fn inside<'a>(
        self,
        lines: impl Iterator<Item = &'a [u8]>,
        key: &KeyTemplate,
        time_field: Option<&str>,
    ) -> Self {
        let reads = |line: &[u8], key: &KeyTemplate| {
            let shape =
                Shape::new(&self.kind.clone().into(), key, time_field, DurationField::Ignored);
            shape.map(|mut shape| matches!(shape.read(line, &mut Vec::new()), Ok(Some(_))))
        };
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            for envelope in Envelope::ALL {
                let Ok(inner) = envelope.open(line) else { continue };
                let is_request = match self.kind {
                    Kind::W3c(_) => inner.starts_with(b"#Fields:"),
                    Kind::Json => reads(&inner, key) == Ok(true),
                    // The text before the line may fit another key than the client.
                    Kind::Text(_) => {
                        reads(&inner, key) == Ok(true) && reads(&inner, &client_key()) != Ok(false)
                    }
                };
                if is_request {
                    return Self { envelope, ..self };
                }
            }
        }
        self
    }
}

fn client_key() -> KeyTemplate {
    key_of("ip")
}

fn key_of(field: &str) -> KeyTemplate {
    KeyTemplate { parts: vec![TemplatePart::Field(field.to_owned())] }
}

impl Kind {
    /// The kind of a line that is a request with an address.
    fn of(line: &[u8]) -> Option<Self> {
        if line.starts_with(b"#Fields:") {
            return Some(Self::W3c(Columns::default()));
        }
        if line.starts_with(b"{") {
            return Some(Self::Json).filter(|kind| kind.has_request(line));
        }
        let detected = NAMED[..DETECTED].iter();
        let mut known = detected.filter_map(|(name, _)| Some(Self::Text(Pattern::new(name).ok()?)));
        known.find(|kind| kind.has_request(line))
    }

    /// Whether the line has a time, and a client that is an address or a host name of several labels: one word may be
    /// anything.
    fn has_request(&self, line: &[u8]) -> bool {
        let format = Self::clone(self).into();
        let reads = |key: &KeyTemplate, duration, read: &mut Vec<u8>| {
            let shape = Shape::new(&format, key, None, duration);
            shape.is_ok_and(|mut shape| matches!(shape.read(line, read), Ok(Some(_))))
        };
        let has = |name| match self {
            Self::Text(pattern) => pattern.names().any(|it| it == name),
            Self::Json | Self::W3c(_) => false,
        };
        // The fields between the time and the client of a named format must be what they are.
        let duration =
            if has("duration") { DurationField::Detected } else { DurationField::Ignored };
        let mut client = Vec::new();
        reads(&client_key(), duration, &mut client)
            // A line in `common` is one in `combined` without its last fields.
            && (!has("http_referer") || reads(&key_of("agent"), duration, &mut Vec::new()))
            && (client.iter().any(|byte| matches!(byte, b'.' | b':')) || client == b"localhost")
    }
}

/// The field of a log that has the duration of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationField<'a> {
    /// None is read: each line is a take.
    Ignored,
    /// The first with a usual name in a line: each line is the start of a request, and its end.
    Detected,
    /// The one of that name; or `NAME:UNIT`, with `s`, `ms`, `us` or `ns` as the unit.
    Named(&'a str),
}

/// When the request of a line was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// At that time; the log may mean its start or its end.
    At(Timestamp),
    /// From its start to its end.
    Between(Timestamp, Timestamp),
}

/// A format, and the fields to read of it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    format: LogFormat,
    fields: Fields,
}

/// The fields to read.
#[derive(Clone, Debug)]
struct Fields {
    /// Their names.
    names: Vec<String>,
    /// Indices of the fields that may have the time.
    time: Vec<usize>,
    /// Indices of the fields that may have the duration; none if it is not read.
    duration: Vec<usize>,
    /// The unit of the duration, if it is not that of its name.
    unit: Option<Unit>,
    key: Vec<KeyPart>,
    /// Fields of the key that no line has had yet; not for text, because each line of text has all fields.
    missing: Vec<String>,
    /// Indices of fields that a request has, if the key may be without a client; for JSON only.
    of_request: Vec<usize>,
    /// Whether values have the escapes of text logs.
    has_escapes: bool,
    /// The last time as it was written: lines often repeat it.
    last: (Vec<u8>, u64),
}

#[derive(Clone, Debug)]
enum KeyPart {
    Text(Vec<u8>),
    Value {
        /// Indices of the fields that may have the value; the first that the line has counts.
        slots: Vec<usize>,
        part: Part,
        /// Index in the list of missing fields, until a line has one of them.
        missing: usize,
    },
}

impl Shape {
    pub(super) fn new(
        format: &LogFormat,
        key: &KeyTemplate,
        time_field: Option<&str>,
        duration_field: DurationField<'_>,
    ) -> Result<Self, LogError> {
        let mut names: Vec<String> = Vec::new();
        let mut format = format.clone();
        let mut slots = |wanted: &str| -> Result<(Vec<usize>, Part), LogError> {
            let Field { names: mut found, part } = Field::named(wanted);
            if let Kind::Text(pattern) = &format.kind {
                // Each line has all fields of the format.
                found.retain(|name| pattern.names().any(|known| known == *name));
                found.truncate(1);
                if found.is_empty() {
                    let has = |name: &str| pattern.names().any(|known| known == name);
                    let words = NAMES
                        .into_iter()
                        .filter(|word| !has(word) && Field::named(word).names.into_iter().any(has));
                    let has: Vec<&str> = words.chain(pattern.names()).collect();
                    return Err(LogError::Field { name: wanted.to_owned(), has: has.join(", ") });
                }
            }
            let slot = |name: &str| {
                let known = names.iter().position(|known| known == name);
                known.unwrap_or_else(|| {
                    names.push(name.to_owned());
                    names.len() - 1
                })
            };
            Ok((found.into_iter().map(slot).collect(), part))
        };
        let (time, _) = slots(time_field.unwrap_or("time"))?;
        let is_w3c = matches!(format.kind, Kind::W3c(_));
        let (duration_name, unit) = match duration_field {
            DurationField::Ignored => (None, None),
            DurationField::Detected => (Some("duration"), None),
            DurationField::Named(name) => match Unit::split(name)? {
                // The column of W3C logs, whose unit depends on who wrote them.
                ("time-taken", None) if is_w3c => (Some("duration"), None),
                (name, unit) => (Some(name), unit),
            },
        };
        let duration =
            duration_name.map(|name| slots(name).map(|it| it.0)).transpose()?.unwrap_or_default();
        let (mut parts, mut missing) = (Vec::new(), Vec::new());
        for part in &key.parts {
            parts.push(match part {
                TemplatePart::Text(text) => KeyPart::Text(text.clone().into_bytes()),
                TemplatePart::Field(name) => {
                    missing.push(name.clone());
                    let (slots, part) = slots(name)?;
                    KeyPart::Value { slots, part, missing: missing.len() - 1 }
                }
            });
        }
        let has_client = |part: &KeyPart| matches!(part, KeyPart::Value { part: Part::Client, .. });
        let mut of_request = Vec::new();
        if format.kind == Kind::Json && !parts.iter().any(has_client) {
            for name in ["ip", "method", "url", "status"] {
                of_request.extend(slots(name)?.0);
            }
        }
        let has_escapes = matches!(format.kind, Kind::Text(_));
        if let Kind::Text(pattern) = &mut format.kind {
            missing.clear();
            if names.len() > MAX_FIELDS {
                return Err(LogError::TooMany(names.len()));
            }
            for (slot, name) in names.iter().enumerate() {
                pattern.read_into(name, slot);
            }
            pattern.cut();
        }
        let (key, last) = (parts, (Vec::new(), 0));
        let fields =
            Fields { names, time, duration, unit, key, missing, of_request, has_escapes, last };
        Ok(Self { format, fields })
    }

    /// Fields of the key that no line has had.
    pub(super) fn missing(&self) -> impl Iterator<Item = &str> {
        self.fields.missing.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// When the request of `line` was; `None` if the line is about the log itself. Its key is appended to `keys`, also
    /// if there is a fault.
    pub(super) fn read(
        &mut self,
        line: &[u8],
        keys: &mut Vec<u8>,
    ) -> Result<Option<Moment>, LogFault> {
        let line = self.format.envelope.open(line)?;
        let fields = &mut self.fields;
        match &mut self.format.kind {
            Kind::Text(pattern) => {
                let mut values = [&b""[..]; MAX_FIELDS];
                pattern.read(&line, &mut values)?;
                fields.read(|slot, _| Some(Cow::Borrowed(values[slot])), keys).map(Some)
            }
            Kind::Json => {
                let mut values = Vec::new();
                json::read(&fields.names, &line, &mut values)?;
                let value = |slot: usize, _: &str| {
                    let value = values.get(slot).copied().flatten();
                    value.map(json::text).filter(|text| &**text != b"null")
                };
                if !fields.of_request.is_empty() && !fields.has_any(&value) {
                    return Err(LogFault::NoRequest);
                }
                fields.read(value, keys).map(Some)
            }
            Kind::W3c(columns) if line.starts_with(b"#") => {
                columns.read_directive(&line);
                Ok(None)
            }
            Kind::W3c(columns) => {
                let row = columns.row(&line)?;
                fields.read(|_, name| row.value(name), keys).map(Some)
            }
        }
    }
}

impl Fields {
    /// Whether the line is about a request: it has a field of the key, or one that requests have.
    fn has_any<'v>(&self, value: &impl Fn(usize, &str) -> Option<Cow<'v, [u8]>>) -> bool {
        let of_key = self.key.iter().flat_map(|part| match part {
            KeyPart::Value { slots, .. } => &slots[..],
            KeyPart::Text(_) => &[],
        });
        of_key.chain(&self.of_request).any(|slot| value(*slot, &self.names[*slot]).is_some())
    }

    /// Reads a line, given the value of each field by its index and name.
    fn read<'v>(
        &mut self,
        value: impl Fn(usize, &str) -> Option<Cow<'v, [u8]>>,
        keys: &mut Vec<u8>,
    ) -> Result<Moment, LogFault> {
        for part in &self.key {
            let (slots, part, missing) = match part {
                KeyPart::Text(text) => {
                    keys.extend_from_slice(text);
                    continue;
                }
                KeyPart::Value { slots, part, missing } => (slots, *part, *missing),
            };
            let mut is_found = false;
            for slot in slots {
                let Some(found) = value(*slot, &self.names[*slot]) else { continue };
                // An empty field exists too.
                if let Some(name) = self.missing.get_mut(missing) {
                    name.clear();
                }
                let Some(found) = part.extract(&found)? else { continue };
                match self.has_escapes {
                    true => keys.extend_from_slice(&unescaped(&found)),
                    false => keys.extend_from_slice(&found),
                }
                is_found = true;
                break;
            }
            match part {
                _ if is_found => {}
                Part::Client => return Err(LogFault::NoClient),
                _ => keys.push(b'-'),
            }
        }
        let first = |slots: &[usize]| {
            let mut found = slots
                .iter()
                .filter_map(|slot| value(*slot, &self.names[*slot]).map(|text| (*slot, text)));
            found.find(|(slot, text)| {
                slots.len() == 1 || self.names[*slot] != "msec" || time::is_epoch(text)
            })
        };
        let is_given = |(_, text): &(usize, Cow<'_, [u8]>)| !text.is_empty();
        let (time_slot, time) = first(&self.time).filter(is_given).ok_or(LogFault::NoTime)?;
        let duration = first(&self.duration);
        let at = timestamp(&mut self.last, &time)?;
        if self.duration.is_empty() {
            return Ok(Moment::At(at));
        }
        let (slot, text) = duration.ok_or(LogFault::NoDuration)?;
        let is_start = duration::time_is_start(&self.names[time_slot], &self.names[slot]);
        let unit = self.unit.unwrap_or_else(|| Unit::of(&self.names[slot], is_start));
        let length = duration::parse(&text, unit);
        let length = length.ok_or_else(|| LogFault::Duration((&*text).into()))?;
        let moved = |micros: u64| Timestamp::saturating_from_micros(micros);
        let micros = at.as_micros();
        Ok(match is_start {
            true => Moment::Between(at, moved(micros.saturating_add(length))),
            false => Moment::Between(moved(micros.saturating_sub(length)), at),
        })
    }
}

fn timestamp(last: &mut (Vec<u8>, u64), text: &[u8]) -> Result<Timestamp, LogFault> {
    if last.0 != text || text.is_empty() {
        let micros = time::parse(text).ok_or_else(|| LogFault::Time(text.into()))?;
        if micros > Timestamp::MAX.as_micros() {
            return Err(LogFault::Time(text.into()));
        }
        last.0.clear();
        last.0.extend_from_slice(text);
        last.1 = micros;
    }
    Ok(Timestamp::saturating_from_micros(last.1))
}

/// The format inside of a directive, or `text` if it is none; `None` for a directive without a format.
fn directive_format(text: &str) -> Option<Cow<'_, str>> {
    let start = text.trim_start_matches(is_between);
    let name = start.split(is_between).next().unwrap_or_default().to_ascii_lowercase();
    if !matches!(&*name, "log_format" | "logformat" | "customlog") {
        return Some(Cow::Borrowed(text));
    }
    let mut arguments = arguments(&start[name.len()..])?.into_iter();
    Some(Cow::Owned(match &*name {
        "logformat" => arguments.next()?,
        "customlog" => arguments.nth(1)?,
        _ => {
            let strings = arguments.skip(1).skip_while(|it| it.starts_with("escape="));
            Some(strings.collect::<String>()).filter(|format| !format.is_empty())?
        }
    }))
}

/// Whether a character separates arguments: a directive may be several lines, also ones that are commented out.
fn is_between(it: char) -> bool {
    it.is_whitespace() || it == '#'
}

/// The arguments up to the end of the text, or to a semicolon; `None` if a quote is not closed.
fn arguments(text: &str) -> Option<Vec<String>> {
    // Apache continues lines after a backslash.
    let text = text.replace("\\\r\n", "\n").replace("\\\n", "\n");
    let mut arguments = Vec::new();
    let mut rest = text.trim_start_matches(is_between);
    while let Some(first) = rest.chars().next().filter(|first| *first != ';') {
        let mut argument = String::new();
        let is_quoted = matches!(first, '"' | '\'');
        let mut characters = rest[usize::from(is_quoted)..].chars();
        loop {
            let before = characters.as_str();
            match characters.next() {
                Some(end) if is_quoted && end == first => break,
                None if is_quoted => return None,
                Some(';') | None if !is_quoted => {
                    characters = before.chars();
                    break;
                }
                Some(end) if !is_quoted && end.is_whitespace() => break,
                Some('\\') if before[1..].starts_with(['"', '\'', '\\']) => {
                    argument.extend(characters.next());
                }
                it => argument.extend(it),
            }
        }
        arguments.push(argument);
        rest = characters.as_str().trim_start_matches(is_between);
    }
    Some(arguments)
}

/// What the lines of the log are inside of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Envelope {
    /// Nothing.
    #[default]
    None,
    /// `2025-10-10T13:55:00.31Z stdout F line`, the files of Kubernetes.
    Cri,
    /// `{"log":"line\n","stream":"stdout"}`, the files of Docker; and `MESSAGE` of `journalctl -o json`.
    Json,
}

/// Members of an object that hold a line.
const MEMBERS: [&str; 3] = ["log", "MESSAGE", "message"];

impl Envelope {
    /// All of them, in the order in which they are detected.
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Cri, Self::Json];

    /// The line inside of `line`.
    pub(super) fn open(self, line: &[u8]) -> Result<Cow<'_, [u8]>, LogFault> {
        match self {
            Self::None => Ok(Cow::Borrowed(line)),
            Self::Cri => cri(line).map(Cow::Borrowed),
            Self::Json => {
                let mut values = Vec::new();
                json::read(&MEMBERS.map(str::to_owned), line, &mut values)?;
                let value = values.into_iter().flatten().find(|value| value.get().starts_with('"'));
                Ok(match json::text(value.ok_or(LogFault::Json)?) {
                    Cow::Borrowed(text) => Cow::Borrowed(text.trim_ascii_end()),
                    Cow::Owned(text) => Cow::Owned(text.trim_ascii_end().to_vec()),
                })
            }
        }
    }
}

fn cri(line: &[u8]) -> Result<&[u8], LogFault> {
    let fault = || LogFault::Missing { after: String::new(), text: (&b"TIME stdout F"[..]).into() };
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let mut word = || words.next().ok_or_else(fault);
    let (written, stream, tag, rest) = (word()?, word()?, word()?, word()?);
    if !matches!(stream, b"stdout" | b"stderr") || time::parse(written).is_none() {
        return Err(fault());
    }
    match tag {
        b"F" => Ok(rest),
        b"P" => Err(LogFault::Part),
        _ => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_error_names_every_format() {
        let error = "nginx".parse::<LogFormat>().unwrap_err().to_string();
        let (names, _) = error.split_once(", or a format string").unwrap();
        let mut named: Vec<&str> = names.trim_start_matches("expected ").split(", ").collect();
        let mut known: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        known.extend(["json", "traefik", "w3c"]);
        known.iter().for_each(|name| assert!(name.parse::<LogFormat>().is_ok(), "{name}"));
        named.sort_unstable();
        known.sort_unstable();
        assert_eq!(named, known);
    }
}

#[cfg(test)]
mod directive_tests {
    use super::*;

    #[test]
    fn format_of_directive_is_its_string() {
        for (text, expected) in [
            (r#"LogFormat "%h %l \"%r\" %>s" common"#, Some(r#"%h %l "%r" %>s"#)),
            (r#"  logformat '%h "%r"'"#, Some(r#"%h "%r""#)),
            ("LogFormat \\\n  \"%h\\t%r\" \\\n  tabs", Some("%h\\t%r")),
            ("LogFormat common", Some("common")),
            (r#"CustomLog "|/bin/rotate x" "%h \"%r\"" env=!quiet"#, Some(r#"%h "%r""#)),
            ("CustomLog ${APACHE_LOG_DIR}/access.log combined", Some("combined")),
            ("log_format main '$a [$b] \"$c\" '\n    '$d';", Some("$a [$b] \"$c\" $d")),
            ("#log_format main  '$a '\n    #     '$b';\n", Some("$a $b")),
            (
                "log_format j escape=json '{\"a\":\"$a\",' \"\\\"b\\\":$b}\";",
                Some("{\"a\":\"$a\",\"b\":$b}"),
            ),
            ("log_format main $a; # nothing", Some("$a")),
            ("log_format main '$a;$b'", Some("$a;$b")),
            // No directive.
            ("$log_format '$a'", Some("$log_format '$a'")),
            ("", Some("")),
            // Without a format.
            ("LogFormat", None),
            ("LogFormat \"%h", None),
            ("CustomLog logs/access.log", None),
            ("log_format main;", None),
            ("log_format main escape=json;", None),
            ("log_format main '$a\\'", None),
        ] {
            assert_eq!(directive_format(text).as_deref(), expected, "{text}");
        }
    }
}

#[cfg(test)]
mod envelope_tests {
    use super::*;

    #[test]
    fn open_line_of_container_is_what_it_wrote() {
        let open = |envelope: Envelope, line: &str| match envelope.open(line.as_bytes()) {
            Ok(line) => String::from_utf8_lossy(&line).into_owned(),
            Err(fault) => fault.to_string(),
        };
        for (envelope, line, expected) in [
            (Envelope::None, "a b", "a b"),
            (Envelope::Cri, "2025-10-10T13:55:00.31+00:00 stdout F a b", "a b"),
            (Envelope::Cri, "2025-10-10T13:55:00.31Z stderr F ", ""),
            (
                Envelope::Cri,
                "2025-10-10T13:55:00.31Z stdout P a",
                "expected a whole line, found a part of one",
            ),
            (Envelope::Cri, "a b c d", "expected `TIME stdout F` at the beginning"),
            (Envelope::Cri, "a", "expected `TIME stdout F` at the beginning"),
            (Envelope::Json, r#"{"log":"a \"b\"\n","stream":"stdout"}"#, "a \"b\""),
            (Envelope::Json, r#"{"_PID":"7","MESSAGE":"a"}"#, "a"),
            (Envelope::Json, r#"{"MESSAGE":[1,2]}"#, "expected a JSON object"),
            (Envelope::Json, "a", "expected a JSON object"),
        ] {
            assert_eq!(open(envelope, line), expected);
        }
    }
}
