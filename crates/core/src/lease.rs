//! Leases: for a key with much traffic, a process takes chunks from the store, and allows requests from them.
//!
//! A chunk is taken as a whole before any of it is used, and is used within the lifetime of the lease (l). Let A(s, t) be what
//! the policy promises for an interval. What is spent in [s, t] was taken in [s - l, t]; with n processes that hold chunks of
//! up to k units, at most min(A(s, t) + n k, A(s - l, t)) are. No unit of a fixed window is spent after its end.
//!
//! The first chunk has the cost of its request. Chunks double while they are used up in time, to at most the
//! chunk of the policy and half of the remaining units: a cold key is taken one by one, and a nearly exhausted key
//! is not taken as a whole.
//!
//! The unspent units of a chunk that has ended are refunded, once, as far as every limit still counts them: units that a limit
//! has forgotten were admitted elsewhere, and a refund would admit them twice. Other units are forfeited. If another policy
//! replaces that of the lease, all of them are, unless both forget units at the same rate. How long a limit counts the units
//! ([`LeaseTerms`]):
//!
//! - *The gcra family* forgets them as the debt drains. No decision tells the debt, because the open holds of the key, of any
//!   process, count in all of its numbers. Therefore a lease counts the debt of its own chunks, as the limit that drains first
//!   would without other requests: the debt in the store is at least that, and the unspent units are the newest part of it.
//! - *Logs, counters and buckets that are refilled in steps* take a refund off their newest units. These may be units of others, which
//!   then count as early as ours, and in a chain of such refunds earlier still. Their units are forfeited.
//! - *Fixed windows* forget them at the end of the window. When the window of a chunk ends is read from the entry, since open
//!   holds make `reset_after` longer; if the window may have begun after the chunk was taken, the chunk is forfeited.
//!
//! Requests use the oldest units first, and a request takes the next chunk only if its cost is more than the unspent units.
//! Therefore all unspent units are of the newest chunk.
//!
//! Refunds and resets by the application lower what is owed when they begin and when they end, because the store applies them
//! at some time in between.

use std::time::Duration;

use crate::{Decision, Entry, Forgets, Outcome, Policy, Timestamp, as_micros, reached};

/// The shortest fixed window that is leased: a shorter one may end before a chunk is known to be in it.
pub const MIN_LEASED_WINDOW: Duration = Duration::from_millis(60);

/// How the limits of a policy forget units that were taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Maximum units of a chunk.
    units: u32,
    /// The fastest rate of its limits of the gcra family: units, and the microseconds in which they drain.
    drain: Option<(u32, u64)>,
    /// Whether unspent units are forfeited, because a refund may take units off that others took later: a limit is of
    /// another kind, windows aside.
    forfeits: bool,
    /// The shortest of its fixed windows.
    window: Option<Duration>,
}

/// The lease of one process on one key under one policy: units that it took from the store and hands out by itself. It has no
/// clock, and sends nothing.
#[derive(Debug)]
pub struct Lease {
    terms: LeaseTerms,
    left: u32,
    /// When the unspent units expire.
    until: Timestamp,
    /// The size of the next chunk.
    next: u32,
    /// When the debt of the chunks, without units that were returned, has drained.
    owed_until: Timestamp,
    /// When the window of the newest chunk ends, and a refund must have arrived.
    window_end: Timestamp,
    /// Units of the newest chunk that the application has not refunded since.
    chunk: u64,
    /// The last decision of the store, and when it came.
    last: Option<(Decision, Timestamp)>,
    removals: Removals,
    /// How often the store has denied a request for units, and granted one.
    denials: u64,
    grants: u64,
    #[cfg(debug_assertions)]
    units: Units,
}

/// Units of a lease since it was made, for a check.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, Default)]
struct Units {
    taken: u64,
    used: u64,
    /// Returned to the store, or lost.
    gone: u64,
}

/// Removals of debt by operations of the application, under all policies of the lease.
#[derive(Clone, Copy, Debug, Default)]
struct Removals {
    resets: u64,
    refunded_units: u64,
}

/// What a lease does with a request.
#[derive(Debug)]
pub enum LeaseStep {
    /// It is allowed. The decision is the last one of the store, with the unspent units added.
    Taken(Decision),
    /// The store must be asked for this many units, of which the request uses its cost.
    Refill(u32, RefillToken),
}

