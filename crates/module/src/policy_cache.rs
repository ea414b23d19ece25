//! Cache of policies by their text, so that a policy is parsed once and not with every request.

use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_commands::{CommandError, PolicyText, PolicyTextCache};
use sluicegate_core::Policy;

use crate::{gcra::InPlaceGcra, log::InPlaceLog, stats};

type PolicyCache = PolicyTextCache<Arc<CachedPolicy>>;

/// A policy with its fast path.
#[derive(Debug)]
pub(crate) struct CachedPolicy {
    pub(crate) policy: Policy,
    /// `None`: the core decides takes too.
    pub(crate) fast_path: Option<FastPath>,
}

/// How a take is decided in place.
#[derive(Debug)]
pub(crate) enum FastPath {
    /// Under one limit of the gcra family.
    Gcra(InPlaceGcra),
    /// Under one log of events that count once.
    Log(InPlaceLog),
}

impl CachedPolicy {
    fn new(policy: Policy) -> Self {
        let gcra = InPlaceGcra::of(&policy).map(FastPath::Gcra);
        let fast_path = gcra.or_else(|| InPlaceLog::of(&policy).map(FastPath::Log));
        Self { policy, fast_path }
    }
}

/// The policy of `text`.
#[inline]
pub(crate) fn find(text: PolicyText<'_>) -> Result<Arc<CachedPolicy>, CommandError> {
    // Never contended, because the server runs one command at a time.
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    look_up(cache.get_or_insert_default(), text)
}

/// Drops all policies.
pub(crate) fn clear() {
    *CACHE.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

static CACHE: Mutex<Option<PolicyCache>> = Mutex::new(None);

#[inline]
fn look_up(
    cache: &mut PolicyCache,
    text: PolicyText<'_>,
) -> Result<Arc<CachedPolicy>, CommandError> {
    cache.get(text).or_else(|miss| {
        stats::PARSED.add();
        let cached = Arc::new(CachedPolicy::new(text.parse()?));
        cache.insert(miss, text, Arc::clone(&cached));
        Ok(cached)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_text_repeated_is_parsed_once() {
        let cache = &mut PolicyCache::new();
        let texts = [
            PolicyText::Text(b"gcra:30/1m"),
            PolicyText::Throttle { max_burst: b"11", count: b"1", period: b"1" },
        ];
        for text in texts {
            let first = look_up(cache, text).unwrap();
            assert_eq!(first.policy, text.parse().unwrap());
            assert!(Arc::ptr_eq(&first, &look_up(cache, text).unwrap()), "{text:?}");
        }
        assert!(look_up(cache, PolicyText::Text(b"x")).is_err());
    }
}
