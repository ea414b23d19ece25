//! Lines of JSON: an object each, its fields by name, those of objects inside by `outer.inner`.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::LogFault;

/// Maximum depth of objects that are read.
const MAX_DEPTH: usize = 16;

/// Values of the fields to read, where the line has them.
pub(super) type Values<'a> = Vec<Option<&'a RawValue>>;

/// Finds the values of `names` in `line`; the first of equal names counts.
pub(super) fn read<'a>(
    names: &[String],
    line: &'a [u8],
    values: &mut Values<'a>,
) -> Result<(), LogFault> {
    values.clear();
    values.resize(names.len(), None);
    let wanted = names.iter().map(String::as_str).enumerate().collect();
    let fault = |_: serde_json::Error| LogFault::Json;
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    Object { wanted, values, depth: 0 }.deserialize(&mut deserializer).map_err(fault)?;
    deserializer.end().map_err(fault)
}

/// A value as bytes: a string without its quotes and escapes, anything else as written.
pub(super) fn text(value: &RawValue) -> Cow<'_, [u8]> {
    let raw = value.get();
    match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain.as_bytes()),
        Some(_) => serde_json::from_str::<String>(raw)
            .map_or(Cow::Borrowed(raw.as_bytes()), |text| Cow::Owned(text.into_bytes())),
        None => Cow::Borrowed(raw.as_bytes()),
    }
}

/// An object, with the fields to read of it.
struct Object<'n, 'v, 'de> {
    wanted: Vec<(usize, &'n str)>,
    values: &'v mut Values<'de>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Object { wanted, values, depth } = self;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let here = wanted.iter().filter(|(_, name)| *name == key);
            let here: Vec<usize> = here.map(|(slot, _)| *slot).collect();
            let inside = wanted.iter().filter_map(|(slot, name)| {
                Some((*slot, name.strip_prefix(&*key)?.strip_prefix('.')?))
            });
            let inside: Vec<_> = inside.collect();
            if here.is_empty() && inside.is_empty() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: &'de RawValue = map.next_value()?;
            for slot in here {
                values[slot] = values[slot].or(Some(value));
            }
            if !inside.is_empty() && depth < MAX_DEPTH && value.get().starts_with('{') {
                let mut deserializer = serde_json::Deserializer::from_str(value.get());
                let object = Object { wanted: inside, values, depth: depth + 1 };
                object.deserialize(&mut deserializer).map_err(A::Error::custom)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(names: &[&str], line: &str) -> Result<Vec<Option<String>>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut values = Vec::new();
        read(&names, line.as_bytes(), &mut values).map_err(|fault| fault.to_string())?;
        let text = |value: &RawValue| String::from_utf8_lossy(&text(value)).into_owned();
        Ok(values.into_iter().map(|value| value.map(text)).collect())
    }

    #[test]
    fn json_values_are_found_by_name_and_path() {
        let line = r#"{"ts":1.5,"request":{"ip":"a\u0062","n":null},"x.y":true,"l":[1,{"ts":2}]}"#;
        let found = find(&["ts", "request.ip", "x.y", "request.none", "l"], line).unwrap();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(found, [some("1.5"), some("ab"), some("true"), None, some(r#"[1,{"ts":2}]"#)]);
    }

    #[test]
    fn json_not_an_object_is_an_error() {
        for line in ["", "[]", "7", "{\"a\":1", "{\"a\":1}x", "{\"a\":\"\u{1}\"}"] {
            assert!(find(&["a"], line).is_err(), "{line}");
        }
    }
}
