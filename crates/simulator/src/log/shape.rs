//! Reads the time and the key of a line.

use sluicegate_core::Timestamp;

use super::{
    error::{LogError, LogFault},
    fields::{Field, KeyTemplate, Part, TemplatePart, unescaped},
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
    /// Whether `line` looks like one of these.
    #[must_use]
    pub fn fits(&self, line: &[u8]) -> bool {
        let key = KeyTemplate { parts: Vec::new() };
        Shape::new(self, &key, None)
            .is_ok_and(|mut shape| shape.read(line, &mut Vec::new()).is_ok())
    }
}

/// A format, and the fields to read of it.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    kind: Kind,
    /// Names of the fields to read; used for JSON.
    names: Vec<String>,
    /// Indices of the fields that may have the time.
    time: Vec<usize>,
    key: Vec<KeyPart>,
    /// Fields of the key that no line has had yet; of JSON only, since each line of text has all fields.
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
    ) -> Result<Self, LogError> {
        let mut names: Vec<String> = Vec::new();
        let kind = &format.0;
        let mut slots = |asked: &str| -> Result<(Vec<usize>, Part), LogError> {
            let Field { names: mut found, part } = Field::named(asked);
            if let Kind::Text(pattern) = kind {
                // Each line has all fields of the format.
                found.retain(|name| pattern.names().any(|known| known == *name));
                found.truncate(1);
                if found.is_empty() {
                    let has: Vec<&str> = pattern.names().collect();
                    return Err(LogError::Field { name: asked.to_owned(), has: has.join(", ") });
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
        Ok(Self { kind, names, time, key: parts, missing, last: (Vec::new(), 0) })
    }

    /// Fields of the key that no line has had.
    pub(super) fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The time of `line`. Its key is appended to `keys`, also if there is a fault.
    pub(super) fn read(&mut self, line: &[u8], keys: &mut Vec<u8>) -> Result<Timestamp, LogFault> {
        match &self.kind {
            Kind::Text(pattern) => {
                let mut values = [&b""[..]; MAX_FIELDS];
                pattern.read(line, &mut values)?;
                for part in &self.key {
                    match part {
                        KeyPart::Text(text) => keys.extend_from_slice(text),
                        KeyPart::Value { slots, part, .. } => {
                            for slot in slots {
                                keys.extend_from_slice(&unescaped(part.of(values[*slot])));
                            }
                        }
                    }
                }
                let time = self.time.first().map_or(&b""[..], |slot| values[*slot]);
                timestamp(&mut self.last, time)
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
                            let found = found.as_deref().map(|text| part.of(text));
                            if let (Some(_), Some(index)) = (&found, *missing) {
                                self.missing[index].clear();
                                *missing = None;
                            }
                            keys.extend_from_slice(found.unwrap_or(b"-"));
                        }
                    }
                }
                let mut found = self.time.iter().filter_map(|slot| value(*slot));
                timestamp(&mut self.last, &found.next().ok_or(LogFault::NoTime)?)
            }
        }
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
