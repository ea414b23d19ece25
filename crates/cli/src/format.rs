//! Formatting of times.

use jiff::Timestamp;

/// A point in time in UTC, to the second: `2023-11-14 22:14:00 UTC`.
pub(crate) fn moment(micros: u64) -> String {
    let micros = i64::try_from(micros).expect("a time of the simulation is at most 2^52");
    let time = Timestamp::from_microsecond(micros).expect("which is a time of the year 2112");
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_follows_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_700_000_040, "2023-11-14 22:14:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(moment(seconds * 1_000_000), expected);
        }
    }
}
