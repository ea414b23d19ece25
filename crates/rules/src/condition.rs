//! Conditions on requests.

use std::{fmt, sync::Arc};

use ahash::AHashSet;
use smallvec::SmallVec;

use sluicegate_headers::PathOptions;

use crate::{
    attribute::Attribute,
    cidr_block::{CidrBlock, bits},
    glob::Glob,
    path::PathPattern,
    prefix_index::Bytes,
    request::Request,
};

/// Conditions that must all match. Rules share equal conditions, because a condition in use is in the CPU's cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions(pub(crate) SmallVec<[Arc<Condition>; 2]>);

/// A condition on one attribute: one of several values or tests.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: Attribute,
    /// Whether no test may pass, instead of at least one.
    pub(crate) not: bool,
    pub(crate) literals: AHashSet<Bytes>,
    pub(crate) tests: Vec<Test>,
}

/// A test of a value.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    /// The attribute exists.
    Present,
    Glob(Glob),
    CidrBlock(CidrBlock),
    Path(PathPattern),
}

impl Conditions {
    /// Whether all conditions match the request. The one at index `known` is known to match.
    pub(crate) fn matches_all(&self, request: &Request<'_>, known: Option<usize>) -> bool {
        let mut all = self.0.iter().enumerate();
        all.all(|(at, condition)| Some(at) == known || condition.matches(request))
    }

    /// The segment of `path` that `{name}` captures. [`path_options`](Self::path_options) are already applied to `path`.
    pub(crate) fn capture<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        self.patterns().find_map(|pattern| pattern.capture(path, name))
    }

    /// The differences between paths that these conditions ignore.
    pub(crate) fn path_options(&self) -> PathOptions {
        let mut options = self.0.iter().map(|condition| condition.attribute.path_options());
        options.find(|options| !options.is_strict()).unwrap_or_default()
    }

    /// All path patterns.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &PathPattern> {
        let tests = self.0.iter().filter(|it| !it.not).flat_map(|it| &it.tests);
        tests.filter_map(|test| match test {
            Test::Path(pattern) => Some(pattern),
            Test::Present | Test::Glob(_) | Test::CidrBlock(_) => None,
        })
    }
}

impl Condition {
    /// Whether the request meets the condition.
    pub(crate) fn matches(&self, request: &Request<'_>) -> bool {
        self.passes(request) != self.not
    }

    fn passes(&self, request: &Request<'_>) -> bool {
        if self.attribute == Attribute::Client {
            let Some(address) = request.client else { return false };
            let bits = bits(address);
            return self.tests.iter().any(|test| match test {
                Test::CidrBlock(network) => network.contains(bits),
                Test::Present => true,
                Test::Glob(_) | Test::Path(_) => false,
            });
        }
        let Some(value) = request.value(&self.attribute) else { return false };
        self.literals.contains(&*value)
            || self.tests.iter().any(|test| match test {
                Test::Present => true,
                Test::Glob(glob) => glob.matches(&value),
                Test::Path(pattern) => {
                    std::str::from_utf8(&value).is_ok_and(|path| pattern.matches(path))
                }
                Test::CidrBlock(_) => false,
            })
    }
}

/// In words: `path is /login`, `header.x-plan is none of free, test*`.
impl fmt::Display for Condition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<String> =
            self.literals.iter().map(|it| String::from_utf8_lossy(it).into_owned()).collect();
        values.sort_unstable();
        for test in &self.tests {
            values.push(match test {
                Test::Present => {
                    let word = if self.not { "absent" } else { "present" };
                    return write!(formatter, "{} is {word}", self.attribute);
                }
                Test::Glob(glob) => glob.text.to_string(),
                Test::CidrBlock(network) => network.to_string(),
                Test::Path(pattern) => pattern.text.to_string(),
            });
        }
        let more = values.len().saturating_sub(8);
        values.truncate(8);
        let word = match (self.not, values.len()) {
            (false, 1) if self.attribute == Attribute::Client => "is in",
            (false, 1) => "is",
            (false, _) => "is one of",
            (true, 1) => "is not",
            (true, _) => "is none of",
        };
        write!(formatter, "{} {word} {}", self.attribute, values.join(", "))?;
        if more > 0 {
            write!(formatter, " and {more} more")?;
        }
        self.attribute.path_options().fmt(formatter)
    }
}
