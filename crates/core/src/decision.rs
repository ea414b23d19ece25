//! Operations on a key, and decisions.

use std::time::Duration;

use crate::time::as_micros;

/// An operation on a key. Costs are whole units, `0..=u32::MAX`. The id of a hold is 1 to 64 bytes, and names one hold of
/// one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Take `cost` units, all or none.
    Take(u32),
    /// Return what `Take` or `Hold` would return, and store nothing.
    Peek(u32),
    /// Take `cost` units whether or not they fit, for a cost that is known only afterwards.
    Charge(u32),
    /// Give back up to `cost` of the units in use.
    Refund(u32),
    /// Take `cost` units now, for use after a delay of at most `max_wait`.
    Reserve {
        /// Units to take.
        cost: u32,
        /// Longest delay that the caller accepts.
        max_wait: Duration,
    },
    /// Reset the key.
    Reset,
    /// Hold `cost` units, all or none. With an id that is open nothing changes, and it is allowed.
    Hold {
        /// The id.
        id: &'a [u8],
        /// Units to hold. Of 0 it is always allowed, and opens nothing.
        cost: u32,
        /// How long the hold is open, unless it is renewed: whole microseconds, 1 ms to 24 h. Under `concurrency`
        /// limits, at most the shortest of their periods, which is also the default; otherwise it must be given.
        ttl: Option<Duration>,
    },
    /// End an open hold, and charge the units used.
    Settle {
        /// The id.
        id: &'a [u8],
        /// Units that were used, which may be more or less than were held; `None`: as many.
        used: Option<u32>,
    },
    /// Prolong an open hold: it then expires `ttl` from now.
    Renew {
        /// The id.
        id: &'a [u8],
        /// As that of [`Operation::Hold`].
        ttl: Option<Duration>,
    },
}

impl<'a> Operation<'a> {
    /// The units that it takes, holds or gives back; 0 for an operation that names none.
    #[must_use]
    pub const fn cost(self) -> u32 {
        match self {
            Self::Take(cost) | Self::Peek(cost) | Self::Charge(cost) | Self::Refund(cost) => cost,
            Self::Reserve { cost, .. } | Self::Hold { cost, .. } => cost,
            Self::Reset | Self::Settle { .. } | Self::Renew { .. } => 0,
        }
    }

    /// The same operation with this [`cost`](Self::cost), if it has one.
    #[must_use]
    pub const fn with_cost(self, cost: u32) -> Self {
        match self {
            Self::Take(_) => Self::Take(cost),
            Self::Peek(_) => Self::Peek(cost),
            Self::Charge(_) => Self::Charge(cost),
            Self::Refund(_) => Self::Refund(cost),
            Self::Reserve { max_wait, .. } => Self::Reserve { cost, max_wait },
            Self::Hold { id, ttl, .. } => Self::Hold { id, cost, ttl },
            Self::Reset | Self::Settle { .. } | Self::Renew { .. } => self,
        }
    }

    /// Whether it never changes the state of a key: a peek, and a cost of 0.
    #[must_use]
    pub const fn only_reads(self) -> bool {
        match self {
            Self::Peek(_) => true,
            Self::Reset | Self::Settle { .. } | Self::Renew { .. } => false,
            _ => self.cost() == 0,
        }
    }

    /// The id of the hold; `None` for other operations.
    #[must_use]
    pub const fn id(self) -> Option<&'a [u8]> {
        match self {
            Self::Hold { id, .. } | Self::Settle { id, .. } | Self::Renew { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The same operation on the hold `id`; other operations are unchanged.
    #[must_use]
    pub const fn with_id<'b>(self, id: &'b [u8]) -> Operation<'b> {
        match self {
            Self::Take(cost) => Operation::Take(cost),
            Self::Peek(cost) => Operation::Peek(cost),
            Self::Charge(cost) => Operation::Charge(cost),
            Self::Refund(cost) => Operation::Refund(cost),
            Self::Reserve { cost, max_wait } => Operation::Reserve { cost, max_wait },
            Self::Reset => Operation::Reset,
            Self::Hold { cost, ttl, .. } => Operation::Hold { id, cost, ttl },
            Self::Settle { used, .. } => Operation::Settle { id, used },
            Self::Renew { ttl, .. } => Operation::Renew { id, ttl },
        }
    }
}

/// Maximum number of keys of one decision that a client asks for. Rules may charge more keys together.
pub const MAX_KEYS_PER_TAKE: usize = 8;

/// Operations that are no request on several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is no key.
    #[error("missing key: expected at least one")]
    MissingKey,
    /// There are more than [`MAX_KEYS_PER_TAKE`](crate::MAX_KEYS_PER_TAKE). Holds their number.
    #[error("invalid number of keys `{0}`: expected 1 to {MAX_KEYS_PER_TAKE}")]
    TooManyKeys(usize),
    /// The operations differ in more than the cost, or are none that several keys can have.
    #[error(
        "invalid operations on several keys: expected only takes, only peeks, or only holds with one id and ttl"
    )]
    Operation,
}

