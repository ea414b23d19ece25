//! Reads `match`, the conditions of a rule.

use std::sync::Arc;

use sluicegate_core::one_of;
use sluicegate_headers::PathOptions;

use crate::{
    attribute::{self, Attribute},
    builder::RuleSetBuilder,
    cidr_block::CidrBlock,
    condition::{Condition, Conditions, Test},
    error::{Fault, Position, quoted},
    glob::Glob,
    path::PathPattern,
    prefix_index::Bytes,
    tree::{Fields, Kind, Node, YamlVersion},
};

pub(super) fn conditions(node: &Node, builder: &mut RuleSetBuilder) -> Result<Conditions, Fault> {
    let mut all = Conditions::default();
    let mut add = |attribute, at, value: &Node| {
        let condition = condition(attribute, value, builder)?;
        let attribute = &condition.attribute;
        if all.0.iter().any(|it: &Arc<Condition>| it.attribute == *attribute) {
            let shown = quoted(&attribute.to_string());
            let message = format!("duplicate attribute {shown} in `match`: expected it once");
            return Err(Fault::new(at, message));
        }
        all.0.push(builder.share(condition));
        Ok(())
    };
    for entry in node.map("match")? {
        let unknown = |at: Position, name: &str| {
            let (shown, expected) = (quoted(name), attribute::expected(name));
            Fault::new(at, format!("unknown attribute {shown} in `match`: {expected}"))
        };
        if let Some(family) = attribute::FAMILIES.into_iter().find(|family| *entry.key == **family)
        {
            if let Kind::Scalar { text, .. } = &entry.value.kind {
                let example = format!("`{family}.{text}`");
                let expected = format!("a map of names and values, or {example} with a value");
                return Err(entry.value.expected(family, &expected));
            }
            for inner in entry.value.map(family)? {
                let attribute = Attribute::of_family(family, &inner.key)
                    .ok_or_else(|| unknown(inner.at, &format!("{family}.{}", inner.key)))?;
                add(attribute, inner.at, &inner.value)?;
            }
            continue;
        }
        let attribute = Attribute::named(&entry.key)
            .filter(|attribute| !matches!(attribute, Attribute::Capture(_)))
            .ok_or_else(|| unknown(entry.at, &entry.key))?;
        add(attribute, entry.at, &entry.value)?;
    }
    Ok(all)
}

/// Reads a condition: a value, a list of values, or a map such as `{not: ...}`.
pub(super) fn condition(
    attribute: Attribute,
    node: &Node,
    builder: &mut RuleSetBuilder,
) -> Result<Condition, Fault> {
    if attribute == Attribute::Path
        && let Kind::Map(_) = &node.kind
    {
        return path(node, builder);
    }
    builder.uses(&attribute, node)?;
    let mut condition = Condition::about(attribute);
    let Kind::Map(entries) = &node.kind else {
        condition.values(node)?;
        return Ok(condition);
    };
    let [entry] = &**entries else {
        return Err(node.fault(HOW));
    };
    match &*entry.key {
        "is" => condition.exactly(&entry.value)?,
        "not" => condition.not(&entry.value)?,
        "present" => condition.present(&entry.value)?,
        _ => return Err(Fault::new(entry.at, HOW)),
    }
    Ok(condition)
}

/// Reads a path in a map, with the differences that it ignores.
fn path(node: &Node, builder: &mut RuleSetBuilder) -> Result<Condition, Fault> {
    let mut fields = Fields::of(node, "a path")?;
    let (is, matches) = (fields.take("is"), fields.take("matches"));
    let (not, present) = (fields.take("not"), fields.take("present"));
    let options = PathOptions {
        ignore_case: choice(&mut fields, "case", ["sensitive", "insensitive"])?,
        ignore_trailing_slash: choice(&mut fields, "trailing-slash", ["strict", "ignore"])?,
        strip_parameters: choice(&mut fields, "parameters", ["keep", "strip"])?,
    };
    fields.finish()?;
    let attribute = Attribute::path(options);
    builder.uses(&attribute, node)?;
    let mut condition = Condition::about(attribute);
    match (is, matches, not, present) {
        (Some(is), None, None, None) => condition.exactly(is)?,
        (None, Some(matches), None, None) => condition.values(matches)?,
        (None, None, Some(not), None) => condition.not(not)?,
        (None, None, None, Some(present)) => condition.present(present)?,
        _ => {
            return Err(node.fault(
                "invalid path: expected one of `is: PATH` (exactly, `*` too), \
                 `matches: PATTERN`, `not: PATTERN`, `present: true` or `present: false`",
            ));
        }
    }
    Ok(condition)
}

