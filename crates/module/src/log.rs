//! Takes under one `sliding-log` whose events count once each, without `keep` and `count=all`:
//! decided by binary search in the bytes of the key, and appended to them.
//!
//! The first 13 bytes (`docs/state-format.md`) describe the limit; then follow the number of events (4), the time that
//! events are relative to (7), the bytes of an event (1) and of its weight (1, here 0), and the events.
//!
//! Expired events stay at the front until there are many, so that a take changes and replicates a few bytes and not the
//! whole log. An event has expired if it is a period older than the newest one. [`settled`] removes them for the core.

use std::{borrow::Cow, time::Duration};

use sluicegate_commands::CommandError;
use sluicegate_core::{
    Decision, Limit, Operation, Outcome, Policy, Retry, Timestamp, apply, as_micros,
};

use crate::{
    key::Key,
    time::{Moment, read},
};

/// Bytes that describe the limit, and the offset of the events.
const HEAD: usize = 13;
const EVENTS: usize = 26;

/// A log without options, and the first bytes of a state under it.
#[derive(Debug)]
pub(crate) struct InPlaceLog {
    limit: u32,
    period: u64,
    head: [u8; HEAD],
    /// Bytes of the time of an event: enough for two periods.
    width: usize,
}

impl InPlaceLog {
    /// `None` for a policy of another kind.
    pub(crate) fn of(policy: &Policy) -> Option<Self> {
        let [Limit::SlidingLog(log)] = policy.limits() else { return None };
        if log.keep().is_some() || log.count_all() {
            return None;
        }
        let mut entry = None;
        let _ = apply(policy, &mut entry, Timestamp::EPOCH, Operation::Take(1));
        let head = *entry?.encode().first_chunk()?;
        let period = u64::try_from(log.period().as_micros()).ok()?;
        let width = (u64::BITS - (2 * period).leading_zeros()).div_ceil(8) as usize;
        Some(Self { limit: log.limit(), period, head, width })
    }

    /// Takes `cost`; `None` if the core has to decide.
    pub(crate) fn take(
        &self,
        key: &mut Key<'_>,
        moment: Moment,
        cost: u32,
    ) -> Result<Option<Decision>, CommandError> {
        let now = moment.now.as_micros();
        let Some(bytes) = key.bytes()? else {
            if cost != 1 {
                return Ok(None);
            }
            let fresh = self.encode(now, 1, [now].into_iter());
            key.store(&fresh, moment.end_after(self.period));
            return Ok(Some(self.allowed(1)));
        };
        let Some(log) =
            LogView::of(bytes).filter(|log| bytes.starts_with(&self.head) && !log.later(now))
        else {
            return Ok(None);
        };
        let gone = log.through(now.checked_sub(self.period));
        let live = log.count - gone;
        let left = u64::from(self.limit).saturating_sub(live as u64);
        if cost == 0 || (cost > 1 && u64::from(cost) <= left) {
            return Ok(None);
        }
        if left == 0 || u64::from(cost) > left {
            let decision = self.denied(&log, gone, now, cost);
            if moment.is_time_to_check_expiry() {
                key.repair_ttl(moment.end_after(as_micros(decision.reset_after)));
            }
            return Ok(Some(decision));
        }
        let offset = now - log.base;
        let fits = log.width == 8 || offset >> (8 * log.width) == 0;
        if !fits || gone > live / 4 + 16 {
            let whole = self.rewritten(&log, gone, now);
            key.store(&whole, moment.end_after(self.period));
        } else {
            let (end, width, count) = (bytes.len(), log.width, log.count + 1);
            append(key, end, &offset.to_le_bytes()[..width], count);
            key.expire(moment.end_after(self.period));
        }
        Ok(Some(self.allowed(live + 1)))
    }

    /// A log of `count` events at these `times`, which it stores relative to `base`.
    fn encode(&self, base: u64, count: usize, times: impl Iterator<Item = u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(EVENTS + count * self.width);
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(&count_bytes(count));
        bytes.extend_from_slice(&base.to_le_bytes()[..7]);
        // Lossless: a width is at most 7.
        bytes.extend_from_slice(&[self.width.to_le_bytes()[0], 0]);
        for time in times {
            bytes.extend_from_slice(&(time - base).to_le_bytes()[..self.width]);
        }
        bytes
    }

