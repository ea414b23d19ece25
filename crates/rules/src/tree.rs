//! A rules file as a tree with positions, for YAML and TOML alike.
//!
//! Scalars are kept as written. Their reader decides what they mean, because the value `010` of a descriptor is a
//! string.

use std::rc::Rc;

use sluicegate_core::{Policy, closest, one_of};

use crate::error::{Fault, Position, quoted};

/// Maximum length of a file. One with 10 000 rules has a tenth of it.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// Maximum nesting of lists and maps.
pub(crate) const MAX_DEPTH: usize = 40;
/// Maximum number of scalars, lists and maps in all files; the repetition of an alias is counted each time.
const MAX_NODES: usize = 1 << 21;

/// The fault of a list or map that is nested too deeply.
pub(crate) fn too_deep(at: Position) -> Fault {
    Fault::new(at, format!("invalid nesting: expected at most {MAX_DEPTH} levels"))
}

/// Number of scalars, lists and maps in all files so far.
#[derive(Debug, Default)]
pub(crate) struct NodeCount(usize);

impl NodeCount {
    /// Counts `added` nodes, the last of which is at `at`.
    pub(crate) fn add(&mut self, added: usize, at: Position) -> Result<(), Fault> {
        self.0 = self.0.saturating_add(added);
        if self.0 <= MAX_NODES {
            return Ok(());
        }
        let expected = format!("expected at most {MAX_NODES} in all files, aliases included");
        Err(Fault::new(at, format!("too many values: {expected}")))
    }
}

/// A value with its position.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// An empty value, `~` or `null`.
    Null,
    /// A scalar as written; `plain` if it has no quotes and can be a number or a boolean.
    Scalar {
        text: Rc<str>,
        plain: bool,
    },
    List(Rc<[Node]>),
    Map(Rc<[Entry]>),
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) at: Position,
    pub(crate) key: Rc<str>,
    pub(crate) value: Node,
}

impl Node {
    pub(crate) fn fault(&self, message: impl Into<String>) -> Fault {
        Fault::new(self.at, message)
    }

    /// The value in an error text.
    pub(crate) fn described(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".to_owned(),
            Kind::Scalar { text, .. } => quoted(text),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }

    /// The error for a value that is not `expected`, such as `a map`.
    pub(crate) fn expected(&self, what: &str, expected: &str) -> Fault {
        let what = what.strip_prefix("a ").unwrap_or(what);
        self.fault(format!("invalid {what}: expected {expected}, found {}", self.described()))
    }

    /// Whether it is a `ConfigMap` of Kubernetes.
    pub(crate) fn is_config_map(&self) -> bool {
        let Kind::Map(fields) = &self.kind else { return false };
        let field = |name: &str| fields.iter().find(|entry| *entry.key == *name);
        let kind = field("kind").and_then(|kind| kind.value.text("kind").ok());
        field("apiVersion").is_some() && kind.is_some_and(|kind| **kind == *"ConfigMap")
    }

    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Its entries. Null is an error, because the file may be half-written.
    pub(crate) fn map(&self, what: &str) -> Result<&[Entry], Fault> {
        match &self.kind {
            Kind::Map(entries) => Ok(entries),
            Kind::Scalar { text, plain: true } if is_without_space(text) => {
                Err(self.expected(what, "a map with a space after `:`"))
            }
            Kind::Null | Kind::Scalar { .. } | Kind::List(_) => Err(self.expected(what, "a map")),
        }
    }

    /// Its items. Null is an error, because the file may be half-written.
    pub(crate) fn list(&self, what: &str) -> Result<&[Self], Fault> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            Kind::Null | Kind::Scalar { .. } | Kind::Map(_) => Err(self.expected(what, "a list")),
        }
    }

    /// Its items, or itself as the only item.
    pub(crate) fn one_or_many(&self) -> &[Self] {
        match &self.kind {
            Kind::List(items) => items,
            Kind::Null | Kind::Scalar { .. } | Kind::Map(_) => std::slice::from_ref(self),
        }
    }

    pub(crate) fn text(&self, what: &str) -> Result<&Rc<str>, Fault> {
        match &self.kind {
            Kind::Scalar { text, .. } => Ok(text),
            Kind::Null | Kind::List(_) | Kind::Map(_) => Err(self.expected(what, "a string")),
        }
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, what: &str, version: YamlVersion) -> Result<bool, Fault> {
        match &self.kind {
            Kind::Scalar { text, plain: true } if version.truth(text).is_some() => {
                Ok(version.truth(text) == Some(true))
            }
            other => {
                let expected = match other {
                    Kind::Scalar { text, plain: false } if version.truth(text).is_some() => {
                        "it without quotes"
                    }
                    _ => "`true` or `false`",
                };
                let shown = self.described();
                Err(self.fault(format!("invalid {what} {shown}: expected {expected}")))
            }
        }
    }

    /// A number of units, at least `least`.
    pub(crate) fn number(
        &self,
        what: &str,
        least: u32,
        version: YamlVersion,
    ) -> Result<u32, Fault> {
        let number = |text: &str| version.number(text).filter(|number| *number >= least);
        let expected = match &self.kind {
            Kind::Scalar { text, plain } => match (number(text), plain) {
                (Some(number), true) => return Ok(number),
                (Some(_), false) => "expected it without quotes".to_owned(),
                (None, _) => format!("expected a whole number from {least} to {}", u32::MAX),
            },
            _ => format!("expected a whole number from {least} to {}", u32::MAX),
        };
        let shown = self.described();
        Err(self.fault(format!("invalid {what} {shown}: {expected}")))
    }
}

