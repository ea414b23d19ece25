//! A rule, compiled: to which requests it applies, and what it does with them.

use std::{borrow::Cow, sync::Arc};

use sluicegate_core::Policy;
use smallvec::SmallVec;

use sluicegate_headers::PathOptions;

use crate::{
    attribute::Attribute,
    condition::Conditions,
    envoy::{EnvoyLimit, Wire},
    index::Index,
    key::KeyPart,
    prefix_index::Bytes,
    request::Request,
};

/// What is done with a request that a rule applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// Decided by policies.
    #[default]
    Limit,
    /// Let through, and not counted.
    Unlimited,
    /// Denied, and not counted.
    Block,
}

/// What is answered where no decision can be made, because the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Let it through.
    Allow,
    /// Deny it.
    Deny,
    /// Decide in this process, under `part` of `whole` of the policy.
    Local {
        /// At least 1.
        part: u32,
        /// At least `part`.
        whole: u32,
    },
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always so many units.
    Units(u32),
    /// The whole number that an attribute gives.
    Of {
        /// The attribute.
        attribute: Attribute,
        /// Lower bound: a smaller number costs this.
        min: u32,
        /// Cost where the attribute is absent or is not a whole number; at least `min`.
        default: u32,
    },
}

/// What a rule, or an override of it, says of those requests that it is about. `None` where it says
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) treatment: Option<Treatment>,
    pub(crate) policy: Option<usize>,
    pub(crate) cost: Option<Cost>,
    pub(crate) shadow: Option<bool>,
    pub(crate) on_error: Option<OnError>,
}

/// Exceptions: of those that hold for a request, the first written is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) index: Index,
    pub(crate) conditions: Vec<Conditions>,
    pub(crate) settings: Vec<Settings>,
}

impl Overrides {
    /// `None` for no exceptions.
    pub(crate) fn of(items: Vec<(Conditions, Settings)>) -> Option<Box<Self>> {
        if items.is_empty() {
            return None;
        }
        let (conditions, settings): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        Some(Box::new(Self { index: Index::of(conditions.iter()), conditions, settings }))
    }

    fn find(&self, request: &Request<'_>) -> Option<&Settings> {
        let found = self.index.find(request).into_iter().filter_map(|at| usize::try_from(at).ok());
        let mut held = found.filter(|at| self.conditions[*at].hold(request, self.index.known(*at)));
        held.next().map(|at| &self.settings[at])
    }
}

/// One key of a rule, with its policy. A rule has several where it is a hierarchy.
#[derive(Clone, Debug)]
pub struct Level {
    pub(crate) name: Option<Box<str>>,
    /// What its keys begin with.
    pub(crate) prefix: Bytes,
    /// How many of the first parts stand before the prefix, in braces, with the parts before it.
    pub(crate) shared: Option<(Box<[u8]>, usize)>,
    pub(crate) parts: SmallVec<[KeyPart; 1]>,
    pub(crate) policy: Option<usize>,
    pub(crate) overrides: Option<Box<Overrides>>,
}

impl Level {
    /// Its name, where the rule has more than one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What its keys are built from.
    #[must_use]
    pub fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    fn key(&self, request: &Request<'_>, conditions: &Conditions) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(48);
        let mut parts = self.parts.iter();
        let write = |part: &KeyPart, key: &mut Vec<u8>| {
            let path =
                if part.is_capture() { conditions.path_options() } else { PathOptions::default() };
            let path = request.loose_path(path);
            part.write(request, |name| conditions.capture(&path, name), key)
        };
        if let Some((before, count)) = &self.shared {
            key.push(b'{');
            key.extend_from_slice(before);
            for part in parts.by_ref().take(*count) {
                if !write(part, &mut key) {
                    return None;
                }
            }
            key.push(b'}');
        }
        key.extend_from_slice(&self.prefix);
        parts.all(|part| write(part, &mut key)).then_some(key)
    }
}

/// A rule. What is counted of it hangs on its name, never on its policies: those may change while
/// what was used stays used.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: Arc<str>,
    /// Where it stands, for people.
    pub(crate) source: usize,
    pub(crate) line: usize,
    pub(crate) conditions: Conditions,
    pub(crate) settings: Settings,
    pub(crate) overrides: Option<Box<Overrides>>,
    pub(crate) levels: SmallVec<[Level; 1]>,
    pub(crate) stop: bool,
    /// Whether it asks for a domain or an entry of a descriptor: only such are asked about Envoy's
    /// descriptors.
    pub(crate) of_entries: bool,
    pub(crate) envoy: Option<Box<EnvoyLimit>>,
}

impl Rule {
    /// Its name: unique among the rules of a set. That of a limit in envoyproxy's form is its place
    /// in the tree, `DOMAIN.KEY_VALUE.KEY`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The index of the source that it stands in.
    #[must_use]
    pub const fn source(&self) -> usize {
        self.source
    }

    /// The line of its file that it begins in.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }

    /// Its keys: one, several for a hierarchy, none where it limits nothing.
    #[must_use]
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// What envoyproxy's form says besides, of a limit that is written in it.
    #[must_use]
    pub fn envoy(&self) -> Option<&EnvoyLimit> {
        self.envoy.as_deref()
    }

