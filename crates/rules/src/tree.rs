//! A rules file as a tree with positions, for YAML and TOML alike.
//!
//! Scalars are kept as written. Their reader decides what they mean, because the value `010` of a descriptor is a
//! string.

use std::rc::Rc;

use sluicegate_core::{closest, one_of};

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

    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Its entries. Null is an error, because the file may be half-written.
    pub(crate) fn map(&self, what: &str) -> Result<&[Entry], Fault> {
        match &self.kind {
            Kind::Map(entries) => Ok(entries),
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
    pub(crate) fn boolean(&self, what: &str) -> Result<bool, Fault> {
        match &self.kind {
            Kind::Scalar { text, plain: true } if TRUE.contains(&&**text) => Ok(true),
            Kind::Scalar { text, plain: true } if FALSE.contains(&&**text) => Ok(false),
            other => {
                let is_quoted = |text: &str| TRUE.contains(&text) || FALSE.contains(&text);
                let expected = match other {
                    Kind::Scalar { text, plain: false } if is_quoted(text) => "it without quotes",
                    _ => "`true` or `false`",
                };
                let shown = self.described();
                Err(self.fault(format!("invalid {what} {shown}: expected {expected}")))
            }
        }
    }

    /// A number of units, at least `least`.
    pub(crate) fn number(&self, what: &str, least: u32) -> Result<u32, Fault> {
        let parsed = match &self.kind {
            Kind::Scalar { text, plain: true } if text.bytes().all(|it| it.is_ascii_digit()) => {
                text.parse().ok().filter(|number| *number >= least)
            }
            _ => None,
        };
        parsed.ok_or_else(|| {
            let shown = self.described();
            let most = u32::MAX;
            let expected = format!("expected a whole number from {least} to {most}");
            self.fault(format!("invalid {what} {shown}: {expected}"))
        })
    }
}

/// Spellings of booleans in YAML 1.2.
const TRUE: [&str; 3] = ["true", "True", "TRUE"];
const FALSE: [&str; 3] = ["false", "False", "FALSE"];

/// The fields of a map by name. A field that no reader takes is an error.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    what: &'static str,
    at: Position,
    entries: &'n [Entry],
    known: Vec<&'static str>,
    /// Whether a field without a value is the same as a missing one.
    optional_values: bool,
}

impl<'n> Fields<'n> {
    pub(crate) fn of(node: &'n Node, what: &'static str) -> Result<Self, Fault> {
        let entries = node.map(what)?;
        Ok(Self { what, at: node.at, entries, known: Vec::new(), optional_values: false })
    }

    /// The fields of a map in the format of another tool, where a field without a value is the same as a missing one.
    pub(crate) fn with_optional_values(node: &'n Node, what: &'static str) -> Result<Self, Fault> {
        Ok(Self { optional_values: true, ..Self::of(node, what)? })
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
        self.read(name, |node| node.boolean(name))
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<&'n Rc<str>>, Fault> {
        self.read(name, |node| node.text(name))
    }

    pub(crate) fn number(&mut self, name: &'static str, least: u32) -> Result<Option<u32>, Fault> {
        self.read(name, |node| node.number(name, least))
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
        for entry in self.entries {
            if !self.known.contains(&&*entry.key) {
                let (shown, expected) = (quoted(&entry.key), expected(&entry.key, &self.known));
                let message = format!("unknown field {shown} in {}: {expected}", self.what);
                return Err(Fault::new(entry.at, message));
            }
            if entry.value.is_null() && !self.optional_values {
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
