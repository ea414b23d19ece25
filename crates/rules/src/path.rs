//! Path patterns.

use sluicegate_headers::{PathOptions, canonical_path};

use crate::{error::quoted, glob::Glob};

/// Maximum number of segments of a pattern.
pub(crate) const MAX_SEGMENTS: usize = 32;

/// A path pattern, in segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPattern {
    pub(crate) text: Box<str>,
    /// The only path that it matches, if it has no wildcard.
    pub(crate) literal: Option<Box<str>>,
    pub(crate) segments: Box<[Segment]>,
}

/// A segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(Box<str>),
    /// A segment with stars.
    Glob(Glob),
    /// `*`, or `{NAME}`: any one segment that is not empty.
    One(Option<Box<str>>),
    /// `**`: any segments, or none.
    Any,
}

impl Segment {
    /// The only segment that it matches, if it has no wildcard.
    fn literal(&self) -> Option<&str> {
        match self {
            Self::Literal(text) => Some(text),
            Self::Glob(_) | Self::One(_) | Self::Any => None,
        }
    }
}

impl PathPattern {
    /// Parses a pattern.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        Self::of(text, segment)
    }

    /// The pattern that matches only `text`, in which stars and braces are literal.
    pub(crate) fn exactly(text: &str) -> Result<Self, String> {
        Self::of(text, |it| Ok(Segment::Literal(it.into())))
    }

    fn of(text: &str, segment: impl Fn(&str) -> Result<Segment, String>) -> Result<Self, String> {
        let fault = |expected: &str| format!("invalid path {}: expected {expected}", quoted(text));
        let rest = text.strip_prefix('/').ok_or_else(|| match text.strip_prefix('^') {
            Some(_) => fault("a path with wildcards such as `/login/*`, not a regular expression"),
            None => fault("one that begins with `/`"),
        })?;
        if text.contains('?') {
            return Err(fault("one without a query, which is `query.NAME` in `match`"));
        }
        let segments = rest.split('/').map(segment).collect::<Result<Vec<_>, _>>()?;
        if segments.len() > MAX_SEGMENTS {
            return Err(fault(&format!("at most {MAX_SEGMENTS} segments")));
        }
        if segments.iter().filter(|segment| **segment == Segment::Any).count() > 2 {
            return Err(fault("`**` at most twice"));
        }
        let names: Vec<_> = segments
            .iter()
            .filter_map(|it| if let Segment::One(Some(name)) = it { Some(name) } else { None })
            .collect();
        if let Some(name) = (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
            return Err(fault(&format!("`{{{}}}` once", names[name])));
        }
        let literal = segments.iter().all(|it| matches!(it, Segment::Literal(_)));
        // A literal pattern may contain an escaped star. Its path is compared without the escapes.
        let path: Vec<&str> = segments.iter().filter_map(Segment::literal).collect();
        let path = format!("/{}", path.join("/"));
        let canonical = canonical_path(&path);
        if literal && *canonical != *path {
            return Err(fault(&format!("{}, as servers read it", quoted(&canonical))));
        }
        // A segment that no path in canonical form contains could never match.
        for segment in segments.iter().filter_map(Segment::literal).filter(|it| !it.is_empty()) {
            let path = format!("/{segment}");
            let canonical = canonical_path(&path);
            if canonical != path {
                let expected = match canonical.get(1..).unwrap_or_default() {
                    "" => "a name".to_owned(),
                    read => format!("{}, as servers read it", quoted(read)),
                };
                return Err(format!("invalid segment {}: expected {expected}", quoted(segment)));
            }
        }
        Ok(Self {
            text: text.into(),
            literal: literal.then(|| path.into()),
            segments: segments.into(),
        })
    }

    /// The same pattern for paths to which `options` have been applied.
    pub(crate) fn under(self, options: PathOptions) -> Result<Self, String> {
        if options.strip_parameters && self.text.contains(';') {
            let text = quoted(&self.text);
            return Err(format!(
                "invalid path {text} with `parameters: strip`: expected one without `;`"
            ));
        }
        let mut segments = Vec::from(self.segments);
        let ends_in_slash = segments.last().and_then(Segment::literal) == Some("");
        if options.ignore_trailing_slash && ends_in_slash && segments.len() > 1 {
            segments.pop();
        }
        if options.ignore_case {
            for segment in &mut segments {
                match segment {
                    Segment::Literal(text) => text.make_ascii_lowercase(),
                    Segment::Glob(glob) => *glob = Glob::new(&glob.text.to_ascii_lowercase()),
                    Segment::One(_) | Segment::Any => {}
                }
            }
        }
        let literal = self.literal.map(|it| options.apply(&it).into());
        Ok(Self { text: self.text, literal, segments: segments.into() })
    }

    /// The names of its captures.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::One(name) => name.as_deref(),
            _ => None,
        })
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        self.literal.as_deref().map_or_else(|| self.walk(path, None).is_some(), |it| it == path)
    }

    /// The segment of `path` that `{name}` captures, if the pattern matches.
    pub(crate) fn capture<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        self.walk(path, Some(name)).flatten()
    }

    /// `None` if it does not match, else the segment that `name` captures.
    fn walk<'p>(&self, path: &'p str, name: Option<&str>) -> Option<Option<&'p str>> {
        let left = path.strip_prefix('/')?.split('/');
        match step(&self.segments, left, name, None) {
            Step::Matches(found) => Some(found),
            Step::Differs | Step::NeverMatches => None,
        }
    }
}

