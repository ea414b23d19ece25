//! Parses YAML into a tree.
//!
//! Aliases and merge keys (`<<`) share their nodes. Each use counts towards the maximum number of nodes, so that
//! aliases of aliases cannot exhaust memory.

mod syntax;

use std::{collections::HashMap, rc::Rc};

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle};

use crate::{
    error::{Fault, Position, quoted},
    tree::{Entry, Kind, MAX_DEPTH, Node, NodeCount, too_deep},
};

/// Length of a string that counts as another node, because aliases can repeat long ones.
const BYTES_PER_NODE: usize = 64;

/// Parses `text`. `moved` converts positions in it to those in errors.
pub(crate) fn parse(
    text: &str,
    count: &mut NodeCount,
    moved: impl Fn(Position) -> Position,
) -> Result<Node, Fault> {
    let raw = |marker: &Marker| Position { line: marker.line(), column: marker.col() + 1 };
    let position = |marker: &Marker| moved(raw(marker));
    let mut builder =
        Builder { open: Vec::new(), anchors: HashMap::new(), documents: Vec::new(), count };
    let options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: 2 * MAX_DEPTH
    };
    let options: Options = options;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let (at, message) = syntax::explain(text, raw(error.marker()), &error.info());
            Fault::new(moved(at), message)
        })?;
        builder.event(event, position(&span.start))?;
    }
    let start = Node { at: moved(Position { line: 1, column: 1 }), kind: Kind::Null };
    only_document(builder.documents).map(|root| root.unwrap_or(start))
}

/// The document that is not empty; `None` if all are.
fn only_document(documents: Vec<Node>) -> Result<Option<Node>, Fault> {
    let mut filled = documents.into_iter().filter(|document| !document.is_null());
    let (first, second) = (filled.next(), filled.next());
    let Some(second) = second else { return Ok(first) };
    let mut all = first.iter().chain([&second]).cloned().chain(filled);
    let advice = match all.find(Node::is_config_map) {
        Some(map) => {
            let line = map.at.line;
            format!("; keep only the ConfigMap, which begins in line {line}")
        }
        None => String::new(),
    };
    Err(second.fault(format!("invalid second document: expected one document in a file{advice}")))
}

struct Builder<'c> {
    /// Unfinished lists and maps, the innermost last.
    open: Vec<OpenNode>,
    /// Nodes that aliases can repeat, each with its size.
    anchors: HashMap<usize, (Node, usize)>,
    documents: Vec<Node>,
    count: &'c mut NodeCount,
}

struct OpenNode {
    at: Position,
    anchor: usize,
    /// Number of nodes in it, including those that aliases repeat.
    size: usize,
    inside: Inside,
}

enum Inside {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(Position, Rc<str>)> },
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, at: Position) -> Result<(), Fault> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let (plain, length) = (style == ScalarStyle::Plain, text.len());
                if plain && ["", "~"].contains(&&*text) && (anchor > 0 || tag.is_some()) {
                    let text = "invalid value: expected one behind an anchor or a tag; a string that begins with `&` or `!` \
                                needs quotes";
                    return Err(Fault::new(at, text));
                }
                let kind = if plain && ["", "~", "null", "Null", "NULL"].contains(&&*text) {
                    Kind::Null
                } else {
                    Kind::Scalar { text: text.into(), plain }
                };
                let size = 1 + length / BYTES_PER_NODE;
                self.count.add(size, at)?;
                self.add(Node { at, kind }, size, anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(at, anchor, Inside::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(at, anchor, Inside::Map { entries: Vec::new(), key: None })?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id).cloned() else {
                    return Err(Fault::new(
                        at,
                        "invalid alias: expected one that does not contain itself",
                    ));
                };
                self.count.add(size, at)?;
                self.add(Node { at, ..node }, size, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, at: Position, anchor: usize, inside: Inside) -> Result<(), Fault> {
        if let Some(OpenNode { inside: Inside::Map { key: None, .. }, .. }) = self.open.last() {
            return Err(Fault::new(at, "invalid map key: expected a string"));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.count.add(1, at)?;
        self.open.push(OpenNode { at, anchor, size: 1, inside });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let kind = match open.inside {
            Inside::List(items) => Kind::List(items.into()),
            Inside::Map { entries, .. } => Kind::Map(merged(entries)?.into()),
        };
        self.add(Node { at: open.at, kind }, open.size, open.anchor)
    }

    /// Adds a finished node to the innermost list or map.
    fn add(&mut self, node: Node, size: usize, anchor: usize) -> Result<(), Fault> {
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        let Some(open) = self.open.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        open.size += size;
        match &mut open.inside {
            Inside::List(items) => items.push(node),
            Inside::Map { entries, key } => match key.take() {
                Some((at, key)) => entries.push(Entry { at, key, value: node }),
                None => match node.kind {
                    Kind::Scalar { text, .. } => *key = Some((node.at, text)),
                    Kind::Null => *key = Some((node.at, "".into())),
                    Kind::List(_) | Kind::Map(_) => {
                        return Err(node.fault("invalid map key: expected a string"));
                    }
                },
            },
        }
        Ok(())
    }
}

/// The entries of a map, followed by those that it merges (`<<: *other`).
fn merged(entries: Vec<Entry>) -> Result<Vec<Entry>, Fault> {
    let mut seen: HashMap<Rc<str>, Position> = HashMap::with_capacity(entries.len());
    let (merges, mut own): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| &*entry.key == "<<");
    for entry in &own {
        if let Some(first) = seen.insert(Rc::clone(&entry.key), entry.at) {
            let shown = quoted(&entry.key);
            let message = format!("duplicate field {shown}: first given in line {}", first.line);
            return Err(Fault::new(entry.at, message));
        }
    }
    for merge in &merges {
        for other in merge.value.one_or_many() {
            for entry in other.map("`<<`")? {
                if seen.insert(Rc::clone(&entry.key), entry.at).is_none() {
                    own.push(entry.clone());
                }
            }
        }
    }
    Ok(own)
}
