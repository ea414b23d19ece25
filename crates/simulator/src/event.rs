//! One operation on a key.

use sluicegate_core::{Operation, Timestamp};

/// One operation on a key, from any source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The line of the trace it begins on, counted from 1.
    pub line: u64,
    /// Its time.
    pub time: Timestamp,
    /// The key: any bytes.
    pub key: &'a [u8],
    /// Its cost in units; not used by a `reset`.
    pub cost: u32,
    /// The text of the policy in force for it; empty for the default one.
    pub policy: &'a [u8],
    /// Which operation it is.
    pub kind: Kind,
}

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
}

impl Event<'_> {
    /// The operation, with its cost.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self.kind {
            Kind::Take => Operation::Take(self.cost),
            Kind::Peek => Operation::Peek(self.cost),
            Kind::Charge => Operation::Charge(self.cost),
            Kind::Refund => Operation::Refund(self.cost),
            Kind::Reset => Operation::Reset,
        }
    }
}

impl Kind {
    /// The kind of that name in a trace.
    pub(crate) fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"" | b"take" => Some(Self::Take),
            b"peek" => Some(Self::Peek),
            b"charge" => Some(Self::Charge),
            b"refund" => Some(Self::Refund),
            b"reset" => Some(Self::Reset),
            _ => None,
        }
    }
}
