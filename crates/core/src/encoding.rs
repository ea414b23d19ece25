//! The byte form of an [`Entry`]: the state of a key outside a process.
//!
//! Laid out so that Lua reads it with `struct.unpack` and exact doubles: all numbers are little-endian, and earlier
//! fields determine their width. `docs/state-format.md` is the specification, byte by byte.
//!
//! Invariants: decoding an encoded entry gives an equal one; any bytes decode to an entry or to an error, never to a
//! guess; a length that the bytes merely claim allocates nothing.

use crate::{
    algorithm::{Limit, State},
    bytes::{FLAGS, Head, Reader, StateError, Writer},
    entry::{Entry, States},
    ledger::Ledger,
    policy::Policy,
    text::MAX_LIMITS,
};

/// The version of the byte form of an entry with open holds, or with a limit that counts them.
const VERSION: u8 = 4;
/// The version of all other entries, which takes less space.
const WITHOUT_HOLDS: u8 = 2;
/// Versions to come end here, so that a value whose first byte is a letter, a digit or a tab is known
/// to be of another program.
const LAST_VERSION: u8 = 7;

impl Entry {
    /// The entry as bytes.
    ///
    /// ```
    /// use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
    ///
    /// let policy: Policy = "gcra:30/60s:burst=16".parse()?;
    /// let mut entry = None;
    /// let now = Timestamp::from_micros(1_700_000_000_000_000)?;
    /// let _ = apply(&policy, &mut entry, now, Operation::Take(1))?;
    ///
    /// let entry = entry.expect("a unit is in use");
    /// let bytes = entry.encode();
    /// assert_eq!(bytes.len(), 24);
    /// assert_eq!(Entry::decode(&bytes), Ok(entry));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head();
        for (limit, state) in self.limits() {
            limit.encode(state, &mut out);
        }
        if let Some(ledger) = self.ledger() {
            ledger.encode(&mut out);
        }
        out.0
    }

    /// The version and the number of limits.
    fn head(&self) -> Writer {
        let has_holds = self.ledger().is_some() || self.policy.counts_holds();
        let mut out = Writer(Vec::with_capacity(24));
        out.uint(if has_holds { VERSION } else { WITHOUT_HOLDS }.into(), 1);
        out.uint(self.policy.limits().len() as u64, 1);
        out
    }

    /// The length of the bytes that [`encode`](Self::encode) returns.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut logs = 0;
        let mut out = self.head();
        for (limit, state) in self.limits() {
            let log = state.log_len();
            limit.encode(if log > 0 { &State::None } else { state }, &mut out);
            logs += log;
        }
        out.0.len() + logs + self.ledger().map_or(0, Ledger::encoded_len)
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`StateError`] for an entry of a later version, and for any other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let mut input = Reader(bytes);
        let version = match input.byte() {
            Ok(version @ (WITHOUT_HOLDS | VERSION)) => version,
            Ok(3) => return Err(StateError::Damaged("its version 3 was never released")),
            Ok(version) if (VERSION..=LAST_VERSION).contains(&version) => {
                return Err(StateError::Version(version));
            }
            Ok(_) | Err(_) => return Err(StateError::Foreign),
        };
        let count = usize::from(input.byte()?);
        if !(1..=MAX_LIMITS).contains(&count) {
            return Err(StateError::Damaged("its number of limits is not 1 to 8"));
        }
        let mut limits = Vec::with_capacity(count);
        let mut states = States::with_capacity(count);
        for _ in 0..count {
            let (limit, state) = read_limit(&mut input)?;
            limits.push(limit);
            states.push(state);
        }
        if version == VERSION && !input.0.is_empty() {
            states.push(State::Holds(Box::new(Ledger::decode(&mut input)?)));
        }
        if !input.0.is_empty() {
            return Err(StateError::Damaged("it goes on after its end"));
        }
        let policy =
            Policy::try_from(limits).map_err(|_| StateError::Damaged("it has no limits"))?;
        Ok(Self { policy, states })
    }
}

/// The limit and the state that `input` goes on with.
fn read_limit(input: &mut Reader<'_>) -> Result<(Limit, State), StateError> {
    let first = input.byte()?;
    let (code, flags) = (first & !FLAGS, first & FLAGS);
    let known = Limit::flags(code);
    let known = known.ok_or(StateError::Damaged("a limit is of no known algorithm"))?;
    if flags & !known != 0 {
        return Err(StateError::Damaged("a limit has an unknown flag"));
    }
    let head = Head { code, flags, limit: input.u32()? };
    Limit::decode(head, input)
}
