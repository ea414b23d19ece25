//! One thing that happened to a key.

use sluicegate_core::{Operation, Timestamp};

/// One thing that happened to a key, wherever it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The line of the trace it begins on, counted from 1.
    pub line: u64,
    /// When it happened.
    pub time: Timestamp,
    /// To whom: any bytes.
    pub key: &'a [u8],
    /// Its cost in units; a `reset` has no use for it.
    pub cost: u32,
    /// The text of the policy in force for it; empty for the default one.
    pub policy: &'a [u8],
    /// What is asked.
    pub kind: Kind,
}

/// The operations of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request.
    Take,
    /// A question.
    Peek,
    /// A cost that is known only afterwards.
    Charge,
    /// A cost given back.
    Refund,
    /// A fresh start.
    Reset,
}

impl Event<'_> {
    /// What is asked, with its cost.
    #[must_use]
    #[inline]
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
    #[inline]
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
