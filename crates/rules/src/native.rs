//! Reads rules in Sluicegate's own format.

mod conditions;
mod settings;

pub(crate) use self::settings::on_error;
use self::{
    conditions::conditions,
    settings::{overrides, settings},
};
use smallvec::{SmallVec, smallvec};

use crate::{
    attribute::Attribute,
    builder::{RuleSetBuilder, check_name},
    error::{Fault, quoted},
    key::KeyPart,
    prefix_index::Bytes,
    quota::Quota,
    rule::{Level, Rule, Settings, Treatment},
    tree::{Fields, Kind, Node},
};

/// Maximum number of parts of a key.
const MAX_PARTS: usize = 16;
/// Maximum number of levels of a hierarchy.
const MAX_LEVELS: usize = 8;

/// Fields that a rule with `quota` cannot have, and why.
const NOT_OF_QUOTAS: [&str; 10] = [
    "levels",
    "spread",
    "hold_id",
    "lease",
    "unlimited",
    "block",
    "cost",
    "shadow",
    "on_error",
    "stop",
];
const QUOTA_FIELDS: &str = "expected only `match`, `key`, `state`, `policy` and `overrides`, because Envoy enforces the limit \
                            itself";

type Levels = SmallVec<[Level; 1]>;

pub(crate) fn read(node: &Node, builder: &mut RuleSetBuilder) -> Result<Rule, Fault> {
    let mut fields = Fields::of(node, "a rule")?;
    let rule_name = named(fields.require("name", "a name such as `api`")?, "rule")?;
    let conditions = fields.read("match", |it| conditions(it, builder))?.unwrap_or_default();
    let hold_id = fields.read("hold_id", |it| hold_id(it, builder))?;
    builder.holds = hold_id.is_some();
    let settings = settings(&mut fields, builder)?;
    let stop = fields.boolean("stop")?.unwrap_or(false);
    let spread = fields.boolean("spread")?.unwrap_or(false);
    let state = fields.read("state", |it| named(it, "state"))?.unwrap_or(rule_name);
    let key = fields.take("key");
    let levels_node = fields.take("levels");
    if spread && levels_node.is_none() {
        let at = fields.position_of("spread");
        return Err(Fault::new(at, "invalid spread `true` without `levels`: expected both"));
    }
    let overrides = fields.read("overrides", |it| overrides(it, builder))?.flatten();
    let quota = fields.read("quota", Quota::read)?.flatten();
    if quota.is_some()
        && let Some((name, node)) =
            NOT_OF_QUOTAS.into_iter().find_map(|name| Some((name, fields.take(name)?)))
    {
        return Err(node.fault(format!("invalid `{name}` beside `quota`: {QUOTA_FIELDS}")));
    }
    fields.finish()?;

    let mut levels = match (levels_node, key) {
        (Some(levels), None) => {
            if hold_id.is_some() {
                return Err(
                    levels.fault("invalid `levels` beside `hold_id`: expected one `policy`")
                );
            }
            if settings.policy.is_some() {
                return Err(
                    levels.fault("invalid `policy` beside `levels`: expected it in each level")
                );
            }
            read_levels(levels, state, spread, builder)?
        }
        (Some(_), Some(key)) => {
            return Err(key.fault("invalid `key` beside `levels`: expected one of them"));
        }
        (None, key) => {
            let parts = key.map(|it| parts(it, builder)).transpose()?.unwrap_or_default();
            smallvec![Level {
                name: None,
                prefix: Bytes::from_vec(format!("rule:{state}").into_bytes()),
                shared: None,
                has_empty_key: key.is_some() && parts.is_empty(),
                parts,
                policy: None,
                overrides: None,
            }]
        }
    };
    for part in levels.iter_mut().flat_map(|level| &mut level.parts) {
        part.ignore(conditions.path_options());
    }
    let excepted = overrides.as_ref().map_or(&[][..], |it| &it.settings);
    check_policies(node, &settings, excepted, &levels)?;
    let in_key = levels.iter().flat_map(|level| &level.parts).filter_map(KeyPart::attribute);
    let used = conditions.0.iter().map(|it| &it.attribute).chain(in_key).chain(&hold_id);
    let uses_descriptors = used.into_iter().any(Attribute::is_of_envoy);
    let captures: Vec<&str> = conditions.patterns().flat_map(|it| it.captures()).collect();
    for part in levels.iter().flat_map(|level| &level.parts) {
        if let Some(Attribute::Capture(name)) = part.attribute()
            && !captures.contains(&&**name)
        {
            let message = format!("expected a path with `{{{name}}}` in `match`");
            return Err(node.fault(format!("invalid key part `path.{name}`: {message}")));
        }
    }
    if let Some(quota) = quota {
        check_quota(node, quota, builder, &settings, excepted)?;
        if !uses_descriptors {
            let message = "expected the domain or an entry of a descriptor in `match` or `key`, because it applies to buckets \
                           of Envoy";
            return Err(node.fault(format!("invalid rule with `quota`: {message}")));
        }
    }
    let limits = |settings: &Settings| settings.treatment.unwrap_or_default() == Treatment::Limit;
    if !limits(&settings) && !excepted.iter().any(|it| it.treatment == Some(Treatment::Limit)) {
        levels.clear();
    }
    Ok(Rule {
        name: rule_name.into(),
        source: 0, // `RuleSetBuilder::add` sets it.
        line: node.at.line,
        conditions,
        settings,
        overrides,
        levels,
        hold_id,
        quota,
        stop,
        uses_descriptors,
        envoy: None,
    })
}

