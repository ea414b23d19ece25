//! State of redis-cell: the theoretical arrival time in nanoseconds since the Unix epoch, as decimal digits. It is
//! read, and replaced by a state of Sluicegate at the first change. (The reverse does not work: redis-cell aborts
//! the server if it finds another state.)

use sluicegate_commands::CommandError;
use sluicegate_core::{Entry, Limit, MAX_DRAIN, Policy, Timestamp};

/// The nanoseconds in `bytes`, if they are a state of redis-cell.
pub(crate) fn tat(bytes: &[u8]) -> Option<u64> {
    // A state of Sluicegate begins with the byte 1, which is not a digit.
    let digits = !bytes.is_empty() && bytes.len() <= 20 && bytes.iter().all(u8::is_ascii_digit);
    if !digits {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// The entry of `key` with this `tat`, under the first limit of `policy` that is of the gcra family; `None` if it has
/// recovered.
pub(crate) fn entry(
    tat: u64,
    key: &[u8],
    policy: &Policy,
    now: Timestamp,
) -> Result<Option<Entry>, CommandError> {
    let mut limits = policy.limits().iter();
    let gcra = limits.find_map(|it| if let Limit::Gcra(gcra) = it { Some(*gcra) } else { None });
    let gcra = gcra.ok_or_else(|| CommandError::redis_cell(key))?;
    let ahead = u128::from(tat).saturating_sub(u128::from(now.as_micros()) * 1000);
    let scale = u128::from(gcra.scale());
    let debt = (ahead * scale).div_ceil(1000).min(u128::from(MAX_DRAIN) * scale);
    // If `policy` has no other limit, it is the policy of that limit alone.
    let old = if policy.as_gcra().is_some() { policy.clone() } else { Limit::Gcra(gcra).into() };
    Ok(Entry::with_debt(&old, now, debt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tat_decimal_digits_only_returns_nanoseconds() {
        assert_eq!(tat(b"1700000000000000000"), Some(1_700_000_000_000_000_000));
        assert_eq!(tat(b"18446744073709551615"), Some(u64::MAX));
        for other in [&b""[..], b"18446744073709551616", b"-5", b" 5", b"5.0", b"\x01\x01"] {
            assert_eq!(tat(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn entry_keeps_the_debt() {
        let policy: Policy = "gcra:30/1m:burst=16,fixed-window:9/1h".parse().unwrap();
        let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        let owed = |tat| {
            let entry = entry(tat, b"k", &policy, now).unwrap()?;
            Some(u64::try_from(entry.lifetime(now).as_micros()).unwrap())
        };
        assert_eq!(owed(1_700_000_000_000_000_000), None);
        assert_eq!(owed(1_700_000_000_000_000_001), Some(1), "rounded up");
        assert_eq!(owed(1_700_000_004_000_000_000), Some(4_000_000));
        assert_eq!(owed(u64::MAX), Some(1 << 50), "no longer than any state may last");
        let window = "fixed-window:9/1h".parse().unwrap();
        assert_eq!(entry(5, b"k", &window, now), Err(CommandError::redis_cell(b"k")));
    }
}