/// A request for a chunk that is about to be sent. The store may apply it before operations that remove debt and that begin
/// later.
#[derive(Clone, Copy, Debug)]
pub struct RefillToken {
    /// When it was sent, by the clock of the process.
    pub sent: Timestamp,
    /// How often the store had denied a request for units before.
    pub denials: u64,
    /// How often it had granted one.
    pub grants: u64,
    removals: Removals,
}

/// A chunk that the store has granted.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// Its units.
    pub units: u32,
    /// Of which its request uses these at once.
    pub cost: u32,
    /// The decision of the store.
    pub decision: Decision,
    /// When its window ends, by the clock of this process: in the past if that is not known, and never without windows.
    pub window_end: Timestamp,
}

/// Unspent units of a lease that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Unspent {
    /// Their number.
    pub units: u32,
    terms: LeaseTerms,
    owed_until: Timestamp,
    window_end: Timestamp,
    chunk: u64,
}

impl LeaseTerms {
    /// Those of a policy, with chunks of at most `units`.
    #[must_use]
    pub fn new(policy: &Policy, units: u32) -> Self {
        let mut terms = Self { units, drain: None, forfeits: false, window: None };
        for limit in policy.limits() {
            let (units, period) = limit.rate();
            match limit.forgets() {
                Forgets::AtRate => {
                    let rate = (units, as_micros(period));
                    if terms.drain.is_none_or(|other| is_faster(rate, other)) {
                        terms.drain = Some(rate);
                    }
                }
                Forgets::InSteps | Forgets::AfterPeriod => terms.forfeits = true,
                Forgets::ByWindow => {
                    terms.window = Some(terms.window.map_or(period, |it| it.min(period)));
                }
                Forgets::WhenSettled => {}
            }
        }
        terms
    }

    /// Maximum units of a chunk.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// The shortest fixed window of the policy, if it has one.
    #[must_use]
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }

    /// When the window of a chunk ends if that is not known.
    #[must_use]
    pub const fn unknown_end(&self) -> Timestamp {
        if self.window.is_some() { Timestamp::EPOCH } else { Timestamp::MAX }
    }

    /// Whether units that were taken under `self` are forgotten in the same way after a change to `other`: the store then
    /// carries the debt over as it is.
    fn is_like(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.drain, other.drain) else { return false };
        let is_plain = |it: &Self| !it.forfeits && it.window.is_none();
        is_plain(self) && is_plain(other) && !is_faster(one, two) && !is_faster(two, one)
    }

    /// The time in which `units` drain, rounded down to microseconds.
    fn drain_time(&self, units: u64) -> Duration {
        let micros = self.drain.map_or(0, |(rate, period)| {
            u128::from(units) * u128::from(period) / u128::from(rate.max(1))
        });
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The units that drain in a time, rounded down; without a limit of the gcra family, all.
    fn drained_units(&self, micros: u64) -> u64 {
        self.drain.map_or(u64::MAX, |(rate, period)| {
            let units = u128::from(micros) * u128::from(rate) / u128::from(period.max(1));
            u64::try_from(units).unwrap_or(u64::MAX)
        })
    }
}

/// Whether the first rate, units per microseconds, is greater.
fn is_faster(one: (u32, u64), other: (u32, u64)) -> bool {
    u128::from(one.0) * u128::from(other.1) > u128::from(other.0) * u128::from(one.1)
}

impl Lease {
    /// One without units.
    #[must_use]
    pub fn new(terms: LeaseTerms) -> Self {
        let never = Timestamp::EPOCH;
        Self {
            terms,
            left: 0,
            until: never,
            next: 1,
            owed_until: never,
            window_end: never,
            chunk: 0,
            last: None,
            removals: Removals::default(),
            denials: 0,
            grants: 0,
            #[cfg(debug_assertions)]
            units: Units::default(),
        }
    }

    /// Another policy with these terms replaces that of the lease. Returns the unspent units.
    pub fn change(&mut self, terms: LeaseTerms) -> Option<Unspent> {
        reached!(LeaseEndsWithItsPolicy if self.left > 0);
        // At another rate, the debt that this lease counts may have drained in the store.
        let is_owed = self.terms.is_like(&terms);
        let unspent = self.unspent().map(|it| if is_owed { it } else { it.forfeited() });
        let Self { removals, denials, grants, .. } = *self;
        *self = Self { removals, denials, grants, ..Self::new(terms) };
        unspent
    }

