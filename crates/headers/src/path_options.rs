//! Differences between paths, beyond their spelling, that a rule or a route ignores.

use std::{borrow::Cow, fmt};

use crate::target::{canonical_path, without_parameters};

/// Differences between paths that a rule or a route ignores. By default it ignores none: such paths are different in
/// RFC 3986, and applications differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathOptions {
    /// `case: insensitive`: the case of ASCII letters.
    pub ignore_case: bool,
    /// `trailing-slash: ignore`: a slash at the end.
    pub ignore_trailing_slash: bool,
    /// `parameters: strip`: in a segment, a `;` and everything after it.
    pub strip_parameters: bool,
}

impl PathOptions {
    /// Whether all differences count.
    #[must_use]
    pub const fn is_strict(self) -> bool {
        !self.ignore_case && !self.ignore_trailing_slash && !self.strip_parameters
    }

    /// A canonical path without the ignored differences.
    #[must_use]
    pub fn apply(self, path: &str) -> Cow<'_, str> {
        let mut path = Cow::Borrowed(path);
        if self.strip_parameters && path.contains(';') {
            let stripped = without_parameters(&path);
            // `..;x` is `..` now.
            path = Cow::Owned(canonical_path(&stripped).into_owned());
        }
        if self.ignore_trailing_slash && path.ends_with('/') {
            let trimmed = path.trim_end_matches('/');
            let trimmed = if trimmed.is_empty() { "/" } else { trimmed };
            path = Cow::Owned(trimmed.to_owned());
        }
        if self.ignore_case && path.bytes().any(|byte| byte.is_ascii_uppercase()) {
            path = Cow::Owned(path.to_ascii_lowercase());
        }
        path
    }
}

/// In words, in parentheses; empty if all differences count.
impl fmt::Display for PathOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.ignore_case, "in any case"),
            (self.ignore_trailing_slash, "with or without a slash at the end"),
            (self.strip_parameters, "with or without ;parameters"),
        ];
        let words: Vec<_> = words.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect();
        if words.is_empty() { Ok(()) } else { write!(formatter, " ({})", words.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apply_ignores_only_the_given_differences() {
        let [case, slash, parameters] =
            [(true, false, false), (false, true, false), (false, false, true)].map(
                |(ignore_case, ignore_trailing_slash, strip_parameters)| PathOptions {
                    ignore_case,
                    ignore_trailing_slash,
                    strip_parameters,
                },
            );
        for (options, path, expected) in [
            (PathOptions::default(), "/LogIn/;x/", "/LogIn/;x/"),
            (case, "/LogIn/%C3%BC;X", "/login/%c3%bc;x"),
            (slash, "/login/", "/login"),
            (slash, "/login//", "/login"),
            (slash, "/", "/"),
            (slash, "/login", "/login"),
            (parameters, "/login;jsessionid=1", "/login"),
            (parameters, "/a;b=c/login;x;y", "/a/login"),
            (parameters, "/a/..;/login", "/login"),
            (parameters, "/;x/login/;y", "/login/"),
            (parameters, ";x", "/"),
        ] {
            assert_eq!(options.apply(path), expected, "{options:?} {path}");
            assert_eq!(options.apply(&options.apply(path)), expected, "{options:?} {path}");
        }
    }
}
