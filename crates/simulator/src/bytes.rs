//! Bytes looked at eight at a time, as one number: fast on the short texts that fields are, where
//! a call to a search routine would cost more than the search.

const ONES: u64 = 0x0101_0101_0101_0101;
const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Calls `found` with the place of each `byte` in `text`, in order.
#[inline]
pub(crate) fn each(byte: u8, text: &[u8], mut found: impl FnMut(usize)) {
    let pattern = ONES * u64::from(byte);
    let mut mark = |mut marks: u64, from: usize| {
        while marks != 0 {
            found(from + lowest(marks));
            marks &= marks - 1;
        }
    };
    let (words, rest) = text.as_chunks();
    for (index, word) in words.iter().enumerate() {
        mark(zeros(u64::from_le_bytes(*word) ^ pattern), 8 * index);
    }
    if let (false, Some(last)) = (rest.is_empty(), text.last_chunk()) {
        // The last eight bytes again, those that were seen shifted out.
        let seen = 8 - rest.len();
        let marks = zeros(u64::from_le_bytes(*last) ^ pattern) >> (8 * seen);
        mark(marks, text.len() - rest.len());
    } else {
        mark(zeros(short(rest, !byte) ^ pattern), 0);
    }
}

/// Where the first of two bytes is in `text`.
#[inline]
pub(crate) fn first_of(one: u8, other: u8, text: &[u8]) -> Option<usize> {
    let (one_pattern, other_pattern) = (ONES * u64::from(one), ONES * u64::from(other));
    let (words, rest) = text.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marks = zeros(word ^ one_pattern) | zeros(word ^ other_pattern);
        if marks != 0 {
            return Some(8 * index + lowest(marks));
        }
    }
    let found = rest.iter().position(|byte| *byte == one || *byte == other)?;
    Some(text.len() - rest.len() + found)
}

/// Whether any byte of `text` is less than `bound`, which is at most 0x80.
#[inline]
pub(crate) fn any_below(bound: u8, text: &[u8]) -> bool {
    let bounds = ONES * u64::from(bound);
    let marks = |word: u64| word.wrapping_sub(bounds) & !word & HIGH;
    let (words, rest) = text.as_chunks();
    let mut found = 0;
    for word in words {
        found |= marks(u64::from_le_bytes(*word));
    }
    found |= match text.last_chunk() {
        Some(last) => marks(u64::from_le_bytes(*last)),
        None => marks(short(rest, 0xff)),
    };
    found != 0
}

/// Fewer than eight bytes, filled up.
#[inline]
fn short(text: &[u8], fill: u8) -> u64 {
    let mut word = [fill; 8];
    for (to, from) in word.iter_mut().zip(text) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

/// The high bit of each byte that is zero, and of no other.
#[inline]
const fn zeros(word: u64) -> u64 {
    !(((word & LOW) + LOW) | word) & HIGH
}

/// The index of the lowest byte that is marked.
#[inline]
fn lowest(marks: u64) -> usize {
    usize::try_from(marks.trailing_zeros() / 8).expect("less than eight")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(b','), Just(b','), Just(b','), any::<u8>()];
        proptest::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn each_is_found_in_order(text in texts()) {
            let mut found = Vec::new();
            each(b',', &text, |at| found.push(at));
            let naive = text.iter().enumerate().filter(|(_, byte)| **byte == b',');
            prop_assert_eq!(found, naive.map(|(at, _)| at).collect::<Vec<_>>());
        }

        #[test]
        fn first_of_is_the_first(text in texts()) {
            let naive = text.iter().position(|byte| b",a".contains(byte));
            prop_assert_eq!(first_of(b',', b'a', &text), naive);
        }

        #[test]
        fn any_below_is_whether_one_is(text in texts(), bound in 0..=0x80_u8) {
            let naive = text.iter().any(|byte| *byte < bound);
            prop_assert_eq!(any_below(bound, &text), naive);
        }
    }
}
