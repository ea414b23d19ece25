//! Patterns in which `*` matches any bytes, also none, and `\` escapes the next byte.

use memchr::memmem;

/// A pattern: literal pieces with any bytes between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    /// The pattern as written.
    pub(crate) text: Box<str>,
    /// The pieces before, between and after the stars: at least one, some may be empty.
    pieces: Box<[Box<[u8]>]>,
}

impl Glob {
    pub(crate) fn new(text: &str) -> Self {
        let mut pieces = vec![Vec::new()];
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            match byte {
                b'*' => pieces.push(Vec::new()),
                b'\\' => pieces.last_mut().expect("one piece").extend(bytes.next().or(Some(byte))),
                _ => pieces.last_mut().expect("one piece").push(byte),
            }
        }
        Self { text: text.into(), pieces: pieces.into_iter().map(Into::into).collect() }
    }

    /// A pattern in which `\` is an ordinary byte.
    pub(crate) fn stars(text: &str) -> Self {
        let pieces = text.split('*').map(|piece| piece.as_bytes().into()).collect();
        Self { text: text.into(), pieces }
    }

    /// The only value that it matches, if it has no star.
    pub(crate) fn literal(&self) -> Option<&[u8]> {
        match &*self.pieces {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Start of every matching value.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.pieces[0]
    }

    /// End of every matching value.
    pub(crate) fn suffix(&self) -> &[u8] {
        &self.pieces[self.pieces.len() - 1]
    }

    /// Whether it is only a prefix or only a suffix.
    pub(crate) fn is_one_sided(&self) -> bool {
        match &*self.pieces {
            [before, after] => before.is_empty() || after.is_empty(),
            _ => false,
        }
    }

    pub(crate) fn matches(&self, value: &[u8]) -> bool {
        let [first, rest @ ..] = &*self.pieces else { return false };
        let [middle @ .., last] = rest else { return value == &**first };
        let Some(value) = value.strip_prefix(&**first) else { return false };
        let Some(mut value) = value.strip_suffix(&**last) else { return false };
        // The earliest occurrence of each piece leaves the most bytes for the rest.
        for piece in middle {
            let Some(at) = memmem::find(value, piece) else { return false };
            value = &value[at + piece.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_star_matches_any_bytes() {
        for (pattern, value, expected) in [
            ("gold", "gold", true),
            ("gold", "golden", false),
            ("gold*", "golden", true),
            ("gold*", "gol", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "example.com", false),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acbc", true),
            ("a*b*c", "abcd", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("**", "x", true),
            (r"\*", "*", true),
            (r"\*", "x", false),
            (r"a\\*", r"a\b", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(value.as_bytes()), expected, "{pattern} {value}");
        }
    }

    #[test]
    fn literal_pattern_without_star_is_a_value() {
        assert_eq!(Glob::new(r"a\*b").literal(), Some(&b"a*b"[..]));
        assert_eq!(Glob::new("a*b").literal(), None);
        assert_eq!((Glob::new("a*b").prefix(), Glob::new("a*b").suffix()), (&b"a"[..], &b"b"[..]));
    }
}