/// Whether it is a field of a map such as `name:api`, which YAML reads as a string.
fn is_without_space(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_')
    };
    text.split_once(':').is_some_and(|(name, _)| is_name(name))
}

/// What plain scalars mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum YamlVersion {
    /// YAML 1.2, for files in Sluicegate's own format.
    #[default]
    V1_2,
    /// YAML 1.1, which envoyproxy/ratelimit reads: more booleans, and more forms of numbers.
    V1_1,
}

impl YamlVersion {
    /// The meaning of a boolean; `None` for any other text.
    pub(crate) fn truth(self, text: &str) -> Option<bool> {
        let words: [&[&str]; 2] = match self {
            Self::V1_2 => [&["true"], &["false"]],
            Self::V1_1 => [&["true", "yes", "y", "on"], &["false", "no", "n", "off"]],
        };
        let lower = text.to_ascii_lowercase();
        let rest = text.get(1..)?;
        let is_spelt = rest == &lower[1..] || text == text.to_ascii_uppercase();
        let found = words.iter().position(|words| words.contains(&&*lower));
        found.filter(|_| is_spelt).map(|at| at == 0)
    }

    /// The meaning of a whole number without a minus sign; `None` for any other text.
    pub(crate) fn number(self, text: &str) -> Option<u32> {
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        if self == Self::V1_2 {
            return text.parse().ok().filter(|_| is_digits(text));
        }
        let joined = text.replace('_', "");
        let digits = joined.strip_prefix('+').unwrap_or(&joined);
        let (digits, radix) = match digits.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
            [b'0', b'o' | b'O', ..] => (&digits[2..], 8),
            [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
            [b'0', _, ..] => (&digits[1..], 8),
            _ => (digits, 10),
        };
        let starts_with_digit = digits.starts_with(|it: char| it.is_ascii_hexdigit());
        u32::from_str_radix(digits, radix).ok().filter(|_| starts_with_digit)
    }
}

/// The fields of a map by name. A field that no reader takes is an error.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    what: &'static str,
    at: Position,
    entries: &'n [Entry],
    known: Vec<&'static str>,
    /// Whether it is in the format of another tool: a field without a value is the same as a missing one, and scalars
    /// are those of YAML 1.1.
    is_foreign: bool,
}

impl<'n> Fields<'n> {
    pub(crate) fn of(node: &'n Node, what: &'static str) -> Result<Self, Fault> {
        let entries = node.map(what)?;
        Ok(Self { what, at: node.at, entries, known: Vec::new(), is_foreign: false })
    }

    /// The fields of a map in the format of envoyproxy/ratelimit.
    pub(crate) fn of_envoy(node: &'n Node, what: &'static str) -> Result<Self, Fault> {
        Ok(Self { is_foreign: true, ..Self::of(node, what)? })
    }

    const fn version(&self) -> YamlVersion {
        if self.is_foreign { YamlVersion::V1_1 } else { YamlVersion::V1_2 }
    }

