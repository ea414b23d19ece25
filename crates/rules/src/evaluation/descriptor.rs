//! Outcomes of Envoy's descriptors, and of a request with several of them.

use super::RuleOutcome;
use crate::rule::{Match, Treatment};

/// How a denial counts in the response to Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvoyMode {
    /// The request is over its limit.
    Enforced,
    /// It is counted only.
    Shadow,
    /// The request is over its limit if all its limits in this mode deny it.
    Quota,
}

impl EnvoyMode {
    /// The priority with which a limit in this mode represents a descriptor or a request, lowest first: enforced
    /// limits that deny, limits in quota mode that deny, all others.
    #[must_use]
    pub const fn rank(self, allowed: bool) -> u8 {
        match self {
            Self::Enforced if !allowed => 0,
            Self::Quota if !allowed => 1,
            Self::Enforced | Self::Quota | Self::Shadow => 2,
        }
    }
}

impl Match<'_> {
    /// How a denial by this match counts.
    #[must_use]
    pub fn envoy_mode(&self) -> EnvoyMode {
        if self.shadow {
            EnvoyMode::Shadow
        } else if self.rule.envoy().is_some_and(|it| it.quota_mode) {
            EnvoyMode::Quota
        } else {
            EnvoyMode::Enforced
        }
    }
}

/// The limit or block that represents a descriptor in the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// Index of the match.
    pub found: usize,
    /// How a denial counts.
    pub mode: EnvoyMode,
    /// Whether the match allows the request.
    pub allowed: bool,
    /// Requests of cost 1 that would still pass; 0 for a block.
    pub remaining: u32,
}

impl DescriptorLimit {
    /// The [rank of its mode](EnvoyMode::rank), then the least remaining.
    #[must_use]
    pub const fn rank(&self) -> (u8, u32) {
        (self.mode.rank(self.allowed), self.remaining)
    }
}

impl RuleOutcome {
    /// The match with the lowest [`rank`](DescriptorLimit::rank), of equals the first; `None` if no match limits the
    /// descriptor. `matches` are those that were evaluated.
    #[must_use]
    pub fn descriptor_limit(&self, matches: &[Match<'_>]) -> Option<DescriptorLimit> {
        let limits = matches.iter().zip(&self.matches).enumerate();
        let limits = limits.filter_map(|(index, (found, outcome))| {
            let remaining = match found.treatment {
                Treatment::Limit => outcome.decision?.remaining,
                Treatment::Block => 0,
                Treatment::Unlimited => return None,
            };
            let (mode, allowed) = (found.envoy_mode(), outcome.allowed);
            Some(DescriptorLimit { found: index, mode, allowed, remaining })
        });
        limits.min_by_key(DescriptorLimit::rank)
    }
}

/// Whether a request is over its limit, given the mode of each descriptor's limit, and whether it allows the request:
/// an enforced limit denies it, or all limits in quota mode do.
pub fn is_over_limit(limits: impl Iterator<Item = (EnvoyMode, bool)>) -> bool {
    let (mut quotas, mut denied_quotas) = (0, 0);
    for (mode, allowed) in limits {
        match mode {
            EnvoyMode::Enforced if !allowed => return true,
            EnvoyMode::Enforced | EnvoyMode::Shadow => {}
            EnvoyMode::Quota => {
                quotas += 1;
                denied_quotas += usize::from(!allowed);
            }
        }
    }
    quotas > 0 && denied_quotas == quotas
}

#[cfg(test)]
mod tests {
    use super::{EnvoyMode::*, *};

    #[test]
    fn rank_enforced_denial_is_before_quota_denial() {
        let limits = [
            (Shadow, false, 0),
            (Enforced, true, 1),
            (Quota, true, 0),
            (Quota, false, 0),
            (Enforced, false, 3),
            (Enforced, false, 0),
        ];
        let limits = limits.map(|(mode, allowed, remaining)| DescriptorLimit {
            found: 0,
            mode,
            allowed,
            remaining,
        });
        let mut ranked = limits;
        ranked.sort_by_key(DescriptorLimit::rank);
        let [shadow, allowed, quota_allowed, quota, enforced_with_rest, enforced] = limits;
        assert_eq!(ranked, [enforced, enforced_with_rest, quota, shadow, quota_allowed, allowed]);
    }

    #[test]
    fn is_over_limit_quotas_deny_only_together() {
        for (limits, expected) in [
            (&[][..], false),
            (&[(Enforced, true), (Shadow, false)], false),
            (&[(Enforced, true), (Enforced, false)], true),
            (&[(Quota, false)], true),
            (&[(Quota, false), (Quota, true)], false),
            (&[(Quota, false), (Quota, false), (Enforced, true), (Shadow, true)], true),
            (&[(Quota, true), (Enforced, false)], true),
        ] {
            assert_eq!(is_over_limit(limits.iter().copied()), expected, "{limits:?}");
        }
    }
}
