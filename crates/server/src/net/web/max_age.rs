//! The maximum age of connections, so that clients redistribute over servers.

use std::time::Duration;

use ahash::RandomState;

/// The age of a connection without a limit.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 86_400);

/// The age at which a connection is ended: `age` with a random jitter of a tenth, so that not all end at
/// once. Zero: never.
pub(super) fn end_after(age: Duration) -> Duration {
    if age.is_zero() {
        return FOR_EVER;
    }
    let age = age.min(FOR_EVER);
    let steps = u32::try_from(RandomState::new().hash_one(age) % 2_000).unwrap_or_default();
    age / 10 * 9 + age / 10_000 * steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_after_is_jittered_by_a_tenth() {
        let age = Duration::from_secs(1_000);
        let ages: Vec<_> = (0..100).map(|_| end_after(age)).collect();
        let (least, most) = (Duration::from_secs(900), Duration::from_secs(1_100));
        assert!(ages.iter().all(|age| (least..=most).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age != ages[0]));
        assert_eq!(end_after(Duration::ZERO), FOR_EVER);
        assert!(end_after(Duration::MAX) < FOR_EVER * 2);
    }
}
