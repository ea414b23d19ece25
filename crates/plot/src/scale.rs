//! Axes: positions of values, and the round values that label an axis.

/// Steps of a time axis: divisions of clocks and calendars. Each unit in microseconds, with multiples.
const STEPS: [(u64, &[u64]); 5] = [
    (1_000, &[1, 2, 5, 10, 20, 50, 100, 200, 500]),
    (1_000_000, &[1, 2, 5, 10, 15, 30]),
    (60_000_000, &[1, 2, 5, 10, 15, 30]),
    (3_600_000_000, &[1, 2, 3, 6, 12]),
    (86_400_000_000, &[1, 2, 7, 14, 28, 91, 182, 364]),
];

/// Units of time with their names, the largest first.
const UNITS: [(u64, &str); 6] = [
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "m"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
];

fn steps() -> impl Iterator<Item = u64> {
    STEPS.iter().flat_map(|(unit, multiples)| multiples.iter().map(move |it| it * unit))
}

/// Round values of a time axis of `length` microseconds, at most `most` (at least 2) and 1.
pub(crate) fn time_ticks(length: u64, most: u64) -> Vec<u64> {
    let most = most.max(2);
    let longest = steps().last().expect("there are steps");
    // Beyond the longest, a round number of years, near enough.
    let years = || longest * round_up(length.div_ceil(longest * most));
    ticks(steps().find(|step| length / step <= most).unwrap_or_else(years), length)
}

/// Round values of an axis that reaches from 0 to `top`: 1, 2 or 5 times a power of ten apart, at
/// most `most` (at least 2) and 1 of them.
pub(crate) fn count_ticks(top: u64, most: u64) -> Vec<u64> {
    ticks(round_up(top.div_ceil(most.max(2)).max(1)), top)
}

fn ticks(step: u64, top: u64) -> Vec<u64> {
    (0..=top / step).map(|index| index * step).collect()
}

