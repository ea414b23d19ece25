//! Percentages for people.

/// `part` of `whole`, rounded to a tenth of a per cent: `48.1 %`. Ties go to the even tenth, so that complements add up to
/// 100. A share that is not zero is never printed as zero, and one that is not all never as all.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return String::new();
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    let (tenths, rest) = (part * 1000 / whole, part * 1000 % whole);
    let up = match (rest * 2).cmp(&whole) {
        std::cmp::Ordering::Less => 0,
        std::cmp::Ordering::Equal => tenths % 2,
        std::cmp::Ordering::Greater => 1,
    };
    match tenths + up {
        0 if part > 0 => "<0.1 %".to_owned(),
        1000 if part < whole => ">99.9 %".to_owned(),
        tenths => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_and_never_hide_a_share() {
        for (part, whole, expected) in [
            (10_387, 20_000, "51.9 %"),
            (9_613, 20_000, "48.1 %"),
            (21, 27, "77.8 %"),
            (1, 3, "33.3 %"),
            (2, 3, "66.7 %"),
            (9, 20_000, "<0.1 %"),
            (10, 20_000, "<0.1 %"),
            (11, 20_000, "0.1 %"),
            (19_999, 20_000, ">99.9 %"),
            (667, 2_000, "33.4 %"),
            (1_333, 2_000, "66.6 %"),
            (0, 5, "0.0 %"),
            (u64::MAX, u64::MAX, "100.0 %"),
            (0, 0, ""),
        ] {
            assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        }
    }
}
