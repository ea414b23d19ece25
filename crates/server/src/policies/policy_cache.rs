//! Cache of policies by their text or name, so that a policy is parsed once and not with every request. Each worker has
//! its own.
//!
//! Requests of a batch store a [`PolicyId`] rather than a [`PreparedPolicy`], whose reference count all workers share.
//! A policy that is replaced in the meantime is kept until [`PolicyCache::evict`].

use std::{cell::OnceCell, rc::Rc, sync::Arc};

use arc_swap::Guard;
use sluicegate_commands::{CommandError, PolicyText, PolicyTextCache, PolicyTextKey};
use sluicegate_core::{Policy, PreparedPolicy, reached};
use sluicegate_headers::RateLimitHeaders;

use crate::policies::rule_store::{RuleSnapshot, RuleStore};

/// Name of a policy that a request gives by its text.
const NAME: &str = "default";

/// A policy that was found, valid until [`PolicyCache::evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyId(
    /// Twice its index, plus 1 if a decision may take long because the state of a key grows.
    usize,
);

impl PolicyId {
    /// Whether a decision under the policy may take long.
    #[inline]
    pub(crate) const fn is_heavy(self) -> bool {
        self.0 & 1 == 1
    }

    #[inline]
    const fn index(self) -> usize {
        self.0 >> 1
    }
}

/// The policies of one worker.
#[derive(Debug, Default)]
pub(crate) struct PolicyCache {
    cache: PolicyTextCache<PolicyId>,
    policies: Vec<Option<CachedPolicy>>,
    /// Free indexes of `policies`.
    free: Vec<usize>,
    /// Indexes of policies that are no longer found, but that requests of a batch may still use.
    replaced: Vec<usize>,
    /// The version of the rules that names refer to: one for all requests of a batch.
    version: Option<Guard<Arc<RuleSnapshot>>>,
    /// Number of evictions: policies that were found stay valid while it does not change.
    pub(crate) epoch: u64,
}

/// A policy with its rate limit headers, built on first use.
#[derive(Debug)]
struct CachedPolicy {
    policy: PreparedPolicy,
    /// Its name in the rules, if a request used that.
    name: Option<Box<str>>,
    headers: OnceCell<Rc<RateLimitHeaders>>,
}

/// A policy that stays valid after [`PolicyCache::evict`], with its rate limit headers.
pub(crate) type PinnedPolicy = (PreparedPolicy, Rc<RateLimitHeaders>);

/// The error for the name of a policy in the active rules that has no `@`.
#[cold]
fn without_at(text: PolicyText<'_>, rules: &RuleStore) -> Option<CommandError> {
    let PolicyText::Text(name) = text else { return None };
    rules.current().policy(name)?;
    Some(CommandError::NameWithoutAt(String::from_utf8_lossy(name).into_owned()))
}

impl PolicyCache {
    /// The policy with this text, or with this name (`@name`) in the active rules. `prepare` is called for a policy
    /// that is not cached.
    ///
    /// # Errors
    /// The text is invalid, or the name is unknown.
    #[inline]
    pub(crate) fn find(
        &mut self,
        text: PolicyText<'_>,
        rules: &RuleStore,
        prepare: impl Fn(&Policy) -> PreparedPolicy,
    ) -> Result<PolicyId, CommandError> {
        match text.name() {
            None => {
                let found = self.find_key(text.into(), None, || match text.parse() {
                    Ok(policy) => Ok(prepare(&policy)),
                    Err(error) => Err(without_at(text, rules).unwrap_or(error)),
                });
                debug_assert!(
                    found.as_ref().ok().is_none_or(|&id| {
                        text.parse().is_ok_and(|policy| policy == *self.get(id).policy())
                    }),
                    "a policy of another text is found"
                );
                found
            }
            Some(name) => self.find_named(name, rules, prepare),
        }
    }

    fn find_named(
        &mut self,
        name: &[u8],
        rules: &RuleStore,
        prepare: impl Fn(&Policy) -> PreparedPolicy,
    ) -> Result<PolicyId, CommandError> {
        let snapshot = self.version.take().unwrap_or_else(|| rules.current());
        // Another version may have another policy of that name.
        let version = snapshot.number.to_le_bytes();
        let found = self.find_key(PolicyTextKey::parts([b"@", name, &version]), Some(name), || {
            let unknown = || CommandError::no_policy(name, snapshot.similar_policy(name));
            snapshot.policy(name).map(prepare).ok_or_else(unknown)
        });
        debug_assert!(
            found
                .as_ref()
                .ok()
                .is_none_or(|&id| snapshot.policy(name) == Some(self.get(id).policy())),
            "a policy of another version of the rules is found"
        );
        self.version = Some(snapshot);
        found
    }