    /// Hands out `cost` units, or returns the units to request from the store. Units that have expired are added to
    /// `expired`.
    pub fn take(&mut self, cost: u32, now: Timestamp, expired: &mut Option<Unspent>) -> LeaseStep {
        if now >= self.until {
            reached!(LeaseExpiresBeforeTake if self.left > 0);
            if let Some(unspent) = self.unspent() {
                *expired = Some(unspent);
            }
            self.left = 0;
            let is_known = self.window_end > Timestamp::EPOCH;
            if self.terms.window.is_some() && is_known && now >= self.window_end {
                // A chunk that opens a window is forfeited: nothing shows that it is in that one.
                self.next = 1;
            }
        }
        if let Some(decision) = self.spend(cost, now) {
            return LeaseStep::Taken(decision);
        }
        let Self { removals, denials, grants, .. } = *self;
        let token = RefillToken { sent: now, removals, denials, grants };
        LeaseStep::Refill(self.next.max(cost), token)
    }

    /// Hands out `cost` units, if it has as many that have not expired.
    #[inline]
    pub fn spend(&mut self, cost: u32, now: Timestamp) -> Option<Decision> {
        let (left, last) = self.left.checked_sub(cost).zip(self.last)?;
        if now >= self.until {
            return None;
        }
        self.left = left;
        #[cfg(debug_assertions)]
        {
            self.units.used += u64::from(cost);
            self.check();
        }
        Some(self.decision(last, now))
    }

    /// Adds a chunk that the store has granted, to be used within `lifetime` after it was requested. Returns the number of units
    /// that are lost, because the lease was reset since then or its units have expired.
    pub fn granted(
        &mut self,
        chunk: Chunk,
        RefillToken { sent, removals, .. }: RefillToken,
        now: Timestamp,
        lifetime: Duration,
    ) -> u32 {
        let Chunk { units, cost, decision, window_end } = chunk;
        debug_assert!(cost <= units, "a request uses more than its chunk");
        self.grants += 1;
        if self.removals.resets != removals.resets {
            reached!(ChunkIsLost if units > cost);
            return units - cost;
        }
        debug_assert!(self.left < cost, "a chunk is taken while units are left for the request");
        let lost = if now >= self.until { std::mem::take(&mut self.left) } else { 0 };
        reached!(UnitsExpireDuringRefill if lost > 0);
        #[cfg(debug_assertions)]
        {
            self.units.taken += u64::from(units);
            self.units.used += u64::from(cost);
            self.units.gone += u64::from(lost);
        }
        // This request uses all units of the previous chunk, because they are less than its cost.
        self.left = self.left.saturating_add(units - cost);
        // Without units it is kept for the size of its next chunk.
        self.until = sent + lifetime;
        if self.left > 0 {
            self.until = self.until.min(window_end);
        }
        self.window_end = window_end;
        self.next =
            units.saturating_mul(2).min(decision.remaining / 2).min(self.terms.units).max(1);
        if units > cost && now >= window_end {
            self.next = 1;
        }
        let owed_until = self.owed_until.max(sent) + self.terms.drain_time(units.into());
        // Others may have refunded.
        self.owed_until = owed_until.min(sent + decision.reset_after);
        self.chunk = units.into();
        let refunded = self.removals.refunded_units.saturating_sub(removals.refunded_units);
        if refunded > 0 {
            reached!(RefundDuringRefill);
            // The store may have refunded these units after it granted the chunk.
            self.lower_debt(refunded);
        }
        self.last = Some((decision, now));
        debug_assert!(self.left < units, "unspent units are of an older chunk");
        #[cfg(debug_assertions)]
        self.check();
        lost
    }

    /// Resets the size of chunks, because the store has denied a request for units.
    pub fn denied(&mut self) {
        reached!(ChunkIsDenied);
        self.next = 1;
        self.denials += 1;
    }

    /// Subtracts units that the application refunds from the debt of the lease, because the lease must not return that debt
    /// again. Is called before and after the refund: the store may grant a chunk in between.
    pub fn refunded(&mut self, units: u32) {
        self.removals.refunded_units += u64::from(units);
        self.lower_debt(units.into());
    }

    /// The store has refunded units to the key, and still counts `used`: if that is less than the unspent units, the refund has
    /// returned some of them. Returns their number. A chunk that was requested before is then lost.
    pub fn refund_replied(&mut self, used: u32) -> u32 {
        let returned = self.left.saturating_sub(used);
        if returned > 0 || used == 0 {
            reached!(RefundReturnsUnspentUnits if returned > 0);
            self.removals.resets += 1;
        }
        self.left -= returned;
        #[cfg(debug_assertions)]
        {
            self.units.gone += u64::from(returned);
            self.check();
        }
        returned
    }

