//! The everyday request: a take under one limit of the gcra family, on a key that is new or was last
//! written under the very same limit. Nothing is allocated, and the bytes are changed in place.
//!
//! Of the bytes (`docs/state-format.md`) the first 17 say the limit; then come the whole
//! microseconds of the TAT (7) and its rest in ticks (0 ..= 4, as many as the limit needs).

use sluicegate_commands::CommandError;
use sluicegate_core::{Decision, Entry, Gcra, Policy, Timestamp};

use crate::{
    key::Key,
    time::{self, Moment},
};

/// The bytes that say the limit, those of them and the TAT, and the most that a state has.
const HEAD: usize = 17;
const REST: usize = HEAD + 7;
const LONGEST: usize = REST + 4;

/// No time in a state lies beyond the last timestamp and the longest debt.
const MAX_TIME: u64 = Timestamp::MAX.as_micros() + (1 << 50);

/// One limit of the gcra family, and how a state begins that was written under it.
#[derive(Debug)]
pub(crate) struct Everyday {
    gcra: Gcra,
    head: [u8; HEAD],
    /// The bytes of a whole state.
    length: usize,
}

impl Everyday {
    /// `None` for a policy of another kind.
    pub(crate) fn of(policy: &Policy) -> Option<Self> {
        let gcra = *policy.as_gcra()?;
        let bytes = Entry::with_debt(policy, Timestamp::EPOCH, 1)?.encode();
        Some(Self { gcra, head: *bytes.first_chunk()?, length: REST + gcra.rest_width() })
    }

    /// Takes `cost`, or gives `None` for what is not everyday.
    #[inline]
    pub(crate) fn take(
        &self,
        key: &mut Key<'_>,
        moment: Moment,
        cost: u32,
    ) -> Result<Option<Decision>, CommandError> {
        let bytes = key.bytes()?;
        let there = bytes.is_some();
        let Some(debt) = bytes.map_or(Some(0), |bytes| self.debt(bytes, moment.now)) else {
            return Ok(None);
        };
        let Some(take) = self.gcra.try_take(debt, cost) else { return Ok(None) };
        if take.allowed {
            self.store(key, there, moment, take.after);
        } else if there && moment.is_time_to_look() {
            key.heal(self.end(moment, take.after));
        }
        Ok(Some(self.gcra.decision(&take)))
    }

    /// The ticks that are owed, by a state that was written under this limit.
    #[inline]
    fn debt(&self, bytes: &[u8], now: Timestamp) -> Option<u64> {
        let (state, rest) = bytes.split_first_chunk::<REST>()?;
        if bytes.len() != self.length || state[..HEAD] != self.head {
            return None;
        }
        let (tat, rest) = (time::read(&state[HEAD..]), time::read(rest));
        if tat > MAX_TIME || rest >= u64::from(self.gcra.scale()) {
            return None;
        }
        match tat.checked_sub(now.as_micros()) {
            None => Some(0),
            Some(ahead) => ahead.checked_mul(u64::from(self.gcra.scale()))?.checked_add(rest),
        }
    }

    #[inline]
    fn store(&self, key: &mut Key<'_>, there: bool, moment: Moment, debt: u64) {
        let scale = u64::from(self.gcra.scale());
        let (whole, rest) = if scale == 1 { (debt, 0) } else { (debt / scale, debt % scale) };
        let mut state = [0; LONGEST];
        state[..HEAD].copy_from_slice(&self.head);
        state[HEAD..HEAD + 8].copy_from_slice(&(moment.now.as_micros() + whole).to_le_bytes());
        state[REST..].copy_from_slice(&rest.to_le_bytes()[..4]);
        let state = &state[..self.length];
        if there {
            let place = key.bytes_mut(state.len(), false);
            if place.len() == state.len() {
                place.copy_from_slice(state);
            }
        } else {
            key.make(state);
        }
        let ends = self.end(moment, debt);
        key.set_end(ends);
        key.context().replicate_set(key.name(), state, ends);
        key.changed();
    }

    fn end(&self, moment: Moment, debt: u64) -> i64 {
        moment.end_after(debt.div_ceil(u64::from(self.gcra.scale())))
    }
}
