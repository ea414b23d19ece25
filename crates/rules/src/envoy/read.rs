//! Reads `domain` and `descriptors`, in the format of envoyproxy/ratelimit.

use std::rc::Rc;

use ahash::AHashMap;
use sluicegate_core::one_of;
use smallvec::SmallVec;

use super::{
    EnvoyLimit, Metadata, Unit,
    tree::{DomainTree, TreeNode, Wildcard},
};
use crate::{
    builder::RuleSetBuilder,
    condition::Conditions,
    error::{Definition, Fault, Position, quoted},
    glob::Glob,
    native::on_error,
    rule::{Rule, Settings, Treatment},
    tree::{Fields, Kind, Node, YamlVersion, expected},
};

pub(crate) fn read(
    domain: &Node,
    descriptors: Option<&Node>,
    builder: &mut RuleSetBuilder,
) -> Result<(), Fault> {
    let name = domain.text("domain")?;
    if name.is_empty() {
        return Err(
            domain.fault("invalid domain ``: expected the domain of Envoy's rate limit filter")
        );
    }
    let mut tree = match builder.domains.remove(&**name) {
        Some(tree) => tree,
        None => {
            let settings = Settings::default();
            let rule = rule(name, domain.at, settings, EnvoyLimit::default());
            let request_limits = builder.add(rule, domain)?;
            DomainTree { nodes: vec![TreeNode::default()], request_limits }
        }
    };
    if let Some(descriptors) = descriptors {
        let entries = format!("of the domain {} with", quoted(name));
        Reader { tree: &mut tree, builder }.descriptors(0, name, &entries, descriptors)?;
    }
    builder.domains.insert((**name).into(), tree);
    Ok(())
}

/// Fields of a descriptor, which are often written in its `rate_limit`, and the reverse.
const OF_DESCRIPTOR: [&str; 6] = [
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "metadata",
    "share_threshold",
];
const OF_RATE_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

struct Reader<'d> {
    tree: &'d mut DomainTree,
    builder: &'d mut RuleSetBuilder,
}

impl Reader<'_> {
    /// Reads the descriptors below the index `at`, whose rules are called `path` and apply to `entries`.
    fn descriptors(
        &mut self,
        at: usize,
        path: &str,
        entries: &str,
        list: &Node,
    ) -> Result<(), Fault> {
        for node in list.list("descriptors")? {
            let read = self.descriptor(at, path, entries, node);
            self.builder.note(read);
        }
        Ok(())
    }

    fn descriptor(
        &mut self,
        parent: usize,
        path: &str,
        above: &str,
        node: &Node,
    ) -> Result<(), Fault> {
        let mut fields = Fields::of_envoy(node, "a descriptor")?;
        let key = fields.require("key", "the key of an entry such as `user`")?.text("key")?;
        if key.is_empty() {
            return Err(node.fault("invalid key `` of a descriptor: expected a name"));
        }
        let value = fields.text("value")?.filter(|value| !value.is_empty());
        let length = path.len() + key.len() + value.map_or(0, |value| value.len());
        self.builder.uses_path(length, node)?;
        let path = match value {
            Some(value) => format!("{path}.{key}_{value}"),
            None => format!("{path}.{key}"),
        };
        let has_star = |text: &Rc<str>| text.contains('*');
        let wild = has_star(key) || value.is_some_and(has_star);
        let share = fields.boolean("share_threshold")?.unwrap_or(false);
        if share && !value.is_some_and(has_star) {
            let at = fields.position_of("share_threshold");
            return Err(Fault::new(
                at,
                "invalid share_threshold `true`: expected a `value` with `*` beside it",
            ));
        }
        let entry = match value {
            Some(value) => format!("{} = {}", quoted(key), quoted(value)),
            None => quoted(key),
        };
        let separator = if parent == 0 { "" } else { "," };
        let entries = format!("{above}{separator} {entry}");
        let (rule, value_to_metric) = self.limit(&mut fields, node.at, &path, &entries)?;
        let rule = rule.map(|rule| self.builder.add(rule, node)).transpose()?;
        let descriptors = fields.take("descriptors");
        fields.finish_beside(&OF_RATE_LIMIT, "in `rate_limit`")?;

        let new = self.tree.nodes.len();
        let above = &self.tree.nodes[parent];
        let identity = (self.tree.request_limits, parent, Rc::clone(key), value.cloned());
        let first = match value {
            _ if wild => self.builder.wildcards.get(&identity),
            Some(value) => above.exact.get(&**key).and_then(|values| values.get(&**value)),
            None => above.any.get(&**key),
        };
        if let Some(first) = first {
            let first = self.tree.nodes[*first].definition;
            return Err(node.fault(self.builder.duplicate("descriptor", &path, first)));
        }
        let above = &mut self.tree.nodes[parent];
        if wild {
            let joined = value.filter(|_| has_star(key));
            let joined = joined.map(|value| Glob::stars(&format!("{key}_{value}")));
            let value = value.map(|value| Glob::stars(value));
            above.wildcards.push(Wildcard { key: (**key).into(), value, joined, share, node: new });
            self.builder.wildcards.insert(identity, new);
        } else if let Some(value) = value {
            let values: &mut AHashMap<_, _> = above.exact.entry((**key).into()).or_default();
            values.insert((**value).into(), new);
        } else {
            above.any.insert((**key).into(), new);
        }
        let definition = Definition { source: self.builder.source, line: node.at.line };
        self.tree.nodes.push(TreeNode { rule, value_to_metric, definition, ..TreeNode::default() });
        match descriptors {
            Some(list) => self.descriptors(new, &path, &entries, list),
            None => Ok(()),
        }
    }

    /// The limit of a descriptor, if it has one, and whether its name in metrics contains the value.
    fn limit(
        &mut self,
        fields: &mut Fields<'_>,
        at: Position,
        path: &str,
        entries: &str,
    ) -> Result<(Option<Rule>, bool), Fault> {
        let rate_limit = fields.take("rate_limit");
        let shadow = fields.boolean("shadow_mode")?;
        let quota_mode = fields.boolean("quota_mode")?.unwrap_or(false);
        let detailed_metric = fields.boolean("detailed_metric")?.unwrap_or(false);
        let value_to_metric = fields.boolean("value_to_metric")?.unwrap_or(false);
        let metadata = fields.take("metadata").map(metadata);
        // These two, and `lease`, are extensions of the format.
        let policy = fields.take("policy");
        let on_error = fields.read("on_error", on_error)?;

        let mut settings = Settings { shadow, on_error, ..Settings::default() };
        let mut envoy =
            EnvoyLimit { quota_mode, detailed_metric, metadata, ..EnvoyLimit::default() };
        envoy.entries = entries.into();
        if let Some(rate_limit) = rate_limit {
            settings.treatment = Some(read_rate(rate_limit, &mut envoy)?);
        }
        if let Some(policy) = policy {
            if settings.treatment == Some(Treatment::Unlimited) {
                return Err(
                    policy.fault("invalid `policy` beside `unlimited`: expected one of them")
                );
            }
            self.builder.holds = false;
            settings.policy = Some(self.builder.policy(policy)?);
            settings.treatment = Some(Treatment::Limit);
        } else if let Some((requests, unit)) = envoy.rate {
            settings.policy =
                unit.policy(requests).map(|policy| self.builder.intern_policy(policy));
        }
        settings.policy = self.builder.lease(fields, settings.policy)?;
        if rate_limit.is_none() && policy.is_none() {
            return Ok((None, value_to_metric));
        }
        Ok((Some(rule(path, at, settings, envoy)), value_to_metric))
    }
}

