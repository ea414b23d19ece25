//! Rules, the requests that they match, and the keys that these are charged to.

use std::{borrow::Cow, sync::Arc};

use sluicegate_core::{OnError, Policy};
use smallvec::SmallVec;

use sluicegate_headers::PathOptions;

use crate::{
    attribute::Attribute,
    condition::Conditions,
    envoy::{EnvoyLimit, Wire},
    index::Index,
    key::KeyPart,
    prefix_index::Bytes,
    quota::Quota,
    request::Request,
};

/// The treatment of a request that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// Decides by its policies.
    #[default]
    Limit,
    /// Allows it, and charges nothing.
    Unlimited,
    /// Denies it, and charges nothing.
    Block,
}

/// Cost of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cost {
    /// A number of units.
    Units(u32),
    /// The whole number in an attribute.
    Of {
        /// The attribute.
        attribute: Attribute,
        /// Lower bound: a smaller number costs this.
        min: u32,
        /// Cost where the attribute is absent or is not a whole number; at least `min`.
        default: u32,
    },
}

/// Settings of a rule or of an override. A setting that is missing in an override is that of the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) treatment: Option<Treatment>,
    pub(crate) policy: Option<usize>,
    pub(crate) cost: Option<Cost>,
    pub(crate) shadow: Option<bool>,
    pub(crate) on_error: Option<OnError>,
}

/// Overrides of a rule or a level. Of those that match a request, the first is used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) index: Index,
    pub(crate) conditions: Vec<Conditions>,
    pub(crate) settings: Vec<Settings>,
}

impl Overrides {
    /// `None` if there are none.
    pub(crate) fn of(items: Vec<(Conditions, Settings)>) -> Option<Box<Self>> {
        if items.is_empty() {
            return None;
        }
        let (conditions, settings): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        Some(Box::new(Self { index: Index::of(conditions.iter()), conditions, settings }))
    }

    fn find(&self, request: &Request<'_>) -> Option<&Settings> {
        let found = self.index.find(request).into_iter().filter_map(|at| usize::try_from(at).ok());
        let mut matching =
            found.filter(|at| self.conditions[*at].matches_all(request, self.index.known(*at)));
        matching.next().map(|at| &self.settings[at])
    }
}

/// A key of a rule, with its policy. A hierarchy has several levels, any other rule one.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    /// Its name, if the rule is a hierarchy.
    pub(crate) name: Option<Box<str>>,
    /// Start of its keys.
    pub(crate) prefix: Bytes,
    /// Start of the hash tag that the keys of all levels share, and how many parts it contains.
    pub(crate) shared: Option<(Box<[u8]>, usize)>,
    pub(crate) parts: SmallVec<[KeyPart; 1]>,
    /// Whether its key is given as an empty list.
    pub(crate) has_empty_key: bool,
    pub(crate) policy: Option<usize>,
    pub(crate) overrides: Option<Box<Overrides>>,
}

impl Level {
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

/// A rule. Keys include its name, not its policies: a policy can change while its keys are in use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rule {
    pub(crate) name: Arc<str>,
    /// Index of its source.
    pub source: usize,
    /// First line in its source.
    pub line: usize,
    pub(crate) conditions: Conditions,
    pub(crate) settings: Settings,
    pub(crate) overrides: Option<Box<Overrides>>,
    /// Its keys: one, several for a hierarchy, none if it never limits.
    pub(crate) levels: SmallVec<[Level; 1]>,
    /// The entry of a descriptor with the id of the hold. If set, the rule holds units from the begin of a request to its end.
    pub(crate) hold_id: Option<Attribute>,
    /// If set, it applies to buckets of Envoy's quota service, and to nothing else.
    pub(crate) quota: Option<Quota>,
    pub(crate) stop: bool,
    /// Whether it uses the domain or an entry of a descriptor: only such rules apply to Envoy's descriptors.
    pub(crate) uses_descriptors: bool,
    pub(crate) envoy: Option<Box<EnvoyLimit>>,
}

impl Rule {
    /// Its name, unique in a set. A limit in the format of envoyproxy/ratelimit is named by its position in the tree:
    /// `DOMAIN.KEY_VALUE.KEY`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Settings of a limit in the format of envoyproxy/ratelimit.
    #[must_use]
    pub fn envoy(&self) -> Option<&EnvoyLimit> {
        self.envoy.as_deref()
    }