    /// The log without its first `gone` events, and with one more at `now`.
    fn rewritten(&self, log: &LogView<'_>, gone: usize, now: u64) -> Vec<u8> {
        let base = if gone < log.count { log.time(gone) } else { now };
        let times = (gone..log.count).map(|index| log.time(index));
        self.encode(base, log.count - gone + 1, times.chain([now]))
    }

    fn allowed(&self, live: usize) -> Decision {
        Decision {
            outcome: Outcome::Allow { delay: Duration::ZERO },
            limit: self.limit,
            remaining: self.remaining(live),
            reset_after: Duration::from_micros(self.period),
            binding: 0,
        }
    }

    fn denied(&self, log: &LogView<'_>, gone: usize, now: u64, cost: u32) -> Decision {
        let live = log.count - gone;
        let span =
            |index| Duration::from_micros((log.time(index) + self.period).saturating_sub(now));
        let retry = match self.limit.checked_sub(cost) {
            None => Retry::Never,
            // The oldest events that must expire first.
            Some(left) => Retry::After(span(gone + live - left as usize - 1)),
        };
        Decision {
            outcome: Outcome::Deny { retry },
            limit: self.limit,
            remaining: self.remaining(live),
            reset_after: log.count.checked_sub(1).map_or(Duration::ZERO, span),
            binding: 0,
        }
    }

    fn remaining(&self, live: usize) -> u32 {
        self.limit.saturating_sub(u32::try_from(live).unwrap_or(u32::MAX))
    }
}

/// Appends an event to the log, and replicates only that.
fn append(key: &mut Key<'_>, end: usize, event: &[u8], count: usize) {
    let count = count_bytes(count);
    let place = key.bytes_mut(end + event.len(), true);
    if place.len() == end + event.len() {
        place[HEAD..HEAD + 4].copy_from_slice(&count);
        place[end..].copy_from_slice(event);
    }
    key.context().replicate_range(key.name(), HEAD, &count);
    key.context().replicate_range(key.name(), end, event);
}

fn count_bytes(count: usize) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes()
}

/// The bytes of one log of events that count once.
struct LogView<'a> {
    period: u64,
    base: u64,
    width: usize,
    count: usize,
    events: &'a [u8],
}

impl<'a> LogView<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        // One limit, a log without `keep`. Versions 1 and 2 have the same bytes.
        let (&[1 | 2, 1, machine, ref rest @ ..], events) = bytes.split_at_checked(EVENTS)? else {
            return None;
        };
        let (width, weights) = (usize::from(rest[21]), rest[22]);
        let count = usize::try_from(read(&rest[10..14])).ok()?;
        let sound = machine & 0x2f == 8
            && weights == 0
            && (1..=7).contains(&width)
            && count.checked_mul(width) == Some(events.len());
        let (period, base) = (read(&rest[4..10]), read(&rest[14..21]));
        sound.then_some(Self { period, base, width, count, events })
    }

    fn time(&self, index: usize) -> u64 {
        self.base + read(&self.events[index * self.width..][..self.width])
    }

    /// Whether it has an event later than `now`.
    fn later(&self, now: u64) -> bool {
        self.base > now || self.count.checked_sub(1).is_some_and(|last| self.time(last) > now)
    }

    /// Number of events that are not later than `edge`.
    fn through(&self, edge: Option<u64>) -> usize {
        let Some(edge) = edge else { return 0 };
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.time(middle) <= edge { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// `bytes` without the expired events of a log, as the core encodes it.
pub(crate) fn settled(bytes: &[u8]) -> Cow<'_, [u8]> {
    let gone = LogView::of(bytes).and_then(|log| {
        let newest = log.time(log.count.checked_sub(1)?);
        let gone = log.through(newest.checked_sub(log.period));
        (gone > 0).then(|| (log.count - gone, EVENTS + gone * log.width))
    });
    let Some((count, from)) = gone else { return bytes.into() };
    let mut settled = bytes[..EVENTS].to_vec();
    settled[HEAD..HEAD + 4].copy_from_slice(&count_bytes(count));
    settled.extend_from_slice(&bytes[from..]);
    settled.into()
}