/// Reads `rate_limit`.
fn read_rate(node: &Node, envoy: &mut EnvoyLimit) -> Result<Treatment, Fault> {
    let mut fields = Fields::of_envoy(node, "rate_limit")?;
    let unlimited = fields.boolean("unlimited")?.unwrap_or(false);
    let unit = fields.take("unit");
    let requests = fields.number("requests_per_unit", 0)?;
    let name = fields.text("name")?.filter(|name| !name.is_empty());
    envoy.name = name.map(|name| (**name).into());
    let replaces = fields.take("replaces");
    fields.finish_beside(&OF_DESCRIPTOR, "beside `rate_limit`")?;
    for item in replaces.map_or(Ok(&[][..]), |node| node.list("replaces"))? {
        let mut fields = Fields::of_envoy(item, "replaces")?;
        let name = fields.require("name", "the name of a limit")?.text("name")?;
        fields.finish()?;
        if name.is_empty() {
            return Err(item.fault("invalid name `` in replaces: expected the name of a limit"));
        }
        if envoy.name.as_deref() == Some(name) {
            return Err(item.fault(format!(
                "invalid name `{name}` in replaces: expected the name of another limit"
            )));
        }
        envoy.replaces.push((**name).into());
    }
    if unlimited {
        return match unit {
            Some(unit) => {
                Err(unit.fault("invalid `unit` beside `unlimited`: expected one of them"))
            }
            None => Ok(Treatment::Unlimited),
        };
    }
    let names = Unit::ALL.map(Unit::name);
    let Some(unit) = unit else {
        return Err(
            node.fault(format!("missing field `unit` in rate_limit: expected {}", one_of(&names)))
        );
    };
    let text = unit.text("unit")?;
    let found = Unit::ALL.into_iter().find(|unit| text.eq_ignore_ascii_case(unit.name()));
    let found = found.ok_or_else(|| {
        unit.fault(format!("unknown unit {}: {}", quoted(text), expected(text, &names)))
    })?;
    envoy.rate = Some((requests.unwrap_or(0), found));
    envoy.lacks_requests = requests.is_none();
    Ok(if requests.unwrap_or(0) == 0 { Treatment::Block } else { Treatment::Limit })
}

fn rule(name: &str, at: Position, settings: Settings, envoy: EnvoyLimit) -> Rule {
    Rule {
        name: name.into(),
        source: 0, // `RuleSetBuilder::add` sets it.
        line: at.line,
        conditions: Conditions::default(),
        settings,
        overrides: None,
        levels: SmallVec::new(),
        hold_id: None,
        quota: None,
        stop: false,
        uses_descriptors: false,
        envoy: Some(Box::new(envoy)),
    }
}

fn metadata(node: &Node) -> Metadata {
    match &node.kind {
        Kind::Null => Metadata::Null,
        Kind::Scalar { text, plain: true } if YamlVersion::V1_1.truth(text).is_some() => {
            Metadata::Truth(YamlVersion::V1_1.truth(text) == Some(true))
        }
        Kind::Scalar { text, plain: true } if text.parse::<f64>().is_ok_and(f64::is_finite) => {
            Metadata::Number((**text).into())
        }
        Kind::Scalar { text, .. } => Metadata::Text((**text).into()),
        Kind::List(items) => Metadata::List(items.iter().map(metadata).collect()),
        Kind::Map(entries) => Metadata::Map(
            entries.iter().map(|entry| ((*entry.key).into(), metadata(&entry.value))).collect(),
        ),
    }
}
