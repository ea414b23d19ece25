//! A rules file as a tree in which everything has its place: what YAML and TOML have in common.
//!
//! Scalars are kept as they were written, so that whoever reads one decides what it means: the value
//! `010` of a descriptor is a text, wherever it comes from.

use std::rc::Rc;

use sluicegate_core::closest;

use crate::error::{Fault, Position, quoted};

/// The longest text that is read: a file of 10 000 rules is a tenth of it.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// The deepest that lists and maps are nested in each other.
pub(crate) const MAX_DEPTH: usize = 40;
/// The most scalars, lists and maps in all, with everything that an alias repeats counted again.
pub(crate) const MAX_NODES: usize = 1 << 21;

/// A value with its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Nothing: an empty value, `~` or `null`.
    Null,
    /// As written; `plain` where it had no quotes, and may be a number or a truth value.
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

    /// What it is, for an error.
    pub(crate) fn described(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".to_owned(),
            Kind::Scalar { text, .. } => quoted(text),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }

    /// The error for something else than `expected`, as `a map`.
    pub(crate) fn expected(&self, what: &str, expected: &str) -> Fault {
        let what = what.strip_prefix("a ").unwrap_or(what);
        self.fault(format!("invalid {what}: expected {expected}, found {}", self.described()))
    }

    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Its entries. Nothing at all is an empty map.
    pub(crate) fn map(&self, what: &str) -> Result<&[Entry], Fault> {
        match &self.kind {
            Kind::Map(entries) => Ok(entries),
            Kind::Null => Ok(&[]),
            Kind::Scalar { .. } | Kind::List(_) => Err(self.expected(what, "a map")),
        }
    }

    /// Its items. Nothing at all is an empty list.
    pub(crate) fn list(&self, what: &str) -> Result<&[Self], Fault> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            Kind::Null => Ok(&[]),
            Kind::Scalar { .. } | Kind::Map(_) => Err(self.expected(what, "a list")),
        }
    }

    /// Its items, or itself as the only one.
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

    /// A truth value.
    pub(crate) fn truth(&self, what: &str) -> Result<bool, Fault> {
        match &self.kind {
            Kind::Scalar { text, plain: true } if is_word(text, "true") => Ok(true),
            Kind::Scalar { text, plain: true } if is_word(text, "false") => Ok(false),
            _ => {
                let shown = self.described();
                Err(self.fault(format!("invalid {what} {shown}: expected `true` or `false`")))
            }
        }
    }

    /// A whole number in the domain of units.
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

fn is_word(text: &str, word: &str) -> bool {
    text == word
        || text.len() == word.len()
            && (text == word.to_ascii_uppercase()
                || text.as_bytes()[0].is_ascii_uppercase() && text[1..] == word[1..])
}

/// The entries of a map by name, each asked for once, so that what nobody asked for is an error.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    what: &'static str,
    at: Position,
    entries: &'n [Entry],
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    pub(crate) fn of(node: &'n Node, what: &'static str) -> Result<Self, Fault> {
        Ok(Self { what, at: node.at, entries: node.map(what)?, known: Vec::new() })
    }

    /// The value of `name`, unless it is not there, or is nothing.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<&'n Node> {
        self.known.push(name);
        let entry = self.entries.iter().find(|entry| *entry.key == *name)?;
        (!entry.value.is_null()).then_some(&entry.value)
    }

    /// Where `name` stands, if it does.
    pub(crate) fn place_of(&self, name: &str) -> Position {
        let entry = self.entries.iter().find(|entry| *entry.key == *name);
        entry.map_or(self.at, |entry| entry.at)
    }

    pub(crate) fn truth(&mut self, name: &'static str) -> Result<Option<bool>, Fault> {
        self.take(name).map(|node| node.truth(name)).transpose()
    }

    pub(crate) fn need(&mut self, name: &'static str) -> Result<&'n Node, Fault> {
        self.take(name)
            .ok_or_else(|| Fault::new(self.at, format!("missing field `{name}` in {}", self.what)))
    }

    /// Nothing else will be asked for.
    pub(crate) fn done(self) -> Result<(), Fault> {
        let unknown = self.entries.iter().find(|entry| !self.known.contains(&&*entry.key));
        unknown.map_or(Ok(()), |entry| {
            let shown = quoted(&entry.key);
            let expected = expected(&entry.key, &self.known);
            Err(Fault::new(entry.at, format!("unknown field {shown} in {}: {expected}", self.what)))
        })
    }
}

/// What is expected in place of `word`, which is none of `known`.
pub(crate) fn expected(word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("expected {}", one_of(known)),
    }
}

/// `a`, `b` or `c`, each in backquotes.
pub(crate) fn one_of(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match words.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}