/// Checks that the policies of a rule with `quota` can be divided, and that its overrides have nothing but policies.
fn check_quota(
    node: &Node,
    quota: Quota,
    builder: &RuleSetBuilder,
    settings: &Settings,
    excepted: &[Settings],
) -> Result<(), Fault> {
    for settings in excepted {
        let Settings { treatment, policy: _, cost, shadow, on_error } = settings;
        let is_limit = matches!(treatment, None | Some(Treatment::Limit));
        if !is_limit || cost.is_some() || shadow.is_some() || on_error.is_some() {
            return Err(node.fault("invalid override beside `quota`: expected only `policy`"));
        }
    }
    let policies = [settings].into_iter().chain(excepted).filter_map(|it| it.policy);
    // A policy that is invalid has no index, and its error is recorded.
    for policy in policies.filter_map(|index| builder.policy_at(index)) {
        quota.terms(policy).map_err(|message| node.fault(message))?;
    }
    Ok(())
}

/// Checks that everything that limits has a policy, and that a hierarchy has its policies in its levels.
fn check_policies(
    node: &Node,
    settings: &Settings,
    excepted: &[Settings],
    levels: &[Level],
) -> Result<(), Fault> {
    let hierarchy = levels.iter().any(|level| level.name.is_some());
    if hierarchy && excepted.iter().any(|it| it.policy.is_some()) {
        let message = "invalid override with a `policy` beside `levels`: expected it in `overrides` of a level";
        return Err(node.fault(message));
    }
    let limited = settings.treatment.unwrap_or_default() == Treatment::Limit;
    if limited && settings.policy.is_none() && levels.iter().any(|level| level.policy.is_none()) {
        return Err(node.fault(
            "missing field `policy` in a rule: expected it, `unlimited: true` or `block: true`",
        ));
    }
    Ok(())
}

