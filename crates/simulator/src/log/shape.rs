//! Reads the time, the duration and the key of a line.

use std::borrow::Cow;

use sluicegate_core::Timestamp;

use super::{
    duration::{self, Unit},
    error::{LogError, LogFault},
    fields::{Field, KeyTemplate, NAMES, Part, TemplatePart, unescaped},
    format::{MAX_FIELDS, Pattern},
    json, time,
};

/// Format of the lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Text(Pattern),
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = LogError;

    /// `combined`, `common`, `json`, or a format string of nginx (with `$`) or Apache (with `%`).
    fn from_str(text: &str) -> Result<Self, LogError> {
        Ok(Self(if text == "json" { Kind::Json } else { Kind::Text(Pattern::new(text)?) }))
    }
}

impl LogFormat {
    /// Whether `line` has this format.
    #[must_use]
    pub fn fits(&self, line: &[u8]) -> bool {
        let key = KeyTemplate { parts: Vec::new() };
        Shape::new(self, &key, None, DurationField::Ignored)
            .is_ok_and(|mut shape| shape.read(line, &mut Vec::new()).is_ok())
    }
}

/// The field of a log that has the duration of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationField<'a> {
    /// None is read: each line is a take.
    Ignored,
    /// The first with a usual name in a line: each line is the start of a request, and its end.
    Detected,
    /// The one of that name.
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
    kind: Kind,
    /// Names of the fields to read.
    names: Vec<String>,
    /// Indices of the fields that may have the time.
    time: Vec<usize>,
    /// Indices of the fields that may have the duration; none if it is not read.
    duration: Vec<usize>,
    key: Vec<KeyPart>,
    /// Fields of the key that no line has had yet; for JSON only, because each line of text has all fields.
    missing: Vec<String>,
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
        missing: Option<usize>,
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
        let kind = &format.0;
        let mut slots = |wanted: &str| -> Result<(Vec<usize>, Part), LogError> {
            let Field { names: mut found, part } = Field::named(wanted);
            if let Kind::Text(pattern) = kind {
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
        let duration = match duration_field {
            DurationField::Ignored => Vec::new(),
            DurationField::Detected => slots("duration")?.0,
            DurationField::Named(name) => slots(name)?.0,
        };
        let (mut parts, mut missing) = (Vec::new(), Vec::new());
        for part in &key.parts {
            parts.push(match part {
                TemplatePart::Text(text) => KeyPart::Text(text.clone().into_bytes()),
                TemplatePart::Field(name) => {
                    missing.push(name.clone());
                    let (slots, part) = slots(name)?;
                    KeyPart::Value { slots, part, missing: Some(missing.len() - 1) }
                }
            });
        }
        if matches!(kind, Kind::Text(_)) {
            missing.clear();
        }
        let mut kind = kind.clone();
        if let Kind::Text(pattern) = &mut kind {
            if names.len() > MAX_FIELDS {
                return Err(LogError::TooMany(names.len()));
            }
            for (slot, name) in names.iter().enumerate() {
                pattern.read_into(name, slot);
            }
            pattern.cut();
        }
        Ok(Self { kind, names, time, duration, key: parts, missing, last: (Vec::new(), 0) })
    }

    /// Fields of the key that no line has had.
    pub(super) fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// When the request of `line` was. Its key is appended to `keys`, also if there is a fault.
    pub(super) fn read(&mut self, line: &[u8], keys: &mut Vec<u8>) -> Result<Moment, LogFault> {
        let (time, duration) = match &self.kind {
            Kind::Text(pattern) => {
                let mut values = [&b""[..]; MAX_FIELDS];
                pattern.read(line, &mut values)?;
                for part in &self.key {
                    match part {
                        KeyPart::Text(text) => keys.extend_from_slice(text),
                        KeyPart::Value { slots, part, .. } => {
                            for slot in slots {
                                keys.extend_from_slice(&unescaped(part.extract(values[*slot])));
                            }
                        }
                    }
                }
                let first = |slots: &[usize]| {
                    slots.first().map(|slot| (*slot, Cow::Borrowed(values[*slot])))
                };
                (first(&self.time), first(&self.duration))
            }
            Kind::Json => {
                let mut values = Vec::new();
                json::read(&self.names, line, &mut values)?;
                let value = |slot: usize| {
                    let value = values.get(slot).copied().flatten();
                    value.map(json::text).filter(|text| &**text != b"null")
                };
                for part in &mut self.key {
                    match part {
                        KeyPart::Text(text) => keys.extend_from_slice(text),
                        KeyPart::Value { slots, part, missing } => {
                            let found = slots.iter().find_map(|slot| value(*slot));
                            let found = found.as_deref().map(|text| part.extract(text));
                            if let (Some(_), Some(index)) = (&found, *missing) {
                                self.missing[index].clear();
                                *missing = None;
                            }
                            keys.extend_from_slice(found.unwrap_or(b"-"));
                        }
                    }
                }
                let first = |slots: &[usize]| {
                    let mut found =
                        slots.iter().filter_map(|slot| value(*slot).map(|text| (*slot, text)));
                    found.find(|(slot, text)| {
                        slots.len() == 1 || self.names[*slot] != "msec" || time::is_epoch(text)
                    })
                };
                (first(&self.time), first(&self.duration))
            }
        };
        let (time_slot, time) = time.ok_or(LogFault::NoTime)?;
        let at = timestamp(&mut self.last, &time)?;
        if self.duration.is_empty() {
            return Ok(Moment::At(at));
        }
        let (slot, text) = duration.ok_or(LogFault::NoDuration)?;
        let is_start = duration::time_is_start(&self.names[time_slot], &self.names[slot]);
        let unit = Unit::of(&self.names[slot], is_start);
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
