//! Fast path: a take under one limit of the gcra family, on a key that is new or was last written under the
//! same limit. Allocates nothing, and changes the bytes in place.
//!
//! The first 17 bytes (`docs/state-format.md`) describe the limit; then follow the TAT in whole microseconds (7)
//! and its rest in ticks (0 to 4, depending on the limit).

use sluicegate_commands::CommandError;
use sluicegate_core::{Decision, Entry, Gcra, MAX_TIME, Policy, Timestamp};

use crate::{
    key::Key,
    time::{self, Moment},
};

/// Offsets of the ends of the limit and the TAT, and the maximum length of a state.
const HEAD_END: usize = 17;
const TAT_END: usize = HEAD_END + 7;
const MAX_STATE: usize = TAT_END + 4;

/// One limit of the gcra family, and the first bytes of a state written under it.
#[derive(Debug)]
pub(crate) struct InPlaceGcra {
    gcra: Gcra,
    head: [u8; HEAD_END],
    /// Length of a state.
    length: usize,
}

impl InPlaceGcra {
    /// `None` for a policy of another kind.
    pub(crate) fn of(policy: &Policy) -> Option<Self> {
        let gcra = *policy.as_gcra()?;
        let bytes = Entry::with_debt(policy, Timestamp::EPOCH, 1)?.encode();
        Some(Self { gcra, head: *bytes.first_chunk()?, length: TAT_END + gcra.rest_width() })
    }

    /// Takes `cost`; `None` if the core has to decide.
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
        } else if there && moment.is_time_to_check_expiry() {
            key.repair_ttl(self.end(moment, take.after));
        }
        Ok(Some(self.gcra.decision(&take)))
    }

    /// The debt in ticks, if the state was written under this limit.
    #[inline]
    fn debt(&self, bytes: &[u8], now: Timestamp) -> Option<u64> {
        let (state, rest) = bytes.split_first_chunk::<TAT_END>()?;
        if bytes.len() != self.length || state[..HEAD_END] != self.head {
            return None;
        }
        let (tat, rest) = (time::read(&state[HEAD_END..]), time::read(rest));
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
        let mut state = [0; MAX_STATE];
        state[..HEAD_END].copy_from_slice(&self.head);
        state[HEAD_END..HEAD_END + 8]
            .copy_from_slice(&(moment.now.as_micros() + whole).to_le_bytes());
        state[TAT_END..].copy_from_slice(&rest.to_le_bytes()[..4]);
        let state = &state[..self.length];
        if there {
            key.write(state, false);
        } else {
            key.make(state);
        }
        key.finish(state, self.end(moment, debt));
    }

    fn end(&self, moment: Moment, debt: u64) -> i64 {
        moment.end_after(debt.div_ceil(u64::from(self.gcra.scale())))
    }
}
