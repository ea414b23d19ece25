//! Index of conditions: finds those that may match a request without testing all.
//!
//! Each rule is indexed by one of its conditions, the one whose keys the fewest others share: an exact value, the
//! literal beginning or end of a pattern, a network, a pattern of paths. A request needs one lookup per indexed
//! attribute, and then tests the candidates in full. The time depends on the attributes in use and the number of
//! candidates, and hardly on the number of rules.

use ahash::{AHashMap, RandomState};
use hashbrown::HashTable;
use sluicegate_headers::PathOptions;
use smallvec::SmallVec;

use crate::{
    attribute::Attribute,
    cidr_block::{CidrBlock, bits},
    condition::{Condition, Conditions, Test},
    glob::Glob,
    path::{PathPattern, Segment},
    prefix_index::{Bytes, Items, PrefixIndex},
    request::Request,
};

/// Positions of the rules that may apply to a request.
type FoundRules = SmallVec<[u32; 8]>;

/// Positions of rules by the keys of their conditions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    attributes: Vec<(Attribute, AttributeIndex)>,
    networks: PrefixIndex<CidrBlock>,
    paths: Option<Box<Paths>>,
    /// Patterns of paths by the differences that they ignore.
    loose_paths: Vec<(PathOptions, Paths)>,
    /// Rules that must always be tested.
    always: Vec<u32>,
    /// For each rule, the index of the condition that matches if the rule is found; [`UNKNOWN`] if none is sure to.
    known: Vec<u8>,
}

const UNKNOWN: u8 = u8::MAX;

/// The index of one attribute.
#[derive(Clone, Debug, Default)]
struct AttributeIndex {
    exact: InlineMap<40, Items>,
    prefixes: PrefixIndex<Bytes>,
    /// Ends of values, reversed.
    suffixes: PrefixIndex<Bytes>,
    present: Vec<u32>,
}

/// A key of the index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum IndexKey {
    Exact(Attribute, Bytes),
    Path(Attribute, Box<str>),
    CidrBlock(String),
    Prefix(Attribute, Bytes),
    Suffix(Attribute, Bytes),
    Present(Attribute),
}

impl Index {
    pub(crate) fn of<'c>(all: impl Iterator<Item = &'c Conditions> + Clone) -> Self {
        let mut shared: AHashMap<IndexKey, usize> = AHashMap::new();
        for key in all.clone().flat_map(|it| &it.0).flat_map(|it| index_keys(it)) {
            *shared.entry(key).or_default() += 1;
        }
        let mut builder = IndexBuilder::default();
        for (conditions, item) in all.zip(0..) {
            // The number of conditions that share its most frequent key.
            let frequency = |condition: &Condition| {
                let index_keys = index_keys(condition);
                let worst = index_keys.iter().map(|key| (shared[key], rank(key))).max();
                (worst, index_keys.len())
            };
            let usable = conditions.0.iter().enumerate().filter(|(_, it)| !it.not);
            let mut known = None;
            match usable.min_by_key(|(_, it)| frequency(it)) {
                Some((at, condition)) => {
                    builder.add(condition, item);
                    known = u8::try_from(at).ok().filter(|_| is_implied_by_lookup(condition));
                }
                None => builder.index.always.push(item),
            }
            builder.index.known.push(known.unwrap_or(UNKNOWN));
        }
        builder.build()
    }

    /// The index of the condition that matches because the rule was found.
    pub(crate) fn known(&self, at: usize) -> Option<usize> {
        self.known.get(at).filter(|known| **known != UNKNOWN).map(|known| usize::from(*known))
    }

    /// The positions of all rules whose conditions may match, in order.
    pub(crate) fn find(&self, request: &Request<'_>) -> FoundRules {
        let mut found = FoundRules::from_slice(&self.always);
        for (attribute, index_of) in &self.attributes {
            if let Some(value) = request.value(attribute) {
                index_of.find(&value, &mut found);
            }
        }
        if !self.networks.is_empty()
            && let Some(address) = request.client
        {
            self.networks.find(&bits(address), |items| found.extend_from_slice(items));
        }
        if let Some(paths) = &self.paths
            && let Some(rest) = request.path().strip_prefix('/')
        {
            paths.find(rest.split('/'), &mut found);
        }
        for (options, paths) in &self.loose_paths {
            if let Some(rest) = request.loose_path(*options).strip_prefix('/') {
                paths.find(rest.split('/'), &mut found);
            }
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }
}