fn read_levels(
    node: &Node,
    state: &str,
    spread: bool,
    builder: &mut RuleSetBuilder,
) -> Result<Levels, Fault> {
    let items = node.list("levels")?;
    if !(1..=MAX_LEVELS).contains(&items.len()) {
        let count = items.len();
        return Err(
            node.fault(format!("invalid number of levels `{count}`: expected 1 to {MAX_LEVELS}"))
        );
    }
    let mut levels = Levels::new();
    for item in items {
        let mut fields = Fields::of(item, "a level")?;
        let name_node = fields.require("name", "a name such as `user`")?;
        let name = named(name_node, "level")?;
        if levels.iter().any(|level| level.name.as_deref() == Some(name)) {
            return Err(name_node
                .fault(format!("duplicate level {}: expected each name once", quoted(name))));
        }
        let parts = fields.read("key", |it| parts(it, builder))?;
        let has_empty_key = parts.as_ref().is_some_and(SmallVec::is_empty);
        let parts = parts.unwrap_or_default();
        let policy = fields.require("policy", "a policy such as `gcra:30/1m`")?;
        let policy = builder.policy(policy)?;
        let policy = builder.lease(&mut fields, Some(policy))?.unwrap_or(policy);
        let overrides = fields.read("overrides", |it| overrides(it, builder))?.flatten();
        if overrides
            .iter()
            .flat_map(|it| &it.settings)
            .any(|it| it.cost.is_some() || it.shadow.is_some() || it.on_error.is_some())
        {
            return Err(item.fault(
                "invalid override of a level: expected only `policy`, `unlimited` or `block`; set \
                 `cost`, `shadow` and `on_error` in `overrides` of the rule",
            ));
        }
        fields.finish()?;
        levels.push(Level {
            name: Some(name.into()),
            prefix: Bytes::new(),
            shared: None,
            parts,
            has_empty_key,
            policy: Some(policy),
            overrides,
        });
    }
    // A cluster keeps keys with the same hash tag on one node: the tag contains the parts that all levels share.
    let first = &levels[0].parts;
    let same = |level: &Level| level.parts.iter().zip(first).take_while(|(a, b)| a == b).count();
    let shared = levels.iter().map(same).min().unwrap_or(0);
    for level in &mut levels {
        let name = level.name.as_deref().unwrap_or_default();
        if spread {
            level.prefix = Bytes::from_vec(format!("rule:{state}:{name}").into_bytes());
        } else {
            level.shared = Some((format!("rule:{state}").into_bytes().into(), shared));
            level.prefix = Bytes::from_vec(format!(":{name}").into_bytes());
        }
    }
    Ok(levels)
}

fn parts(node: &Node, builder: &mut RuleSetBuilder) -> Result<SmallVec<[KeyPart; 1]>, Fault> {
    let items = node.one_or_many();
    if items.len() > MAX_PARTS {
        return Err(node
            .fault(format!("invalid key of {} parts: expected at most {MAX_PARTS}", items.len())));
    }
    let mut parts = SmallVec::with_capacity(items.len());
    for item in items {
        let Kind::Scalar { text, .. } = &item.kind else {
            return Err(item.expected("key part", "a string such as `header.x-api-key`"));
        };
        let part = KeyPart::new(text).map_err(|message| item.fault(message))?;
        if let Some(attribute) = part.attribute() {
            builder.uses(attribute, item)?;
        }
        parts.push(part);
    }
    Ok(parts)
}

/// The attribute with the id of a hold: an entry of a descriptor, because only Envoy reports the end of a request.
fn hold_id(node: &Node, builder: &mut RuleSetBuilder) -> Result<Attribute, Fault> {
    let text = node.text("hold_id")?;
    let attribute = Attribute::named(text).filter(|it| matches!(it, Attribute::Descriptor(_)));
    let attribute = attribute.ok_or_else(|| {
        let expected = "expected an entry of a descriptor, such as `descriptor.hold`";
        node.fault(format!("invalid hold_id {}: {expected}", quoted(text)))
    })?;
    builder.uses(&attribute, node)?;
    Ok(attribute)
}

fn named<'n>(node: &'n Node, what: &str) -> Result<&'n str, Fault> {
    let text = node.text(&format!("name of a {what}"))?;
    check_name(text, what).map_err(|message| node.fault(message))?;
    Ok(text)
}
