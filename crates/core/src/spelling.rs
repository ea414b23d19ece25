//! Words in errors: the invalid one as an error quotes it, the known word that it probably means, and lists of the
//! expected words.

use crate::human::printable;

/// Longer words are never compared, which bounds the work.
const MAX_LENGTH: usize = 64;

/// The word of `known` that `word` probably means: equal but for case, `-`, `_` and spaces, or one
/// or two edits away (one for words under six letters). The closest; of equals the first.
///
/// ```
/// use sluicegate_core::closest;
///
/// let known = ["token-bucket", "fixed-window"];
/// assert_eq!(closest("Token_Bucket", &known), Some("token-bucket"));
/// assert_eq!(closest("fixed-widnow", &known), Some("fixed-window"));
/// assert_eq!(closest("sliding", &known), None);
/// ```
#[must_use]
pub fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word = plain(word);
    if word.is_empty() || word.len() > MAX_LENGTH {
        return None;
    }
    let near = known.iter().filter_map(|known| {
        let other = plain(known);
        if other.len() > MAX_LENGTH {
            return None;
        }
        let edits = edits(&word, &other);
        (edits <= (other.len() / 3).clamp(1, 2)).then_some((edits, *known))
    });
    near.min_by_key(|(edits, _)| *edits).map(|(_, known)| known)
}

/// `a, b or c`; empty without words.
#[must_use]
pub fn any_of<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}

/// As [`any_of`], with each word in backquotes.
///
/// ```
/// assert_eq!(sluicegate_core::one_of(&["a", "b", "c"]), "`a`, `b` or `c`");
/// ```
#[must_use]
pub fn one_of(words: &[&str]) -> String {
    any_of(&words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>())
}

/// `text` in backquotes for an error: printable, and cut after 40 characters.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("`{}…`", printable(&text[..end])),
        None => format!("`{}`", printable(text)),
    }
}

/// In lower case, without `-`, `_` and spaces.
pub(crate) fn plain(word: &str) -> Vec<u8> {
    let letters = word.bytes().filter(|byte| !b"-_ ".contains(byte));
    letters.map(|byte| byte.to_ascii_lowercase()).collect()
}

/// Insertions, deletions, substitutions and swaps of neighbours that make `a` of `b` (the optimal
/// string alignment distance).
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(x != y);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_finds_misspellings_and_nothing_else() {
        let known = ["gcra", "token-bucket", "leaky-bucket", "fixed-window", "tz"];
        for (word, expected) in [
            ("GCRA", Some("gcra")),
            ("gcar", Some("gcra")),
            ("gcr", Some("gcra")),
            ("token_bucket", Some("token-bucket")),
            ("tokenbuckets", Some("token-bucket")),
            ("taken-backet", Some("token-bucket")),
            ("taken-bakets", None),
            ("fixed window", Some("fixed-window")),
            ("zt", Some("tz")),
            ("sliding-log", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(closest(word, &known), expected, "{word}");
        }
        assert_eq!(closest(&"g".repeat(1_000_000), &known), None);
    }

    #[test]
    fn edits_counts_swaps_once() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "ab", 2),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
            assert_eq!(edits(b.as_bytes(), a.as_bytes()), expected, "{b} {a}");
        }
    }
}
