//! Parses TOML into a tree.

use std::rc::Rc;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    error::{Fault, Position, quoted},
    tree::{Entry, Kind, MAX_DEPTH, Node, NodeCount, too_deep},
};

/// Parses `text`. `moved` converts positions in it to those in errors.
pub(crate) fn parse(
    text: &str,
    count: &mut NodeCount,
    moved: impl Fn(Position) -> Position,
) -> Result<Node, Fault> {
    let starts = text.match_indices('\n').map(|(at, _)| at + 1);
    let lines = std::iter::once(0).chain(starts).collect();
    let line_starts = LineStarts { text, lines, moved };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        Fault::new(line_starts.at(offset), format!("invalid TOML: {}", error.message()))
    })?;
    let mut reader = Reader { line_starts, count };
    let at = reader.line_starts.at(0);
    let entries = reader.table(table.get_ref(), at, 0)?;
    Ok(Node { at, kind: Kind::Map(entries) })
}

/// Starts of all lines, to find the position of an offset by binary search.
struct LineStarts<'t, F> {
    text: &'t str,
    lines: Vec<usize>,
    moved: F,
}

impl<F: Fn(Position) -> Position> LineStarts<'_, F> {
    fn at(&self, offset: usize) -> Position {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let before = self.text.get(self.lines[line - 1]..offset).unwrap_or_default();
        (self.moved)(Position { line, column: 1 + before.chars().count() })
    }
}

struct Reader<'t, 'c, F> {
    line_starts: LineStarts<'t, F>,
    count: &'c mut NodeCount,
}

impl<F: Fn(Position) -> Position> Reader<'_, '_, F> {
    fn table(
        &mut self,
        table: &DeTable<'_>,
        at: Position,
        depth: usize,
    ) -> Result<Rc<[Entry]>, Fault> {
        self.count(at, depth)?;
        // The table is sorted by key, but rules apply in file order.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let read = entries.into_iter().map(|(key, value)| {
            let at = self.line_starts.at(key.span().start);
            Ok(Entry { at, key: (&**key.get_ref()).into(), value: self.value(value, depth + 1)? })
        });
        read.collect()
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Fault> {
        let at = self.line_starts.at(value.span().start);
        self.count(at, depth)?;
        let scalar = |text: &str, plain| Kind::Scalar { text: text.into(), plain };
        let kind = match value.get_ref() {
            DeValue::String(text) => scalar(text, false),
            DeValue::Integer(number) if number.radix() == 10 => scalar(number.as_str(), true),
            DeValue::Integer(_) => {
                let shown = quoted(self.line_starts.text.get(value.span()).unwrap_or_default());
                return Err(Fault::new(
                    at,
                    format!("invalid number {shown}: expected decimal digits"),
                ));
            }
            DeValue::Float(number) => scalar(number.as_str(), true),
            DeValue::Boolean(truth) => scalar(if *truth { "true" } else { "false" }, true),
            DeValue::Datetime(time) => scalar(&time.to_string(), true),
            DeValue::Array(items) => {
                let items = items.iter().map(|item| self.value(item, depth + 1));
                Kind::List(items.collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => Kind::Map(self.table(table, at, depth)?),
        };
        Ok(Node { at, kind })
    }

    fn count(&mut self, at: Position, depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.count.add(1, at)
    }
}