    #[inline]
    fn find_key(
        &mut self,
        key: PolicyTextKey<'_>,
        name: Option<&[u8]>,
        make: impl FnOnce() -> Result<PreparedPolicy, CommandError>,
    ) -> Result<PolicyId, CommandError> {
        self.cache.get(key).or_else(|miss| {
            let id = self.add(make()?, name);
            let replaced = self.cache.insert(miss, key, id);
            reached!(CachedPolicyIsReplaced if replaced.is_some());
            self.replaced.extend(replaced.map(PolicyId::index));
            Ok(id)
        })
    }

    #[cold]
    fn add(&mut self, policy: PreparedPolicy, name: Option<&[u8]>) -> PolicyId {
        let index = self.free.pop().unwrap_or(self.policies.len());
        if index == self.policies.len() {
            self.policies.push(None);
        }
        debug_assert!(self.policies[index].is_none(), "a policy in use is replaced");
        let name = name.map(|name| String::from_utf8_lossy(name).into());
        let heavy = usize::from(policy.policy().grows());
        self.policies[index] = Some(CachedPolicy { policy, name, headers: OnceCell::new() });
        PolicyId(index << 1 | heavy)
    }

    /// The policy that was found.
    #[inline]
    pub(crate) fn get(&self, id: PolicyId) -> &PreparedPolicy {
        &self.cached(id).policy
    }

    /// The rate limit headers of responses under this policy.
    #[inline]
    pub(crate) fn headers(&self, id: PolicyId) -> &Rc<RateLimitHeaders> {
        let cached = self.cached(id);
        let name = cached.name.as_deref().unwrap_or(NAME);
        cached.headers.get_or_init(|| Rc::new(RateLimitHeaders::new(name, cached.policy.policy())))
    }

    /// Policies that were found, with their headers, for responses about the policies that were charged even if the rules
    /// change before they are sent. It drops the policies that were replaced.
    pub(crate) fn pin_all(
        &mut self,
        found: impl IntoIterator<Item = PolicyId>,
    ) -> Vec<PinnedPolicy> {
        let pinned = found.into_iter().map(|id| self.pinned(id)).collect();
        self.evict();
        pinned
    }

    /// Like [`pin_all`](Self::pin_all), for one policy.
    pub(crate) fn pin(&mut self, id: PolicyId) -> PinnedPolicy {
        let pinned = self.pinned(id);
        self.evict();
        pinned
    }

    fn pinned(&self, id: PolicyId) -> PinnedPolicy {
        (self.get(id).clone(), Rc::clone(self.headers(id)))
    }

    #[inline]
    fn cached(&self, id: PolicyId) -> &CachedPolicy {
        let cached = self.policies[id.index()].as_ref();
        let cached = cached.expect("a policy that was found is kept until `evict`");
        debug_assert_eq!(cached.policy.policy().grows(), id.is_heavy(), "an id of another policy");
        cached
    }

    /// Drops the policies that were replaced. No request uses a policy that was found any more, unless it compares the
    /// [`epoch`](Self#structfield.epoch).
    #[inline]
    pub(crate) fn evict(&mut self) {
        if self.version.is_none() && self.replaced.is_empty() {
            return;
        }
        // A name may refer to another policy from now on.
        self.version = None;
        self.epoch += 1;
        for index in self.replaced.drain(..) {
            debug_assert!(self.policies[index].is_some(), "a policy is replaced twice");
            self.policies[index] = None;
            self.free.push(index);
        }
        debug_assert_eq!(
            self.free.len(),
            self.policies.iter().filter(|it| it.is_none()).count(),
            "the free indexes are those without a policy"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Looks up `text`. Returns whether it was cached, and its policy.
    fn look_up(cache: &mut PolicyCache, text: PolicyText<'_>) -> (bool, PolicyId) {
        let hit = Cell::new(true);
        let found = cache.find(text, &RuleStore::default(), |policy| {
            hit.set(false);
            PreparedPolicy::new(policy)
        });
        let found = found.unwrap();
        assert_eq!(cache.get(found).policy(), &text.parse().unwrap());
        (hit.get(), found)
    }

    #[test]
    fn policy_text_repeated_is_parsed_once() {
        let cache = &mut PolicyCache::default();
        for text in [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ] {
            let first = look_up(cache, text);
            cache.evict();
            assert_eq!((first.0, look_up(cache, text)), (false, (true, first.1)), "{text:?}");
        }
        let text = PolicyText::Text(b"x");
        assert!(cache.find(text, &RuleStore::default(), PreparedPolicy::new).is_err());
    }

    #[test]
    fn policies_of_invented_texts_are_bounded() {
        let cache = &mut PolicyCache::default();
        let first = look_up(cache, PolicyText::Text(b"gcra:1/1h")).1;
        for round in 0..20 {
            for invented in 0..500 {
                let text = format!("gcra:{}/1m", 1 + round * 500 + invented);
                look_up(cache, PolicyText::Text(text.as_bytes()));
            }
            // The first policy is valid until `evict`.
            if round == 0 {
                assert_eq!(cache.get(first).policy(), &"gcra:1/1h".parse::<Policy>().unwrap());
            }
            cache.evict();
        }
        assert!(cache.policies.len() <= 1024 + 501, "{}", cache.policies.len());
    }
}
