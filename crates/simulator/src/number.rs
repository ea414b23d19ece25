//! Decimal numbers, read from bytes and written to them.

/// The whole number that `text` is; `None` for anything but digits, or more than `u64` holds.
#[inline]
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    match text {
        [digit @ b'0'..=b'9'] => Some(u64::from(digit - b'0')),
        [] => None,
        _ => parse_long(text),
    }
}

fn parse_long(text: &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    let mut eights = text.chunks_exact(8);
    for eight in eights.by_ref() {
        let eight = parse_eight(eight.try_into().expect("a chunk is eight bytes long"))?;
        value = value.checked_mul(100_000_000)?.checked_add(eight)?;
    }
    for digit in eights.remainder() {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Eight digits at once: neighbours are joined into pairs, pairs into fours, fours into eight.
#[inline(always)]
pub(crate) fn parse_eight(text: [u8; 8]) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let digits = u64::from_le_bytes(text) ^ (ONES * 0x30);
    // A byte above 9 has its high half set, or gets it when 6 is added to it.
    let high = ONES * 0xf0;
    if (digits & high) | (digits.wrapping_add(ONES * 6) & high) != 0 {
        return None;
    }
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// Bytes that [`write()`] needs room for, whatever the number.
pub(crate) const ROOM: usize = 24;

const EIGHT: u64 = 100_000_000;

/// Writes `value` to the front of `out`, which has [`ROOM`], and tells how long it is. What is
/// behind it is written over too.
#[inline]
pub(crate) fn write(value: u64, out: &mut [u8]) -> usize {
    if value < 10 {
        out[0] = b'0' + value.to_le_bytes()[0];
        1
    } else if value < EIGHT {
        write_short(value, out)
    } else {
        let length = write_long(value / EIGHT, out);
        out[length..length + 8].copy_from_slice(&eight_digits(value % EIGHT));
        length + 8
    }
}

fn write_long(value: u64, out: &mut [u8]) -> usize {
    if value < EIGHT {
        return write_short(value, out);
    }
    let length = write_short(value / EIGHT, out);
    out[length..length + 8].copy_from_slice(&eight_digits(value % EIGHT));
    length + 8
}

/// Writes a value less than 10^8. Nothing here depends on its length but where the next one is
/// written: numbers of unforeseeable length would make the processor guess, and guess wrong.
#[inline]
fn write_short(value: u64, out: &mut [u8]) -> usize {
    let digits = digits(value);
    // A zero has one digit, the last.
    let zeros = (digits | 1 << 56).trailing_zeros() / 8;
    out[..8].copy_from_slice(&((digits >> (8 * zeros)) + ZEROS).to_le_bytes());
    usize::try_from(8 - zeros).expect("at most eight")
}

/// The eight digits of a value less than 10^8, zeros in front.
#[inline]
pub(crate) fn eight_digits(value: u64) -> [u8; 8] {
    (digits(value) + ZEROS).to_le_bytes()
}

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The digits of a value less than 10^8, one a byte, the first in the lowest: halves are parted
/// into fours, fours into pairs, pairs into digits, all at once in one number. The quotients are
/// products with a rounded-up inverse, exact for numbers so small.
#[inline]
const fn digits(value: u64) -> u64 {
    let fours = (value / 10_000) | (value % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let pairs = hundreds | (fours - 100 * hundreds) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (pairs - 10 * tens) << 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_and_nothing_else() {
        for text in ["", "+1", "-1", "1.0", " 1", "1 ", "0x1", "1234567:", "/2345678", "12345678e1"]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse(b"18446744073709551616"), None);
        assert_eq!(parse(b"00000000000000000000000000012"), Some(12));
    }

    #[test]
    fn all_numbers_of_four_digits_are_parted_exactly() {
        for four in 0..10_000 {
            let value = four * 10_000 + (9_999 - four);
            assert_eq!(&eight_digits(value)[..], format!("{value:08}").as_bytes());
        }
    }

    proptest! {
        #[test]
        fn reads_what_was_written(value: u64, shift in 0..64_u32) {
            let value = value >> shift;
            prop_assert_eq!(parse(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn writes_what_can_be_read(value: u64, shift in 0..64_u32) {
            let value = value >> shift;
            let mut out = [0; ROOM];
            let length = write(value, &mut out);
            let told = String::from_utf8_lossy(&out[..length]).into_owned();
            prop_assert_eq!(told, value.to_string());
        }

        #[test]
        fn agrees_with_the_standard_library(text in "[0-9:/ ]{0,22}") {
            prop_assert_eq!(parse(text.as_bytes()), text.parse().ok());
        }
    }
}