/// Whether a lookup by the condition finds only requests that it matches.
fn is_implied_by_lookup(condition: &Condition) -> bool {
    condition.tests.iter().all(|test| match test {
        Test::Present => condition.attribute != Attribute::Client,
        Test::CidrBlock(_) => true,
        Test::Glob(glob) => glob.is_one_sided(),
        // The lookup ignores segments after `**`.
        Test::Path(pattern) => {
            pattern.segments.split_last().is_none_or(|(_, before)| !before.contains(&Segment::Any))
        }
    })
}

/// All keys by which a condition must be indexed.
fn index_keys(condition: &Condition) -> Vec<IndexKey> {
    if condition.not {
        return Vec::new();
    }
    let attribute = || condition.attribute.clone();
    let literals = condition.literals.iter().map(|it| IndexKey::Exact(attribute(), it.clone()));
    let tests = condition.tests.iter().map(|test| match test {
        Test::Present => IndexKey::Present(attribute()),
        Test::CidrBlock(network) => IndexKey::CidrBlock(network.to_string()),
        Test::Path(pattern) => IndexKey::Path(attribute(), pattern.text.clone()),
        Test::Glob(glob) if !glob.prefix().is_empty() => {
            IndexKey::Prefix(attribute(), Bytes::from_slice(glob.prefix()))
        }
        Test::Glob(glob) if !glob.suffix().is_empty() => {
            IndexKey::Suffix(attribute(), glob.suffix().iter().rev().copied().collect())
        }
        Test::Glob(_) => IndexKey::Present(attribute()),
    });
    literals.chain(tests).collect()
}

/// Preference among keys that equally many conditions share: the most selective first.
const fn rank(key: &IndexKey) -> usize {
    match key {
        IndexKey::Exact(..) => 0,
        IndexKey::Path(..) => 1,
        IndexKey::CidrBlock(_) => 2,
        IndexKey::Prefix(..) | IndexKey::Suffix(..) => 3,
        IndexKey::Present(_) => 4,
    }
}

/// Builds an index.
#[derive(Default)]
struct IndexBuilder {
    index: Index,
    networks: Vec<(CidrBlock, u32)>,
    prefixes: AHashMap<Attribute, Ends>,
}

/// Beginnings and ends of values, with the positions of their rules.
type Ends = [Vec<(Bytes, u32)>; 2];

impl IndexBuilder {
    fn add(&mut self, condition: &Condition, item: u32) {
        for test in &condition.tests {
            match test {
                Test::CidrBlock(network) => self.networks.push((*network, item)),
                Test::Path(pattern) => self.paths(&condition.attribute).add(pattern, item),
                Test::Present | Test::Glob(_) => {}
            }
        }
        for key in index_keys(condition) {
            match key {
                IndexKey::Exact(attribute, value) => {
                    self.index_of(&attribute).exact.entry(&value).push(item);
                }
                IndexKey::Prefix(attribute, prefix) => self.ends(attribute)[0].push((prefix, item)),
                IndexKey::Suffix(attribute, suffix) => self.ends(attribute)[1].push((suffix, item)),
                // The client address is not a string, so that its presence cannot be looked up.
                IndexKey::Present(Attribute::Client) => self.index.always.push(item),
                IndexKey::Present(attribute) => self.index_of(&attribute).present.push(item),
                IndexKey::CidrBlock(_) | IndexKey::Path(..) => {}
            }
        }
    }

    fn paths(&mut self, attribute: &Attribute) -> &mut Paths {
        match attribute {
            Attribute::LoosePath(options) => entry(&mut self.index.loose_paths, options),
            _ => self.index.paths.get_or_insert_default(),
        }
    }

    fn ends(&mut self, attribute: Attribute) -> &mut Ends {
        self.prefixes.entry(attribute).or_default()
    }

    fn index_of(&mut self, attribute: &Attribute) -> &mut AttributeIndex {
        entry(&mut self.index.attributes, attribute)
    }

    fn build(mut self) -> Index {
        for (attribute, [prefixes, suffixes]) in std::mem::take(&mut self.prefixes) {
            let index_of = self.index_of(&attribute);
            index_of.prefixes = PrefixIndex::of(prefixes);
            index_of.suffixes = PrefixIndex::of(suffixes);
        }
        self.index.networks = PrefixIndex::of(self.networks);
        self.index
    }
}

/// The value of `key`, which is added if it is missing.
fn entry<'a, K: PartialEq + Clone, V: Default>(all: &'a mut Vec<(K, V)>, key: &K) -> &'a mut V {
    let at = all.iter().position(|(it, _)| it == key).unwrap_or(all.len());
    if at == all.len() {
        all.push((key.clone(), V::default()));
    }
    &mut all[at].1
}