    /// Whether it is counted but not enforced, unless an override changes that.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.settings.shadow.unwrap_or(false)
    }

    /// Its treatment of requests, unless an override changes that.
    #[must_use]
    pub fn treatment(&self) -> Treatment {
        self.settings.treatment.unwrap_or_default()
    }

    /// The match with `request`, which its conditions match. `None` if the request lacks a part of a key.
    pub(crate) fn match_request<'s>(
        &'s self,
        request: &Request<'_>,
        policies: &'s [Policy],
    ) -> Option<Match<'s>> {
        let over = self.overrides.as_ref().and_then(|it| it.find(request));
        let settings = || over.into_iter().chain([&self.settings]);
        let treatment = settings().find_map(|it| it.treatment).unwrap_or_default();
        let mut found = Match {
            rule: self,
            treatment,
            cost: settings()
                .find_map(|it| it.cost.as_ref())
                .map_or(1, |cost| cost.cost_for(request)),
            shadow: settings().find_map(|it| it.shadow).unwrap_or(false),
            on_error: settings().find_map(|it| it.on_error),
            hold_id: None,
            charges: Charges::new(),
            metric: Cow::Borrowed(&self.name),
            wire: None,
        };
        if treatment != Treatment::Limit {
            return Some(found);
        }
        if let Some(attribute) = &self.hold_id {
            found.hold_id = Some(request.value(attribute)?.into_owned());
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
                level: level.name.as_deref(),
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
    fn cost_for(&self, request: &Request<'_>) -> u32 {
        match self {
            Self::Units(units) => *units,
            Self::Of { attribute, min, default } => {
                let units = request.value(attribute).and_then(|value| units(&value));
                units.map_or(*default, |units| units.max(*min))
            }
        }
    }
}

/// Parses a whole number without a sign. A number above the domain is its maximum, because a smaller cost would admit
/// more than the number.
fn units(value: &[u8]) -> Option<u32> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u32, digit: &u8| sum.checked_mul(10)?.checked_add(u32::from(*digit - b'0'));
    Some(digits.iter().try_fold(0, add).unwrap_or(u32::MAX))
}

/// Charges of a match: usually one.
pub type Charges<'s> = SmallVec<[Charge<'s>; 1]>;

/// A rule that matches a request, with its keys and costs.
#[derive(Clone, Debug)]
pub struct Match<'s> {
    /// The rule.
    pub rule: &'s Rule,
    /// The treatment of the request.
    pub treatment: Treatment,
    /// Cost of the request, in units.
    pub cost: u32,
    /// Whether a denial is counted, but not enforced.
    pub shadow: bool,
    /// The decision while the store is unavailable; `None` is the setting of the server.
    pub on_error: Option<OnError>,
    /// The id under which the units are held until the end of the request; `None`: they are taken.
    pub hold_id: Option<Vec<u8>>,
    /// The keys to charge, all or none of them; empty unless the treatment is
    /// [`Limit`](Treatment::Limit).
    pub charges: Charges<'s>,
    /// Its name in metrics, of which they keep [`MAX_METRIC_NAME`](crate::MAX_METRIC_NAME) bytes: the name of the rule,
    /// and values if the rule includes them.
    pub metric: Cow<'s, str>,
    /// The fields in the response to Envoy about a limit in the format of envoyproxy/ratelimit.
    pub wire: Option<Wire<'s>>,
}

impl Match<'_> {
    /// Whether its units are held until the end of the request.
    pub(crate) const fn holds(&self) -> bool {
        self.hold_id.is_some()
    }

    /// Whether it can deny the request.
    pub(crate) fn is_limiting(&self) -> bool {
        !self.shadow && self.treatment != Treatment::Unlimited
    }

    /// Whether it charges the same as another.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let what = |it: &Self| (it.treatment, it.cost, it.shadow, it.on_error);
        let same_hold = self.hold_id == other.hold_id;
        let same = |(one, other): (&Charge<'_>, &Charge<'_>)| {
            one.key == other.key && one.policy == other.policy
        };
        std::ptr::eq(self.rule, other.rule)
            && what(self) == what(other)
            && same_hold
            && self.charges.len() == other.charges.len()
            && self.charges.iter().zip(&other.charges).all(same)
    }
}

/// A key, and the policy under which it is charged.
#[derive(Clone, Debug)]
pub struct Charge<'s> {
    /// Name of the level, if the rule is a hierarchy.
    pub level: Option<&'s str>,
    /// The key.
    pub key: Vec<u8>,
    /// The policy.
    pub policy: Cow<'s, Policy>,
    /// Index of the policy in [`RuleSet::all_policies`](crate::RuleSet::all_policies); `None` if it came with the
    /// request.
    pub index: Option<usize>,
}