impl RequestError {
    /// Checks the number of keys that a client asks for at once.
    ///
    /// # Errors
    /// [`MissingKey`](Self::MissingKey) or [`TooManyKeys`](Self::TooManyKeys).
    pub const fn check_count(count: usize) -> Result<(), Self> {
        match count {
            0 => Err(Self::MissingKey),
            1..=MAX_KEYS_PER_TAKE => Ok(()),
            _ => Err(Self::TooManyKeys(count)),
        }
    }

    /// Checks operations that are to be all applied or none.
    pub(crate) fn check<'a>(
        mut operations: impl Iterator<Item = Operation<'a>>,
    ) -> Result<(), Self> {
        let first = operations.next().ok_or(Self::MissingKey)?.with_cost(0);
        let is_allowed =
            matches!(first, Operation::Take(_) | Operation::Peek(_) | Operation::Hold { .. });
        if is_allowed && operations.all(|it| it.with_cost(0) == first) {
            Ok(())
        } else {
            Err(Self::Operation)
        }
    }
}

/// The result of an operation. A denial is an answer, never an error.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub outcome: Outcome,
    /// Capacity of the binding limit, in units.
    pub limit: u32,
    /// Number of requests of cost 1 that would pass right after this one, at the same instant.
    pub remaining: u32,
    /// Time until the key is unused again, rounded up to whole microseconds.
    pub reset_after: Duration,
    /// Index in the policy, from 0, of the binding limit: the one that determined the answer. For a
    /// denial it has the longest retry time, otherwise the fewest remaining.
    pub binding: usize,
}

/// Allowed or denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Allowed.
    Allow {
        /// How long the caller must delay the request (`leaky-queue`, `reserve`).
        delay: Duration,
    },
    /// Denied.
    Deny {
        /// When the same request would pass if no other request arrived.
        retry: Retry,
    },
}

/// Time after which a denied request would pass. `Never` is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The shortest time, rounded up to whole microseconds.
    After(Duration),
    /// The cost exceeds the capacity.
    Never,
}

impl Retry {
    /// Passes immediately.
    pub(crate) const NOW: Self = Self::After(Duration::ZERO);

    /// Would pass after `micros` microseconds.
    pub(crate) const fn after_micros(micros: u64) -> Self {
        Self::After(Duration::from_micros(micros))
    }
}

impl Decision {
    /// Whether the request is allowed.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allow { .. })
    }

    /// How long to delay the request; zero if denied.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        match self.outcome {
            Outcome::Allow { delay } => delay,
            Outcome::Deny { .. } => Duration::ZERO,
        }
    }

    /// When to try again; `None` if allowed.
    #[must_use]
    pub const fn retry(&self) -> Option<Retry> {
        match self.outcome {
            Outcome::Allow { .. } => None,
            Outcome::Deny { retry } => Some(retry),
        }
    }

    /// The decision as the seven integers that all protocols use: allowed (1 or 0),
    /// limit, remaining, retry after (µs; 0 when allowed, -1 for never), reset after (µs), delay
    /// (µs), binding.
    ///
    /// ```
    /// use sluicegate_core::{Operation, Policy, Timestamp, apply};
    ///
    /// let policy: Policy = "fixed-window:1/10s".parse()?;
    /// let mut entry = None;
    /// let _ = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1))?;
    /// let denied = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(1))?;
    /// assert_eq!(denied.to_integers(), [0, 1, 0, 10_000_000, 10_000_000, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_integers(&self) -> [i64; 7] {
        let micros = |span: Duration| i64::try_from(as_micros(span)).unwrap_or(i64::MAX);
        [
            i64::from(self.allowed()),
            i64::from(self.limit),
            i64::from(self.remaining),
            match self.retry() {
                None => 0,
                Some(Retry::After(wait)) => micros(wait),
                Some(Retry::Never) => -1,
            },
            micros(self.reset_after),
            micros(self.delay()),
            i64::try_from(self.binding).unwrap_or(i64::MAX),
        ]
    }

    /// The decision from the integers of [`to_integers`](Self::to_integers); `None` if they are invalid.
    ///
    /// ```
    /// use sluicegate_core::{Decision, Outcome, Retry};
    ///
    /// let denied = Decision::from_integers(&[0, 1, 0, -1, 10_000_000, 0, 0]);
    /// assert_eq!(denied.map(|it| it.outcome), Some(Outcome::Deny { retry: Retry::Never }));
    /// assert_eq!(Decision::from_integers(&[2, 1, 0, -1, 10_000_000, 0, 0]), None);
    /// ```
    #[must_use]
    pub fn from_integers(integers: &[i64]) -> Option<Self> {
        let &[allowed, limit, remaining, retry, reset, delay, binding] = integers else {
            return None;
        };
        let span = |micros: i64| u64::try_from(micros).ok().map(Duration::from_micros);
        let outcome = match (allowed, retry) {
            (1, 0) => Outcome::Allow { delay: span(delay)? },
            (0, -1) => Outcome::Deny { retry: Retry::Never },
            (0, retry) => Outcome::Deny { retry: Retry::After(span(retry)?) },
            _ => return None,
        };
        Some(Self {
            outcome,
            limit: u32::try_from(limit).ok()?,
            remaining: u32::try_from(remaining).ok()?,
            reset_after: span(reset)?,
            binding: usize::try_from(binding).ok()?,
        })
    }
}
