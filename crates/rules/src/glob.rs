//! Patterns in which `*` stands for any run of bytes, and `\` takes the meaning of what is behind it.

use std::fmt;

use memchr::memmem;

/// A pattern: literal pieces with any run of bytes between them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    text: Box<str>,
    /// What stands before, between and behind the stars: at least one, maybe empty.
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

    /// A pattern in which `\\` is a byte as any other.
    pub(crate) fn stars(text: &str) -> Self {
        let pieces = text.split('*').map(|piece| piece.as_bytes().into()).collect();
        Self { text: text.into(), pieces }
    }

    /// The pattern as written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The only value that it matches, if it has no star.
    pub(crate) fn literal(&self) -> Option<&[u8]> {
        match &*self.pieces {
            [only] => Some(only),
            _ => None,
        }
    }

    /// What every value begins with.
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.pieces[0]
    }

    /// What every value ends with.
    pub(crate) fn suffix(&self) -> &[u8] {
        &self.pieces[self.pieces.len() - 1]
    }

    /// Whether a beginning, or an end, is all that it asks for; or nothing.
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
        // Where each piece is taken as early as it comes, what is behind has the most room.
        for piece in middle {
            let Some(at) = memmem::find(value, piece) else { return false };
            value = &value[at + piece.len()..];
        }
        true
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Glob({})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_run_of_bytes() {
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
    fn a_pattern_without_a_star_is_a_value() {
        assert_eq!(Glob::new(r"a\*b").literal(), Some(&b"a*b"[..]));
        assert_eq!(Glob::new("a*b").literal(), None);
        assert_eq!((Glob::new("a*b").prefix(), Glob::new("a*b").suffix()), (&b"a"[..], &b"b"[..]));
    }
}