    /// Whether it only counts, and never denies; an override may say otherwise.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.settings.shadow.unwrap_or(false)
    }

    /// What it does; an override may say otherwise.
    #[must_use]
    pub fn treatment(&self) -> Treatment {
        self.settings.treatment.unwrap_or_default()
    }

    /// What it does with `request`, whose conditions are known to hold. `None` where a part of a
    /// key is missing.
    pub(crate) fn match_request<'s>(
        &'s self,
        request: &Request<'_>,
        policies: &'s [Policy],
    ) -> Option<Match<'s>> {
        let over = self.overrides.as_ref().and_then(|it| it.find(request));
        let said = || over.into_iter().chain([&self.settings]);
        let treatment = said().find_map(|it| it.treatment).unwrap_or_default();
        let mut found = Match {
            rule: self,
            treatment,
            cost: said().find_map(|it| it.cost.as_ref()).map_or(1, |cost| cost.of(request)),
            shadow: said().find_map(|it| it.shadow).unwrap_or(false),
            on_error: said().find_map(|it| it.on_error),
            charges: Charges::new(),
            metric: Cow::Borrowed(&self.name),
            wire: None,
        };
        if treatment != Treatment::Limit {
            return Some(found);
        }
        for level in &self.levels {
            let key = level.key(request, &self.conditions)?;
            let own = level.overrides.as_ref().and_then(|it| it.find(request));
            match own.and_then(|it| it.treatment) {
                Some(Treatment::Unlimited) => continue,
                Some(Treatment::Block) => {
                    found.charges.clear();
                    found.treatment = Treatment::Block;
                    return Some(found);
                }
                Some(Treatment::Limit) | None => {}
            }
            let policy = own.or(over).and_then(|it| it.policy);
            let index = policy.or(level.policy).or(self.settings.policy)?;
            found.charges.push(Charge {
                level: level.name(),
                key,
                policy: Cow::Borrowed(policies.get(index)?),
                index: Some(index),
            });
        }
        if found.charges.is_empty() {
            found.treatment = Treatment::Unlimited;
        }
        Some(found)
    }
}

impl Cost {
    fn of(&self, request: &Request<'_>) -> u32 {
        match self {
            Self::Units(units) => *units,
            Self::Of { attribute, min, default } => {
                let units = request.value(attribute).and_then(|value| units(&value));
                units.map_or(*default, |units| units.max(*min))
            }
        }
    }
}

/// The whole number that a client says, without a sign. One beyond the domain is its maximum, because a
/// smaller cost would admit more than the number says.
fn units(value: &[u8]) -> Option<u32> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u32, digit: &u8| sum.checked_mul(10)?.checked_add(u32::from(*digit - b'0'));
    Some(digits.iter().try_fold(0, add).unwrap_or(u32::MAX))
}

/// What is charged of a match: one, rarely more.
pub type Charges<'s> = SmallVec<[Charge<'s>; 1]>;

/// A rule that applies to a request, and what it asks for.
#[derive(Clone, Debug)]
pub struct Match<'s> {
    /// The rule.
    pub rule: &'s Rule,
    /// What is to be done.
    pub treatment: Treatment,
    /// What the request costs, in units.
    pub cost: u32,
    /// Whether a denial is counted, but not enforced.
    pub shadow: bool,
    /// What to answer where no decision can be made; what the server is set to if not said.
    pub on_error: Option<OnError>,
    /// The keys to charge, all or none of them; empty unless the treatment is
    /// [`Limit`](Treatment::Limit).
    pub charges: Charges<'s>,
    /// What it is counted under in the metrics, where [`MAX_METRIC_NAME`](crate::MAX_METRIC_NAME) bytes are told: the rule's name, and values where the rule asks for
    /// them.
    pub metric: Cow<'s, str>,
    /// What Envoy is told of the limit, where it is one of envoyproxy's form.
    pub wire: Option<Wire<'s>>,
}

impl Match<'_> {
    /// Whether it may deny the request.
    pub(crate) fn is_limiting(&self) -> bool {
        !self.shadow && self.treatment != Treatment::Unlimited
    }

    /// Whether it asks for the same as another.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let what = |it: &Self| (it.treatment, it.cost, it.shadow, it.on_error);
        let same = |(one, other): (&Charge<'_>, &Charge<'_>)| {
            one.key == other.key && one.policy == other.policy
        };
        std::ptr::eq(self.rule, other.rule)
            && what(self) == what(other)
            && self.charges.len() == other.charges.len()
            && self.charges.iter().zip(&other.charges).all(same)
    }
}

/// A key with the policy that it is charged under.
#[derive(Clone, Debug)]
pub struct Charge<'s> {
    /// The level of a hierarchy.
    pub level: Option<&'s str>,
    /// The key.
    pub key: Vec<u8>,
    /// The policy.
    pub policy: Cow<'s, Policy>,
    /// Its index in [`RuleSet::all_policies`](crate::RuleSet::all_policies); `None` for one that
    /// came with the request.
    pub index: Option<usize>,
}