/// Result of matching the rest of a pattern with the rest of a path.
enum Step<'p> {
    /// It matches; with the captured segment.
    Matches(Option<&'p str>),
    /// It does not match from this segment on.
    Differs,
    /// It does not match from any later segment either: a `**` has tried all that follow. Without this, a path that
    /// repeats a segment between two `**` would take quadratic time.
    NeverMatches,
}

fn step<'p>(
    pattern: &[Segment],
    mut path: std::str::Split<'p, char>,
    name: Option<&str>,
    mut found: Option<&'p str>,
) -> Step<'p> {
    for (index, segment) in pattern.iter().enumerate() {
        if *segment == Segment::Any {
            let rest = &pattern[index + 1..];
            if rest.is_empty() {
                return Step::Matches(found);
            }
            loop {
                match step(rest, path.clone(), name, found) {
                    Step::Differs => {}
                    end => return end,
                }
                if path.next().is_none() {
                    return Step::NeverMatches;
                }
            }
        }
        let Some(next) = path.next() else { return Step::Differs };
        let fits = match segment {
            Segment::Literal(literal) => **literal == *next,
            Segment::Glob(glob) => glob.matches(next.as_bytes()),
            Segment::One(capture) => {
                if name.is_some() && capture.as_deref() == name {
                    found = Some(next);
                }
                !next.is_empty()
            }
            Segment::Any => false,
        };
        if !fits {
            return Step::Differs;
        }
    }
    if path.next().is_none() { Step::Matches(found) } else { Step::Differs }
}

fn segment(text: &str) -> Result<Segment, String> {
    if let Some(name) = text.strip_prefix('{') {
        let name = name.strip_suffix('}').filter(|name| is_name(name));
        return name
            .map(|name| Segment::One(Some(name.into())))
            .ok_or_else(|| format!("invalid segment {}: expected `{{name}}`", quoted(text)));
    }
    Ok(match text {
        "*" => Segment::One(None),
        "**" => Segment::Any,
        _ => {
            let glob = Glob::new(text);
            match glob.literal() {
                Some(literal) => Segment::Literal(String::from_utf8_lossy(literal).into()),
                None => Segment::Glob(glob),
            }
        }
    })
}

/// A name of letters, digits, `_` and `-`.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_alphanumeric() || b"_-".contains(&it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_compares_segment_by_segment() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/a", "/a", true),
            ("/a", "/a/", false),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/", false),
            ("/a/*", "/a/b/c", false),
            ("/a/**", "/a", true),
            ("/a/**", "/a/", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/ab", false),
            ("/**", "/", true),
            ("/**/edit", "/edit", true),
            ("/**/edit", "/a/b/edit", true),
            ("/**/edit", "/a/edit/b", false),
            ("/a/**/c/*", "/a/b/c/c/d", true),
            ("/**/a/**/b", "/a/x/a/b", true),
            ("/**/a/**/b", "/x/a/b/a", false),
            ("/**/a/b/**/c/d", "/a/a/b/c/c/d", true),
            ("/**/a/b/**/c/d", "/a/b/c/x/d", false),
            ("/v*/items", "/v2/items", true),
            ("/v*/items", "/x2/items", false),
            ("/users/{id}", "/users/7", true),
        ] {
            let matches = PathPattern::new(pattern).unwrap().matches(path);
            assert_eq!(matches, expected, "{pattern} {path}");
        }
    }

    #[test]
    fn under_options_matches_paths_with_options_applied() {
        let all =
            PathOptions { ignore_case: true, ignore_trailing_slash: true, strip_parameters: true };
        for (pattern, path, expected) in [
            ("/Login/", "/login", true),
            ("/A*/{id}", "/ab/7", true),
            ("/", "/", true),
            ("/a/**", "/a", true),
        ] {
            let pattern = PathPattern::new(pattern).unwrap().under(all).unwrap();
            assert_eq!(pattern.matches(&all.apply(path)), expected, "{pattern:?} {path}");
        }
        assert!(
            PathPattern::new("/a;b")
                .unwrap()
                .under(all)
                .unwrap_err()
                .contains("expected one without `;`")
        );
    }

    #[test]
    fn capture_returns_the_matching_segment() {
        let pattern = PathPattern::new("/t/{tenant}/**/u/{user}").unwrap();
        assert_eq!(pattern.captures().collect::<Vec<_>>(), ["tenant", "user"]);
        assert_eq!(pattern.capture("/t/acme/x/y/u/7", "tenant"), Some("acme"));
        assert_eq!(pattern.capture("/t/acme/x/y/u/7", "user"), Some("7"));
        assert_eq!(pattern.capture("/t/acme", "tenant"), None);
    }

    #[test]
    fn new_invalid_pattern_names_what_is_expected() {
        for (text, expected) in [
            ("a", "invalid path `a`: expected one that begins with `/`"),
            ("/{}", "invalid segment `{}`: expected `{name}`"),
            ("/a//b", "invalid path `/a//b`: expected `/a/b`, as servers read it"),
            ("/%61/b", "invalid path `/%61/b`: expected `/a/b`, as servers read it"),
            ("/ü/*", "invalid segment `ü`: expected `%C3%BC`, as servers read it"),
            (
                "/x?y=1",
                "invalid path `/x?y=1`: expected one without a query, which is `query.NAME` in `match`",
            ),
            ("/{a}/{b}/{a}", "invalid path `/{a}/{b}/{a}`: expected `{a}` once"),
            ("/../*", "invalid segment `..`: expected a name"),
            ("/**/**/**", "invalid path `/**/**/**`: expected `**` at most twice"),
        ] {
            assert_eq!(PathPattern::new(text).unwrap_err(), expected);
        }
    }
}
