//! The time at which a debt is paid back if holds are charged one after the other, as they expire.
//!
//! A debt `d` that is paid back at one tick a tick becomes `max(d, t) + u` when `u` ticks are charged at `t`. Over
//! all holds that is the larger of two: the debt with all charges, and the debt of the holds alone, which is `owed`
//! here. It changes little as holds come and go at the end, and is therefore stored with the ledger.

/// How long a limit takes to pay back units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainRate {
    pub(crate) ticks_per_unit: u64,
    pub(crate) ticks_per_micro: u64,
}

/// The debt after the last of some holds, which expire one after the other, if there was none before the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    rate: DrainRate,
    /// The time from which ticks count, in microseconds since the epoch: no hold expires before.
    since: u64,
    owed: u64,
    /// As `owed`, without the last hold, if that is known.
    owed_before: Option<u64>,
}

impl Drain {
    /// Without a hold. All that are [added](Self::add) have at most `units` together, and expire from `first` to `last`, in
    /// microseconds. `None` if their sum may not fit in 64 bits.
    pub(crate) fn new(rate: DrainRate, [first, last]: [u64; 2], units: u64) -> Option<Self> {
        let micros = last.checked_sub(first)?;
        let most = micros.checked_mul(rate.ticks_per_micro)?;
        most.checked_add(units.checked_mul(rate.ticks_per_unit)?)?;
        Some(Self { rate, since: first, owed: 0, owed_before: None })
    }

    /// Adds a hold that expires after the others. `None` if the sum does not fit in 64 bits.
    #[inline]
    pub(crate) fn add(&mut self, expires: u64, units: u32) -> Option<()> {
        let DrainRate { ticks_per_unit, ticks_per_micro } = self.rate;
        let at = expires.checked_sub(self.since)?.checked_mul(ticks_per_micro)?;
        let charge = u64::from(units).checked_mul(ticks_per_unit)?;
        let owed = self.owed.max(at).checked_add(charge)?;
        self.owed_before = Some(std::mem::replace(&mut self.owed, owed));
        Some(())
    }

    /// Removes the hold that was added last. `None` if the debt before it is unknown.
    pub(crate) fn remove_last(&mut self) -> Option<()> {
        self.owed = self.owed_before.take()?;
        Some(())
    }

    /// Its rate.
    #[cfg(debug_assertions)]
    pub(crate) const fn rate(&self) -> DrainRate {
        self.rate
    }

    /// Whether it is of `rate`.
    pub(crate) fn is_of(&self, rate: DrainRate) -> bool {
        rate == self.rate
    }

    /// The debt in ticks from `now` on, in microseconds, at which no hold has expired; `None` if that does not fit in
    /// 64 bits.
    #[inline]
    pub(crate) fn owed(&self, now: u64) -> Option<u64> {
        let ticks = |micros: u64| micros.checked_mul(self.rate.ticks_per_micro);
        match self.since.checked_sub(now) {
            Some(until) => self.owed.checked_add(ticks(until)?),
            None => self.owed.checked_sub(ticks(now - self.since)?),
        }
    }
}