impl AttributeIndex {
    fn find(&self, value: &[u8], found: &mut FoundRules) {
        if let Some(items) = self.exact.get(value) {
            found.extend_from_slice(items);
        }
        if !self.prefixes.is_empty() {
            self.prefixes.find(value, |items| found.extend_from_slice(items));
        }
        if !self.suffixes.is_empty() {
            let reversed: SmallVec<[u8; 64]> = value.iter().rev().copied().collect();
            self.suffixes.find(&reversed, |items| found.extend_from_slice(items));
        }
        found.extend_from_slice(&self.present);
    }
}

/// A node of the tree of path patterns by segment.
#[derive(Clone, Debug, Default)]
struct Paths {
    /// Patterns that end here.
    ends: Items,
    /// Patterns that continue with `**`; segments after that are ignored.
    any: Items,
    /// Boxed, so that a node and the segment that leads to it share a cache line: most nodes are leaves.
    deeper: Option<Box<PathNode>>,
}

/// Patterns that continue with one more segment.
#[derive(Clone, Debug, Default)]
struct PathNode {
    literals: InlineMap<16, Paths>,
    globs: Vec<(Glob, Paths)>,
    one: Option<Box<Paths>>,
}

impl Paths {
    fn add(&mut self, pattern: &PathPattern, item: u32) {
        let mut node = self;
        for segment in &pattern.segments {
            if *segment == Segment::Any {
                return node.any.push(item);
            }
            node = node.deeper.get_or_insert_default().next(segment);
        }
        node.ends.push(item);
    }

    fn find(&self, mut path: std::str::Split<'_, char>, found: &mut FoundRules) {
        found.extend_from_slice(&self.any);
        let Some(segment) = path.next() else {
            return found.extend_from_slice(&self.ends);
        };
        let Some(deeper) = &self.deeper else { return };
        if let Some(next) = deeper.literals.get(segment.as_bytes()) {
            next.find(path.clone(), found);
        }
        for (glob, next) in &deeper.globs {
            if glob.matches(segment.as_bytes()) {
                next.find(path.clone(), found);
            }
        }
        if let Some(next) = deeper.one.as_ref().filter(|_| !segment.is_empty()) {
            next.find(path, found);
        }
    }
}

impl PathNode {
    /// The node that `segment` leads to.
    fn next(&mut self, segment: &Segment) -> &mut Paths {
        match segment {
            Segment::Any | Segment::One(_) => self.one.get_or_insert_default(),
            Segment::Literal(text) => self.literals.entry(text.as_bytes()),
            Segment::Glob(glob) => entry(&mut self.globs, glob),
        }
    }
}

// A map by strings, with each short key and its value in one cache line.

/// Values by string. Keys of up to `N` bytes are stored inline.
#[derive(Clone, Debug)]
struct InlineMap<const N: usize, T> {
    entries: HashTable<Entry<N, T>>,
    hasher: RandomState,
}

/// Aligned, because an entry across two cache lines costs two misses.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry<const N: usize, T> {
    text: SmallVec<[u8; N]>,
    value: T,
}

impl<const N: usize, T> Default for InlineMap<N, T> {
    fn default() -> Self {
        Self { entries: HashTable::new(), hasher: RandomState::new() }
    }
}

impl<const N: usize, T> InlineMap<N, T> {
    pub(crate) fn get(&self, text: &[u8]) -> Option<&T> {
        if self.entries.is_empty() {
            return None;
        }
        let found = self.entries.find(self.hasher.hash_one(text), |entry| *entry.text == *text);
        found.map(|entry| &entry.value)
    }
}

impl<const N: usize, T: Default> InlineMap<N, T> {
    /// The value of `text`, which is inserted if it is missing.
    pub(crate) fn entry(&mut self, text: &[u8]) -> &mut T {
        let Self { entries, hasher } = self;
        let same = |entry: &Entry<N, T>| *entry.text == *text;
        let hash = |entry: &Entry<N, T>| hasher.hash_one(&*entry.text);
        let fresh = || Entry { text: SmallVec::from_slice(text), value: T::default() };
        let entry = entries.entry(hasher.hash_one(text), same, hash).or_insert_with(fresh);
        &mut entry.into_mut().value
    }
}

#[cfg(test)]
const fn bytes_of_an_entry<const N: usize, T>() -> usize {
    size_of::<Entry<N, T>>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::bytes_of_an_entry;

    #[test]
    fn index_entries_fit_into_one_cache_line() {
        assert_eq!(bytes_of_an_entry::<40, Items>(), 64);
        assert_eq!(bytes_of_an_entry::<16, Paths>(), 64);
    }
}
