//! Paths: one spelling for each, and patterns of them.

use std::borrow::Cow;

use crate::{error::quoted, glob::Glob};

/// The most segments of a pattern.
pub(crate) const MAX_SEGMENTS: usize = 32;

/// `path` in the one spelling that rules see: `%` escapes of what needs none are undone, as are
/// doubled slashes, `.` and `..`.
pub(crate) fn normal(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") && path.starts_with('/')
    {
        return Cow::Borrowed(path);
    }
    let plain = unescaped(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut parts = plain.split('/').peekable();
    while let Some(segment) = parts.next() {
        let last = parts.peek().is_none();
        match segment {
            ".." => {
                segments.pop();
            }
            "." | "" => {}
            _ => {
                segments.push(segment);
                continue;
            }
        }
        if last {
            segments.push("");
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

/// Undoes `%` escapes, but of what would then mean something else: `/`, `%`, `?`, `#`, controls and
/// bytes beyond ASCII keep theirs, in capital letters.
fn unescaped(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match escape(rest.as_bytes()) {
            Some(byte) if byte.is_ascii_graphic() && !b"/%?#\\".contains(&byte) => {
                out.push(byte.into());
                rest = &rest[3..];
            }
            Some(byte) => {
                out.push_str(&format!("%{byte:02X}"));
                rest = &rest[3..];
            }
            None => {
                out.push('%');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The byte that `text` begins with an escape of.
fn escape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    Some(16 * digit(high)? + digit(low)?)
}

/// A part of a query, decoded: `+` is a blank, `%` escapes are bytes.
pub(crate) fn decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        match *first {
            b'+' => out.push(b' '),
            b'%' => match escape(&[&b"%"[..], &behind[..behind.len().min(2)]].concat()) {
                Some(byte) => {
                    out.push(byte);
                    rest = &behind[2..];
                }
                None => out.push(b'%'),
            },
            byte => out.push(byte),
        }
    }
    Cow::Owned(out)
}

/// A pattern of paths, segment by segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPattern {
    text: Box<str>,
    segments: Box<[Segment]>,
}

/// What a segment of a path must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(Box<str>),
    /// A segment with stars in it.
    Glob(Glob),
    /// `*`, or `{NAME}`: any one segment that isn't empty.
    One(Option<Box<str>>),
    /// `**`: any segments, or none.
    Any,
}

impl PathPattern {
    /// The pattern that `text` says, or why it is none.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("path {} does not begin with `/`", quoted(text)));
        };
        let segments: Vec<Segment> = rest.split('/').map(segment).collect::<Result<_, _>>()?;
        if segments.len() > MAX_SEGMENTS {
            return Err(format!("path {} has more than {MAX_SEGMENTS} segments", quoted(text)));
        }
        if segments.iter().filter(|segment| **segment == Segment::Any).count() > 2 {
            return Err(format!("path {} has `**` more than twice", quoted(text)));
        }
        let literal = segments.iter().all(|it| matches!(it, Segment::Literal(_)));
        if literal && *normal(text) != *text {
            let normal = normal(text);
            return Err(format!(
                "path {} is seen as {}; that would do",
                quoted(text),
                quoted(&normal)
            ));
        }
        Ok(Self { text: text.into(), segments: segments.into() })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The only path that it matches, if it has no wildcard.
    pub(crate) fn literal(&self) -> Option<&str> {
        let literal = self.segments.iter().all(|it| matches!(it, Segment::Literal(_)));
        literal.then_some(&self.text)
    }

    /// The names of its captures.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::One(name) => name.as_deref(),
            _ => None,
        })
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        self.literal().map_or_else(|| self.walk(path, None).is_some(), |it| it == path)
    }

    /// What `{name}` stands for in `path`, if it matches.
    pub(crate) fn capture<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        self.walk(path, Some(name)).flatten()
    }

    /// `None` if it does not match, else what `name` stands for.
    fn walk<'p>(&self, path: &'p str, name: Option<&str>) -> Option<Option<&'p str>> {
        let mut left = path.strip_prefix('/').map(|rest| rest.split('/'));
        step(&self.segments, left.as_mut()?.clone(), name, None)
    }
}

fn step<'p>(
    pattern: &[Segment],
    mut path: std::str::Split<'p, char>,
    name: Option<&str>,
    mut found: Option<&'p str>,
) -> Option<Option<&'p str>> {
    for (index, segment) in pattern.iter().enumerate() {
        if *segment == Segment::Any {
            let behind = &pattern[index + 1..];
            if behind.is_empty() {
                return Some(found);
            }
            loop {
                if let Some(found) = step(behind, path.clone(), name, found) {
                    return Some(found);
                }
                path.next()?;
            }
        }
        let next = path.next()?;
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
            return None;
        }
    }
    path.next().is_none().then_some(found)
}

fn segment(text: &str) -> Result<Segment, String> {
    if let Some(name) = text.strip_prefix('{') {
        let name = name.strip_suffix('}').filter(|name| is_name(name));
        return name
            .map(|name| Segment::One(Some(name.into())))
            .ok_or_else(|| format!("segment {} is not `{{name}}`", quoted(text)));
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
    fn a_path_has_one_spelling() {
        for (given, expected) in [
            ("/login", "/login"),
            ("/%6Cogin", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/%2e%2E/login", "/login"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a/", "/a/"),
            ("/a//", "/a/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%", "/a%"),
            ("/a%zz", "/a%zz"),
            ("/%c3%bc", "/%C3%BC"),
            ("", "/"),
            ("login", "/login"),
            ("*", "/*"),
            ("/.well-known", "/.well-known"),
        ] {
            assert_eq!(normal(given), expected, "{given}");
            assert_eq!(normal(&normal(given)), expected, "{given}");
        }
    }

    #[test]
    fn a_query_is_decoded() {
        assert_eq!(&*decoded("a+b%20c%2"), b"a b c%2");
        assert_eq!(&*decoded("%"), b"%");
        assert_eq!(&*decoded("%zz"), b"%zz");
    }

    #[test]
    fn patterns_match_segment_by_segment() {
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
            ("/v*/items", "/v2/items", true),
            ("/v*/items", "/x2/items", false),
            ("/users/{id}", "/users/7", true),
        ] {
            let matches = PathPattern::new(pattern).unwrap().matches(path);
            assert_eq!(matches, expected, "{pattern} {path}");
        }
    }

    #[test]
    fn captures_are_the_segments_they_stand_for() {
        let pattern = PathPattern::new("/t/{tenant}/**/u/{user}").unwrap();
        assert_eq!(pattern.captures().collect::<Vec<_>>(), ["tenant", "user"]);
        assert_eq!(pattern.capture("/t/acme/x/y/u/7", "tenant"), Some("acme"));
        assert_eq!(pattern.capture("/t/acme/x/y/u/7", "user"), Some("7"));
        assert_eq!(pattern.capture("/t/acme", "tenant"), None);
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for (text, expected) in [
            ("a", "path `a` does not begin with `/`"),
            ("/{}", "segment `{}` is not `{name}`"),
            ("/a//b", "path `/a//b` is seen as `/a/b`; that would do"),
            ("/**/**/**", "path `/**/**/**` has `**` more than twice"),
        ] {
            assert_eq!(PathPattern::new(text).unwrap_err(), expected);
        }
    }
}
