//! Decimal numbers.

/// A whole number in decimal digits: no sign, no space, no leading zero.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    match text {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] => text.iter().try_fold(0_u64, |number, &byte| {
            let digit = byte.checked_sub(b'0').filter(|&digit| digit <= 9)?;
            number.checked_mul(10)?.checked_add(digit.into())
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_accepts_plain_digits_only() {
        let table: [(&[u8], Option<u64>); 16] = [
            (b"0", Some(0)),
            (b"7", Some(7)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"99999999999999999999999", None),
            (b"", None),
            (b"00", None),
            (b"01", None),
            (b"+5", None),
            (b"-0", None),
            (b"-5", None),
            (b" 5", None),
            (b"5 ", None),
            (b"5.0", None),
            (b"0x5", None),
            (b"5\0", None),
        ];
        for (text, expected) in table {
            assert_eq!(decimal(text), expected, "{}", text.escape_ascii());
        }
    }
}
