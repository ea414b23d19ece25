//! Operations, and their answers.

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Take the cost if it fits.
    Take,
    /// Return the answer of `Take` and store nothing.
    Peek,
    /// Take the cost whether or not it fits.
    Charge,
    /// Give back up to the cost.
    Refund,
    /// Take the cost now if it fits after a wait of up to `max_wait_us`.
    Reserve {
        /// Upper bound on the wait, in microseconds.
        max_wait_us: u64,
    },
    /// Take nothing, because another key of the same request denies it: limits with `count=all` record the cost. The answer is
    /// that of a take afterwards, without its delay.
    RecordDenial,
    /// Reset the key.
    Reset,
}

/// An operation on a hold of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldOp {
    /// Hold the cost if it fits.
    Hold {
        /// Units to hold.
        cost: u32,
        /// Lifetime in microseconds; `None` for the default.
        ttl_us: Option<u64>,
    },
    /// End a hold and charge the units used.
    Settle {
        /// Units that were used; `None` for the units held.
        used: Option<u32>,
    },
    /// Let a hold expire later, or earlier.
    Renew {
        /// New lifetime in microseconds; `None` for the default.
        ttl_us: Option<u64>,
    },
}

/// A decision; spans are whole microseconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request passes.
    pub allowed: bool,
    /// Capacity of the binding limit.
    pub limit: u64,
    /// Number of requests of cost 1 that still pass at the same time.
    pub remaining: u64,
    /// Time after which the request passes: zero if allowed, `None` if it never does.
    pub retry_after_us: Option<u64>,
    /// Time until the key is unused.
    pub reset_after_us: u64,
    /// Time by which the caller must delay the request.
    pub delay_us: u64,
    /// Index of the binding limit in the policy, from 0.
    pub binding: usize,
}