/// The least 1, 2 or 5 times a power of ten that is at least `value`.
fn round_up(value: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            match power.checked_mul(factor) {
                Some(round) if round >= value => return round,
                Some(_) => {}
                None => return u64::MAX,
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Where `value` of `0..=top` is on an axis that is `length` long, rounded to the nearest.
pub(crate) fn place(value: u64, top: u64, length: u64) -> u64 {
    let top = u128::from(top.max(1));
    let place = (u128::from(value.min(u64::MAX / 2)) * u128::from(length) * 2 + top) / (2 * top);
    u64::try_from(place).unwrap_or(u64::MAX)
}

/// A span of time as it is written beside an axis: exact, in the largest unit that divides it, or
/// as a decimal fraction of seconds.
#[must_use]
pub fn span(micros: u64) -> String {
    if micros == 0 {
        return "0".to_owned();
    }
    if micros > 1_000_000 && !micros.is_multiple_of(1_000_000) && micros.is_multiple_of(1_000) {
        let text = format!("{}.{:03}", micros / 1_000_000, micros / 1_000 % 1_000);
        return format!("{}s", text.trim_end_matches('0'));
    }
    let fits = UNITS.into_iter().find(|(length, _)| micros.is_multiple_of(*length));
    fits.map_or_else(String::new, |(length, word)| format!("{}{word}", micros / length))
}

/// The values of a time axis, all in one unit: the largest that divides each of them, or seconds with decimals from 1 s on.
pub(crate) fn axis_spans(values: &[u64]) -> Vec<String> {
    let step = values.iter().copied().find(|it| *it > 0).unwrap_or(1);
    let last = values.last().copied().unwrap_or(0);
    let divides = |unit: u64| step.is_multiple_of(unit);
    let (unit, word) = match UNITS.into_iter().find(|(unit, _)| divides(*unit)) {
        Some((1_000, _)) if last > 1_000_000 => (1_000_000, "s"),
        Some(unit) => unit,
        None => (1, "us"),
    };
    let text = |value: u64| match (value, value % unit) {
        (0, _) => "0".to_owned(),
        (_, 0) => format!("{}{word}", value / unit),
        (_, rest) => {
            let text = format!("{}.{:03}", value / unit, rest / 1_000);
            format!("{}{word}", text.trim_end_matches('0'))
        }
    };
    values.iter().copied().map(text).collect()
}

/// A count as it is written beside an axis: thousands and millions of a round one by a letter.
pub(crate) fn count(value: u64) -> String {
    match value {
        10_000.. if value.is_multiple_of(1_000_000) => format!("{}M", value / 1_000_000),
        10_000.. if value.is_multiple_of(1_000) => format!("{}k", value / 1_000),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn axis_spans_have_one_unit() {
        for (step, expected) in [
            (200, "0 200us 400us 600us"),
            (200_000, "0 200ms 400ms 600ms"),
            (500_000, "0 0.5s 1s 1.5s"),
            (30_000_000, "0 30s 60s 90s"),
            (60_000_000, "0 1m 2m 3m"),
            (1_800_000_000, "0 30m 60m 90m"),
            (43_200_000_000, "0 12h 24h 36h"),
            (604_800_000_000, "0 7d 14d 21d"),
        ] {
            assert_eq!(axis_spans(&[0, step, 2 * step, 3 * step]).join(" "), expected);
        }
    }

    #[test]
    fn span_is_exact() {
        for (micros, actual) in [
            (0, "0"),
            (1, "1us"),
            (50_000, "50ms"),
            (1_500_000, "1.5s"),
            (90_000_000, "90s"),
            (3_600_000_000, "1h"),
            (129_600_000_000, "36h"),
            (172_800_000_000, "2d"),
        ] {
            assert_eq!(span(micros), actual);
        }
    }

    #[test]
    fn count_round_values_are_short() {
        let written = [0, 9_000, 10_000, 10_001, 2_500_000, 3_000_000].map(count);
        assert_eq!(written, ["0", "9000", "10k", "10001", "2500k", "3M"]);
    }

    #[test]
    fn steps_are_in_order() {
        assert!(steps().is_sorted());
        assert_eq!(round_up(0), 1);
        assert_eq!(round_up(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn ticks_are_few_round_and_on_the_axis(top in 0..=u64::MAX, most in 2..20_u64) {
            for values in [count_ticks(top, most), time_ticks(top.min(1 << 60), most)] {
                let step = values.get(1).copied().unwrap_or(1);
                prop_assert!(u64::try_from(values.len()).unwrap() <= most + 1);
                prop_assert_eq!(values[0], 0);
                prop_assert!(values.iter().all(|value| *value <= top && value % step == 0));
            }
            if let Some(step) = count_ticks(top, most).get(1) {
                let digits = step.to_string();
                prop_assert!(["1", "2", "5"].contains(&digits.trim_end_matches('0')));
            }
        }

        #[test]
        fn count_ticks_are_enough(top in 4..1_u64 << 60, most in 4..20_u64) {
            // A step is at most 2.5 times the finest that is possible.
            prop_assert!(u64::try_from(count_ticks(top, most).len()).unwrap() > most * 2 / 5 );
        }

        #[test]
        fn place_keeps_order_and_ends(
            top in 1..=u64::MAX / 2, length in 1..100_000_u64, one in 0..=u64::MAX, other in 0..=u64::MAX,
        ) {
            let (one, other) = (one % (top + 1), other % (top + 1));
            let (low, high) = (one.min(other), one.max(other));
            prop_assert!(place(low, top, length) <= place(high, top, length));
            prop_assert_eq!((place(0, top, length), place(top, top, length)), (0, length));
            // Within half of a step of its exact position.
            let exact = u128::from(low) * u128::from(length);
            let found = u128::from(place(low, top, length)) * u128::from(top);
            prop_assert!(exact.abs_diff(found) * 2 <= u128::from(top));
        }
    }
}
