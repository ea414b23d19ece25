//! Connections that are ended for their age, so that clients spread over servers anew.

use std::time::Duration;

use ahash::RandomState;

/// Nothing lasts longer.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 86_400);

/// The age at which a connection is ended: a tenth more or less than `age`, so that not all end at
/// once. Zero is never.
pub(super) fn old_age(age: Duration) -> Duration {
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
    fn connections_grow_old_at_different_times() {
        let age = Duration::from_secs(1_000);
        let ages: Vec<_> = (0..100).map(|_| old_age(age)).collect();
        let (least, most) = (Duration::from_secs(900), Duration::from_secs(1_100));
        assert!(ages.iter().all(|age| (least..=most).contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age != ages[0]));
        assert_eq!(old_age(Duration::ZERO), FOR_EVER);
        assert!(old_age(Duration::MAX) < FOR_EVER * 2);
    }
}
