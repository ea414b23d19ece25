//! The operations of a trace, by name.

use std::fmt;

use sluicegate_core::Policy;

/// The operations of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request.
    Take,
    /// A check that takes nothing.
    Peek,
    /// A cost that is only known afterwards.
    Charge,
    /// A cost that is returned.
    Refund,
    /// Removal of the state of the key.
    Reset,
    /// A request that holds its cost until it is settled.
    Hold,
    /// The end of a hold, with the units used.
    Settle,
    /// A new lifetime of a hold.
    Renew,
    /// The start of a request of an access log: a hold under a policy with `concurrency`, else a take.
    Start,
    /// The end of a request of an access log: a settle under a policy with `concurrency`; it changes nothing under others.
    End,
}

impl Kind {
    /// All kinds of a trace, with their names.
    const NAMES: [(Self, &'static str); 8] = [
        (Self::Take, "take"),
        (Self::Peek, "peek"),
        (Self::Charge, "charge"),
        (Self::Refund, "refund"),
        (Self::Reset, "reset"),
        (Self::Hold, "hold"),
        (Self::Settle, "settle"),
        (Self::Renew, "renew"),
    ];

    /// The kind of that name in a trace.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        if name.is_empty() {
            return Some(Self::Take);
        }
        let found = Self::NAMES.iter().find(|(_, known)| known.as_bytes() == name);
        found.map(|(kind, _)| *kind)
    }

    /// The operation under `policy`: the start of a request is a hold or a take, and its end is a settle or a peek.
    #[must_use]
    pub fn under(self, policy: &Policy) -> Self {
        match self {
            Self::Start if policy.counts_holds() => Self::Hold,
            Self::Start => Self::Take,
            Self::End if policy.counts_holds() => Self::Settle,
            Self::End => Self::Peek,
            kind => kind,
        }
    }

    /// Whether it is a request, which is allowed or denied.
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Take | Self::Hold | Self::Start)
    }

    /// Whether it is about a hold, which has an id.
    #[must_use]
    pub const fn has_id(self) -> bool {
        matches!(self, Self::Hold | Self::Settle | Self::Renew | Self::Start | Self::End)
    }

    /// Whether it may have a lifetime.
    pub(crate) const fn has_ttl(self) -> bool {
        matches!(self, Self::Hold | Self::Renew)
    }

    /// Whether an event may be without a cost.
    pub(crate) const fn may_omit_cost(self) -> bool {
        matches!(self, Self::Settle | Self::Renew)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(kind, _)| kind == self).map(|(_, name)| *name);
        formatter.write_str(name.unwrap_or(if *self == Self::Start { "start" } else { "end" }))
    }
}
