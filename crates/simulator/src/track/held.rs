//! The open holds of the tracked key.

use sluicegate_core::{Decision, HoldOperation, Limit, Policy};

use crate::{
    event::{Event, EventOperation},
    kind::Kind,
};

/// The open holds of a key, as decisions opened and ended them.
#[derive(Debug, Default)]
pub(super) struct HeldUnits {
    holds: Vec<OpenHold>,
    /// Units of all of them.
    units: u64,
}

#[derive(Debug)]
struct OpenHold {
    id: Box<[u8]>,
    units: u32,
    /// In microseconds since the Unix epoch.
    expires: u64,
    /// Whether its units are charged when it ends.
    metered: bool,
}

impl HeldUnits {
    /// Units held.
    pub(super) const fn units(&self) -> u64 {
        self.units
    }

    /// Follows a decision. Returns the units that it charged, of a hold that it ended.
    pub(super) fn follow(
        &mut self,
        event: &Event<'_>,
        decision: &Decision,
        policy: &Policy,
    ) -> Option<u32> {
        if event.kind == Kind::Reset {
            *self = Self::default();
        }
        let EventOperation::Hold(operation) = event.operation(policy) else { return None };
        let ttl = policy.check_hold(&operation).ok().filter(|_| decision.allowed())?;
        let expires = event.time.as_micros() + ttl;
        let open = self.holds.iter().position(|hold| *hold.id == *operation.id());
        match (operation, open) {
            (HoldOperation::Hold { id, cost: units @ 1.., .. }, None) => {
                let metered = !policy.limits().iter().all(Limit::counts_holds);
                self.holds.push(OpenHold { id: id.into(), units, expires, metered });
                self.units += u64::from(units);
                None
            }
            (HoldOperation::Settle { used, .. }, Some(at)) => {
                self.end(at).map(|held| used.unwrap_or(held))
            }
            (HoldOperation::Renew { .. }, Some(at)) => {
                self.holds[at].expires = expires;
                None
            }
            _ => None,
        }
    }

    /// Ends the next hold that has expired at `now`: when it did, and the units that are then charged.
    pub(super) fn expire_next(&mut self, now: u64) -> Option<(u64, Option<u32>)> {
        let holds = self.holds.iter().enumerate();
        let (at, hold) = holds.min_by_key(|(_, hold)| hold.expires)?;
        let expires = hold.expires;
        (expires <= now).then(|| (expires, self.end(at)))
    }

    /// Removes a hold, and returns its units if it is metered.
    fn end(&mut self, at: usize) -> Option<u32> {
        let OpenHold { units, metered, .. } = self.holds.remove(at);
        self.units -= u64::from(units);
        metered.then_some(units)
    }
}
