//! The open holds of a key. The ledger does not depend on a policy.

use super::algorithms::Limit;
use super::exact::{Q, q};

/// Upper bound on the open holds of a key.
pub(super) const MAX_HOLDS: usize = 65_536;
const MIN_TTL_US: u64 = 1_000;
const MAX_TTL_US: u64 = 86_400_000_000;

/// Units that are held under an id while `now < expires`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) id: Vec<u8>,
    pub(super) units: Q,
    pub(super) expires: Q,
    /// Opened under a policy with some limit other than `concurrency`.
    pub(super) metered: bool,
}

impl Hold {
    /// Whether the units count as held for `limit`.
    pub(super) fn counts_for(&self, limit: &Limit) -> bool {
        self.metered || limit.counts_holds()
    }
}

/// Holds in the order in which they were opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(pub(super) Vec<Hold>);

impl Ledger {
    /// Index of the open hold `id`.
    pub(super) fn find(&self, id: &[u8]) -> Option<usize> {
        self.0.iter().position(|hold| hold.id == id)
    }

    /// The units that count as held for `limit`.
    pub(super) fn held(&self, limit: &Limit) -> Q {
        self.0.iter().filter(|hold| hold.counts_for(limit)).map(|hold| &hold.units).sum()
    }

    /// Removes the holds that have expired at `now`, and returns them in order of expiry, the first opened of equals
    /// first.
    pub(super) fn expire(&mut self, now: &Q) -> Vec<Hold> {
        let (open, mut expired): (Vec<Hold>, Vec<Hold>) =
            self.0.drain(..).partition(|hold| now < &hold.expires);
        self.0 = open;
        expired.sort_by(|a, b| a.expires.cmp(&b.expires));
        expired
    }

    /// The times at which holds expire, in order.
    pub(super) fn expiries(&self) -> Vec<Q> {
        let mut times: Vec<Q> = self.0.iter().map(|hold| hold.expires.clone()).collect();
        times.sort();
        times.dedup();
        times
    }
}

/// Checks an id and that the policy can hold.
pub(super) fn check(id: &[u8], limits: &[Limit]) -> Result<(), String> {
    if id.is_empty() || id.len() > 64 {
        return Err(format!("an id of {} bytes", id.len()));
    }
    if limits.iter().any(|limit| limit.properties().is_queue) {
        return Err("a policy with a queue has no holds".to_owned());
    }
    Ok(())
}

/// The lifetime of a hold under `limits`: the default is the least period of the `concurrency` limits, which is also the
/// upper bound.
pub(super) fn lifetime(ttl_us: Option<u64>, limits: &[Limit]) -> Result<Q, String> {
    let concurrency = limits.iter().filter(|limit| limit.counts_holds());
    let least = concurrency.filter_map(|limit| limit.properties().period).min();
    let ttl = match (ttl_us, least) {
        (Some(ttl), _) => q(ttl),
        (None, Some(least)) => least.clone().min(q(MAX_TTL_US)),
        (None, None) => return Err("a hold needs a ttl".to_owned()),
    };
    let in_domain = (q(MIN_TTL_US)..=q(MAX_TTL_US)).contains(&ttl);
    if in_domain && least.is_none_or(|least| &ttl <= least) {
        Ok(ttl)
    } else {
        Err(format!("ttl {ttl}us is outside its domain"))
    }
}