    /// The key is reset, which has returned the units, too. Returns their number. A chunk that was requested before is lost. Is
    /// called before and after the reset: the store may grant a chunk in between.
    pub fn reset(&mut self) -> u32 {
        self.removals.resets += 1;
        self.owed_until = Timestamp::EPOCH;
        reached!(LeaseIsReset if self.left > 0);
        #[cfg(debug_assertions)]
        {
            self.units.gone += u64::from(self.left);
        }
        std::mem::take(&mut self.left)
    }

    /// Its unspent units.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// Whether its units have expired by `now`.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        now >= self.until
    }

    /// Ends, and begins with a small chunk if it is used again. Returns the unspent units.
    pub fn end(&mut self) -> Option<Unspent> {
        let unspent = self.unspent();
        self.left = 0;
        self.next = 1;
        #[cfg(debug_assertions)]
        self.check();
        unspent
    }

    /// Checks that every unit that was taken is used, left or gone.
    #[cfg(debug_assertions)]
    fn check(&self) {
        let Units { taken, used, gone } = self.units;
        assert_eq!(taken, used + gone + u64::from(self.left), "units of a lease");
    }

    /// Subtracts `units` that the store refunds, rounded up.
    fn lower_debt(&mut self, units: u64) {
        let drained_in = as_micros(self.terms.drain_time(units)).saturating_add(1);
        let rest = self.owed_until.as_micros().saturating_sub(drained_in);
        self.owed_until = Timestamp::saturating_from_micros(rest);
        self.chunk = self.chunk.saturating_sub(units);
    }

    /// The unspent units, which no longer count as debt, because they may be refunded.
    fn unspent(&mut self) -> Option<Unspent> {
        if self.left == 0 {
            return None;
        }
        let Self { terms, left: units, owed_until, window_end, chunk, .. } = *self;
        self.lower_debt(units.into());
        #[cfg(debug_assertions)]
        {
            self.units.gone += u64::from(units);
        }
        Some(Unspent { units, terms, owed_until, window_end, chunk })
    }

    /// The last decision of the store, with the unspent units added.
    fn decision(&self, (last, decided_at): (Decision, Timestamp), now: Timestamp) -> Decision {
        let reset_after = last.reset_after.saturating_sub(now.since(decided_at));
        let remaining = last.remaining.saturating_add(self.left).min(last.limit);
        let outcome = Outcome::Allow { delay: Duration::ZERO };
        Decision { outcome, remaining, reset_after, ..last }
    }
}

impl Unspent {
    /// The same units, of which none is owed.
    fn forfeited(self) -> Self {
        Self { window_end: Timestamp::EPOCH, ..self }
    }

    /// Number of units that are still owed, and may be refunded, if the refund arrives within `late`.
    #[must_use]
    pub fn owed(&self, now: Timestamp, late: Duration) -> u32 {
        let Self { units, terms, owed_until, window_end, chunk } = *self;
        let then = now + late;
        if terms.forfeits || then > window_end {
            return 0;
        }
        // The unspent units are part of the newest chunk, and the application may have refunded that.
        let of_windows = if terms.window.is_some() { chunk } else { u64::MAX };
        let debt = as_micros(owed_until.since(then));
        let owed = of_windows.min(terms.drained_units(debt)).min(units.into());
        u32::try_from(owed).unwrap_or(units)
    }
}

/// When the window of a chunk ends, by the clock of the process: the chunk was sent at `sent`, and the entry was asked for at
/// `asked` and read at `read`. The store had the time `by_store` as it read it. `None` if the window may have begun after the
/// chunk was taken.
#[must_use]
pub fn lease_window_end(
    entry: &Entry,
    policy: &Policy,
    by_store: Timestamp,
    [sent, asked, read]: [Timestamp; 3],
) -> Option<Timestamp> {
    let (start, end) = entry.common_window(by_store).filter(|_| entry.policy() == policy)?;
    // The clock of the process may run slower than that of the store, by less than a thousandth.
    let (elapsed, left) = (read.since(sent), end.since(by_store));
    let is_known = start + elapsed + elapsed / 1000 <= by_store;
    is_known.then(|| asked + (left - left / 1000))
}