    /// The value of the field `name`; `None` if it is missing or null, which [`finish`](Self::finish) may reject.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<&'n Node> {
        self.known.push(name);
        let entry = self.entries.iter().find(|entry| *entry.key == *name)?;
        (!entry.value.is_null()).then_some(&entry.value)
    }

    /// Position of the field `name`, or of the map if it is missing.
    pub(crate) fn position_of(&self, name: &str) -> Position {
        let entry = self.entries.iter().find(|entry| *entry.key == *name);
        entry.map_or(self.at, |entry| entry.at)
    }

    /// The value of the field `name` as `read` reads it, if it is given.
    pub(crate) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'n Node) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.take(name).map(read).transpose()
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, Fault> {
        let version = self.version();
        self.read(name, |node| node.boolean(name, version))
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<&'n Rc<str>>, Fault> {
        self.read(name, |node| node.text(name))
    }

    pub(crate) fn number(&mut self, name: &'static str, least: u32) -> Result<Option<u32>, Fault> {
        let version = self.version();
        self.read(name, |node| node.number(name, least, version))
    }

    /// The value of the field `name`; an error that names what is `expected` if it is missing or null.
    pub(crate) fn require(
        &mut self,
        name: &'static str,
        expected: &str,
    ) -> Result<&'n Node, Fault> {
        self.take(name).ok_or_else(|| {
            let what = self.what;
            Fault::new(self.at, format!("missing field `{name}` in {what}: expected {expected}"))
        })
    }

    /// Returns an error if there is a field that was not taken, or one without a value.
    pub(crate) fn finish(self) -> Result<(), Fault> {
        self.finish_beside(&[], "")
    }

    /// As [`finish`](Self::finish); the fields `others` belong to another map, `there`.
    pub(crate) fn finish_beside(self, others: &[&str], there: &str) -> Result<(), Fault> {
        for entry in self.entries {
            if !self.known.contains(&&*entry.key) {
                let shown = quoted(&entry.key);
                let expected = match others.contains(&&*entry.key) {
                    true => format!("expected it {there}"),
                    // In braces, a comma ends a value that is not quoted.
                    false if entry.key.parse::<Policy>().is_ok() => {
                        "expected quotes around a policy of several limits, 'gcra:10/1s,gcra:100/1m'"
                            .to_owned()
                    }
                    false => expected(&entry.key, &self.known),
                };
                let message = format!("unknown field {shown} in {}: {expected}", self.what);
                return Err(Fault::new(entry.at, message));
            }
            if entry.value.is_null() && !self.is_foreign {
                let (shown, expected) = (quoted(&entry.key), expected_value(self.what, &entry.key));
                return Err(Fault::new(entry.at, format!("missing value of {shown}: {expected}")));
            }
        }
        Ok(())
    }
}

/// What is expected as the value of the field `name` in `what`.
fn expected_value(what: &str, name: &str) -> String {
    match (what, name) {
        ("a rules file", "policies") => {
            "expected a map; use `policies: {}` for no policies".to_owned()
        }
        ("a rules file", "rules" | "descriptors" | "tests") => {
            format!("expected a list; use `{name}: []` for no {name}")
        }
        ("a rule", "match") => {
            "expected attributes; remove the field to match all requests".to_owned()
        }
        ("a rule" | "a level", "key") => {
            "expected an attribute or a list of them; remove the field to count all requests together".to_owned()
        }
        (_, "policy") => "expected a policy, such as `gcra:30/1m`".to_owned(),
        ("a rule", "levels") => "expected a list of levels".to_owned(),
        ("a rules file", "domain") => {
            "expected the domain that Envoy sends, such as `domain: edge`".to_owned()
        }
        _ => "expected one; remove the field to use its default".to_owned(),
    }
}

/// What is expected instead of `word`, which is not in `known`.
pub(crate) fn expected(word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("expected {}", one_of(known)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_scalars_of_yaml_1_1_are_those_of_envoyproxy() {
        let yes = "true True TRUE yes Yes YES y Y on On ON";
        let no = "false False FALSE no No NO n N off Off OFF";
        for (words, truth) in [(yes, true), (no, false)] {
            for word in words.split(' ') {
                assert_eq!(YamlVersion::V1_1.truth(word), Some(truth), "{word}");
                let is_boolean =
                    word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false");
                assert_eq!(YamlVersion::V1_2.truth(word).is_some(), is_boolean, "{word}");
            }
        }
        for (text, number) in [
            ("1_000", Some(1000)),
            ("0x10", Some(16)),
            ("+5", Some(5)),
            ("010", Some(8)),
            ("0o17", Some(15)),
            ("0b11", Some(3)),
            ("0", Some(0)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("0x", None),
            ("0x+1", None),
            ("-1", None),
            ("+", None),
            ("ten", None),
            ("", None),
        ] {
            assert_eq!(YamlVersion::V1_1.number(text), number, "{text}");
        }
        for text in ["1_000", "0x10", "+5", ""] {
            assert_eq!(YamlVersion::V1_2.number(text), None, "{text}");
        }
        for word in ["tRUE", "yEs", "Tru", "1", ""] {
            assert_eq!(YamlVersion::V1_1.truth(word), None, "{word}");
        }
    }
}
