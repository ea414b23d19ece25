//! The operations of a trace, by name.

use std::fmt;

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
    /// The end of a hold, with what was used.
    Settle,
    /// A new lifetime of a hold.
    Renew,
}

impl Kind {
    /// All kinds, with their names in a trace.
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

    /// Whether it is a request, which is allowed or denied.
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Take | Self::Hold)
    }

    /// Whether an event may be without a cost.
    pub(crate) const fn may_omit_cost(self) -> bool {
        matches!(self, Self::Settle | Self::Renew)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(kind, _)| kind == self);
        formatter.write_str(name.map_or("", |(_, name)| name))
    }
}
