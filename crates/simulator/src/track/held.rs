//! The open holds of the tracked key.

use sluicegate_core::{Decision, Limit, Operation, Policy};

use crate::{event::Event, kind::Kind};

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
        let operation = event.operation(policy);
        let operation_id = operation.id()?;
        let ttl = policy.check_operation(operation).ok().filter(|_| decision.allowed())?;
        let expires = event.time.as_micros() + ttl;
        let open = self.holds.iter().position(|hold| *hold.id == *operation_id);
        match (operation, open) {
            (Operation::Hold { id, cost: units @ 1.., .. }, None) => {
                let metered = !policy.limits().iter().all(Limit::counts_holds);
                self.holds.push(OpenHold { id: id.into(), units, expires, metered });
                self.units += u64::from(units);
                None
            }
            (Operation::Settle { used, .. }, Some(at)) => {
                self.end(at).map(|held| used.unwrap_or(held))
            }
            (Operation::Renew { .. }, Some(at)) => {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use sluicegate_core::{Operation, Timestamp, apply};

    use super::*;

    /// Time that passes in microseconds, kind, id, cost, lifetime in microseconds, and whether the hold is metered.
    type Step = (u64, Kind, u8, Option<u32>, u64, bool);

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let kinds = [Kind::Hold, Kind::Hold, Kind::Settle, Kind::Renew, Kind::Peek, Kind::Reset];
        let cost = proptest::option::of(0..5_u32);
        let kinds = prop::sample::select(kinds.to_vec());
        let step = (0..6_000_u64, kinds, 0..4_u8, cost, 1_000..20_000_u64, any::<bool>());
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn held_units_are_those_of_the_ledger(steps in steps()) {
            let policies: [Policy; 2] =
                ["concurrency:6/20ms", "sliding-log:9/10ms"].map(|text| text.parse().unwrap());
            let (mut entry, mut held, mut now) = (None, HeldUnits::default(), 0);
            for (step, kind, id, cost, ttl, metered) in steps {
                now += step;
                let time = Timestamp::from_micros(now).unwrap();
                let (id, ttl) = ([b'a' + id], Some(Duration::from_micros(ttl)));
                let event = Event { line: 0, time, key: b"k", cost, policy: b"", kind, id: &id, ttl };
                let policy = &policies[usize::from(metered)];
                let decision = event.apply(policy, &mut entry).unwrap();
                while held.expire_next(now).is_some() {}
                held.follow(&event, &decision, policy);
                let peeked = apply(&policies[0], &mut entry, time, Operation::Peek(1)).unwrap();
                let free = 6_u64.saturating_sub(held.units());
                prop_assert_eq!(free, u64::from(peeked.remaining));
            }
        }
    }
}