/// Whether an option has its second value; the first is the default.
fn choice(fields: &mut Fields<'_>, name: &'static str, values: [&str; 2]) -> Result<bool, Fault> {
    let Some(node) = fields.take(name) else { return Ok(false) };
    let text = node.text(name)?;
    values.iter().position(|value| **value == **text).map(|at| at == 1).ok_or_else(|| {
        node.fault(format!("invalid {name} {}: expected {}", quoted(text), one_of(&values)))
    })
}

const HOW: &str = "invalid map as a value: expected one of `is: VALUE` (exactly, `*` too), \
                   `not: VALUE`, `present: true` or `present: false`";

impl Condition {
    fn about(attribute: Attribute) -> Self {
        Self { attribute, not: false, literals: Default::default(), tests: Vec::new() }
    }

    fn present(&mut self, node: &Node) -> Result<(), Fault> {
        self.not = !node.boolean("present", YamlVersion::V1_2)?;
        self.tests.push(Test::Present);
        Ok(())
    }

    fn not(&mut self, node: &Node) -> Result<(), Fault> {
        self.not = true;
        self.values(node)
    }

    fn values(&mut self, node: &Node) -> Result<(), Fault> {
        for item in items(node)? {
            let text = item.text("value")?;
            self.value(text).map_err(|message| item.fault(message))?;
        }
        Ok(())
    }

    fn value(&mut self, text: &str) -> Result<(), String> {
        match self.attribute {
            Attribute::Client => self.tests.push(Test::CidrBlock(CidrBlock::new(text)?)),
            Attribute::Method => {
                let fits = !text.is_empty() && text.bytes().all(|it| it.is_ascii_alphabetic());
                if !fits {
                    let expected = "expected letters such as `GET`";
                    return Err(format!("invalid method {}: {expected}", quoted(text)));
                }
                if let Some(method) = misspelt_method(text) {
                    let shown = quoted(text);
                    return Err(format!(
                        "unknown method {shown}: did you mean `{method}`? Write `{{is: {text}}}` for another"
                    ));
                }
                self.literal(text.to_ascii_uppercase().as_bytes());
            }
            Attribute::Path | Attribute::LoosePath(_) => {
                let pattern = PathPattern::new(text)?.under(self.attribute.path_options())?;
                match &pattern.literal {
                    Some(literal) => self.literal(literal.as_bytes()),
                    None => self.tests.push(Test::Path(pattern)),
                }
            }
            _ => {
                let glob = Glob::new(text);
                match glob.literal() {
                    Some(literal) => self.literal(literal),
                    None => self.tests.push(Test::Glob(glob)),
                }
            }
        }
        Ok(())
    }

    /// Adds values without wildcards.
    fn exactly(&mut self, node: &Node) -> Result<(), Fault> {
        if self.attribute == Attribute::Client {
            return self.values(node);
        }
        for item in items(node)? {
            let text = item.text("value")?;
            if matches!(self.attribute, Attribute::Path | Attribute::LoosePath(_)) {
                let options = self.attribute.path_options();
                let path = PathPattern::exactly(text).and_then(|it| it.under(options));
                let path = path.map_err(|message| item.fault(message))?;
                self.literal(path.literal.as_deref().unwrap_or_default().as_bytes());
            } else if self.attribute == Attribute::Method {
                self.literal(text.to_ascii_uppercase().as_bytes());
            } else {
                self.literal(text.as_bytes());
            }
        }
        Ok(())
    }

    fn literal(&mut self, value: &[u8]) {
        self.literals.insert(Bytes::from_slice(value));
    }
}

fn items(node: &Node) -> Result<&[Node], Fault> {
    match node.one_or_many() {
        [] => Err(node.fault("invalid empty list: expected at least one value")),
        items => Ok(items),
    }
}

/// The common method that `text` is probably a misspelling of.
fn misspelt_method(text: &str) -> Option<&'static str> {
    const METHODS: [&str; 16] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PURGE",
        "PROPFIND", "REPORT", "MKCOL", "COPY", "MOVE", "LOCK",
    ];
    if METHODS.iter().any(|method| method.eq_ignore_ascii_case(text)) {
        return None;
    }
    sluicegate_core::closest(text, &METHODS)
}
