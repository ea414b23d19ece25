//! Reads settings of rules and overrides.

use sluicegate_core::{OnError, one_of};
use smallvec::smallvec;

use super::conditions::{condition, conditions};
use crate::{
    attribute::{self, Attribute, KNOWN},
    builder::RuleSetBuilder,
    condition::Conditions,
    error::{Fault, quoted},
    rule::{Cost, Overrides, Settings, Treatment},
    tree::{Fields, Kind, Node, YamlVersion},
};

/// `policy`, `lease`, `unlimited`, `block`, `cost`, `shadow` and `on_error`.
pub(super) fn settings(
    fields: &mut Fields<'_>,
    builder: &mut RuleSetBuilder,
) -> Result<Settings, Fault> {
    let policy = fields.take("policy");
    let (unlimited, block) = (fields.boolean("unlimited")?, fields.boolean("block")?);
    let treatment = match (unlimited.unwrap_or(false), block.unwrap_or(false)) {
        (true, true) => {
            let at = fields.position_of("block");
            return Err(Fault::new(at, "invalid `block` beside `unlimited`: expected one of them"));
        }
        (true, false) => Some(Treatment::Unlimited),
        (false, true) => Some(Treatment::Block),
        (false, false) => policy.map(|_| Treatment::Limit),
    };
    if let (Some(policy), Some(Treatment::Unlimited | Treatment::Block)) = (policy, treatment) {
        return Err(
            policy.fault("invalid `policy` beside `unlimited` or `block`: expected one of them")
        );
    }
    let policy = policy.map(|node| builder.policy(node)).transpose()?;
    Ok(Settings {
        treatment,
        policy: builder.lease(fields, policy)?,
        cost: fields.read("cost", |node| cost(node, builder))?,
        shadow: fields.boolean("shadow")?,
        on_error: fields.read("on_error", on_error)?,
    })
}

fn cost(node: &Node, builder: &mut RuleSetBuilder) -> Result<Cost, Fault> {
    if let Kind::Map(_) = &node.kind {
        let mut fields = Fields::of(node, "a cost")?;
        let from = fields.require("from", "an attribute such as `header.x-tokens`")?;
        let text = from.text("from")?;
        let Some(attribute) = Attribute::named(text) else {
            let (shown, expected) = (quoted(text), attribute::expected(text));
            return Err(from.fault(format!("invalid from {shown}: {expected}")));
        };
        let min = fields.number("min", 0)?.unwrap_or(1);
        let default = fields.number("default", min)?;
        fields.finish()?;
        return cost_of(attribute, min, default, from, builder);
    }
    if let Kind::Scalar { text, .. } = &node.kind
        && let Some(attribute) = Attribute::named(text)
    {
        return cost_of(attribute, 1, None, node, builder);
    }
    let units = node.number("cost", 0, YamlVersion::V1_2).map(Cost::Units);
    let is_quoted = matches!(&node.kind, Kind::Scalar { text, plain: false } if YamlVersion::V1_2.number(text).is_some());
    if is_quoted {
        return units;
    }
    units.map_err(|_| {
        let shown = node.described();
        node.fault(format!(
            "invalid cost {shown}: expected a whole number from 0 to {}, or an attribute that gives one such as \
             `header.x-tokens`",
            u32::MAX
        ))
    })
}

/// The cost in `attribute`, which is named at `node`.
fn cost_of(
    attribute: Attribute,
    min: u32,
    default: Option<u32>,
    node: &Node,
    builder: &mut RuleSetBuilder,
) -> Result<Cost, Fault> {
    if matches!(attribute, Attribute::Capture(_)) {
        return Err(node.fault(format!("invalid cost `{attribute}`: expected {}", one_of(&KNOWN))));
    }
    builder.uses(&attribute, node)?;
    Ok(Cost::Of { attribute, min, default: default.unwrap_or(min.max(1)) })
}

pub(crate) fn on_error(node: &Node) -> Result<OnError, Fault> {
    let text = node.text("on_error")?;
    // A request is answered in any case: a rule cannot have `fail`.
    let found = text.parse().ok().filter(|it| *it != OnError::Fail);
    found.ok_or_else(|| {
        let shown = quoted(text);
        node.fault(format!(
            "invalid on_error {shown}: expected `allow`, `deny`, `local` or `local=1/4`"
        ))
    })
}

/// Reads `overrides`: each has a `match`, or the values of one attribute.
pub(super) fn overrides(
    node: &Node,
    builder: &mut RuleSetBuilder,
) -> Result<Option<Box<Overrides>>, Fault> {
    let mut all = Vec::new();
    for item in node.one_or_many() {
        let mut fields = Fields::of(item, "an override")?;
        match (fields.take("by"), fields.take("match")) {
            (Some(by), None) => {
                let name = by.text("by")?;
                let attribute = Attribute::named(name)
                    .filter(|attribute| !matches!(attribute, Attribute::Capture(_)))
                    .ok_or_else(|| {
                        let (shown, expected) = (quoted(name), attribute::expected(name));
                        by.fault(format!("unknown attribute {shown}: {expected}"))
                    })?;
                let values = fields.require("values", "a map from values to policies")?;
                for entry in values.map("values")? {
                    let value = Node {
                        at: entry.at,
                        kind: Kind::Scalar { text: entry.key.clone(), plain: false },
                    };
                    let condition = condition(attribute.clone(), &value, builder)?;
                    let conditions = Conditions(smallvec![builder.share(condition)]);
                    all.push((conditions, value_settings(&entry.value, builder)?));
                }
                fields.finish()?;
            }
            (None, Some(node)) => {
                let conditions = conditions(node, builder)?;
                all.push((conditions, settings(&mut fields, builder)?));
                fields.finish()?;
            }
            (Some(by), Some(_)) => {
                return Err(by.fault("invalid `by` beside `match`: expected one of them"));
            }
            (None, None) => {
                let expected = "expected `match`, or `by` with `values`";
                return Err(item.fault(format!("missing condition of an override: {expected}")));
            }
        }
    }
    Ok(Overrides::of(all))
}

/// The settings for one value of `by`: `unlimited`, `block`, a policy, or a map.
fn value_settings(node: &Node, builder: &mut RuleSetBuilder) -> Result<Settings, Fault> {
    let (treatment, policy) = match &node.kind {
        Kind::Map(_) => {
            let mut fields = Fields::of(node, "an override")?;
            let settings = settings(&mut fields, builder)?;
            fields.finish()?;
            return Ok(settings);
        }
        Kind::Scalar { text, .. } if **text == *"unlimited" => (Treatment::Unlimited, None),
        Kind::Scalar { text, .. } if **text == *"block" => (Treatment::Block, None),
        _ => (Treatment::Limit, Some(builder.policy(node)?)),
    };
    Ok(Settings { treatment: Some(treatment), policy, ..Settings::default() })
}
