//! Which of many conditions may hold for a request, without asking them all.
//!
//! Each is filed under one of its tests, the one that fewest others share: an exact value, the
//! literal beginning or end of a pattern, a network, a pattern of paths. A request is looked up
//! once an attribute that something is filed under, however many are filed; what is found is then
//! asked in full. So what a lookup costs hangs on the attributes in use and on what really
//! fits, and hardly on how many rules there are.

use ahash::AHashMap;
use smallvec::SmallVec;

use sluicegate_headers::PathOptions;

use crate::{
    attribute::Attribute,
    condition::{Condition, Conditions, Test},
    glob::Glob,
    inline_map::InlineMap,
    network::{Network, bits},
    path::{PathPattern, Segment},
    prefix_index::{Bytes, Items, PrefixIndex},
    request::Request,
};

/// What may apply to a request, by position among all.
pub(crate) type Found = SmallVec<[u32; 8]>;

/// Conditions by what they can be found under.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    attributes: Vec<(Attribute, AttributeIndex)>,
    networks: PrefixIndex<Network>,
    paths: Option<Box<Paths>>,
    /// Patterns of paths, where rules ignore differences: by which.
    loose_paths: Vec<(PathOptions, Paths)>,
    /// What must be asked each time.
    always: Vec<u32>,
    /// Of each, which condition holds if it is found; [`UNKNOWN`] if that is not known.
    known: Vec<u8>,
}

const UNKNOWN: u8 = u8::MAX;

/// What is filed under one attribute.
#[derive(Clone, Debug, Default)]
struct AttributeIndex {
    exact: InlineMap<40, Items>,
    prefixes: PrefixIndex<Bytes>,
    /// Ends of values, back to front.
    suffixes: PrefixIndex<Bytes>,
    present: Vec<u32>,
}

/// One way to file a condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum IndexKey {
    Exact(Attribute, Bytes),
    Path(Attribute, String),
    Network(String),
    Prefix(Attribute, Bytes),
    Suffix(Attribute, Bytes),
    Present(Attribute),
}

impl Index {
    pub(crate) fn of<'c>(all: impl Iterator<Item = &'c Conditions> + Clone) -> Self {
        let mut shared: AHashMap<IndexKey, usize> = AHashMap::new();
        for place in all.clone().flat_map(|it| &it.0).flat_map(|it| index_keys(it)) {
            *shared.entry(place).or_default() += 1;
        }
        let mut builder = IndexBuilder::default();
        for (conditions, item) in all.zip(0..) {
            // How many others stand in the worst of the places that it would have to be filed in.
            let crowd = |condition: &Condition| {
                let index_keys = index_keys(condition);
                let worst = index_keys.iter().map(|place| (shared[place], rank(place))).max();
                (worst, index_keys.len())
            };
            let usable = conditions.0.iter().enumerate().filter(|(_, it)| !it.not);
            let mut known = None;
            match usable.min_by_key(|(_, it)| crowd(it)) {
                Some((at, condition)) => {
                    builder.add(condition, item);
                    known = u8::try_from(at).ok().filter(|_| tells_all(condition));
                }
                None => builder.index.always.push(item),
            }
            builder.index.known.push(known.unwrap_or(UNKNOWN));
        }
        builder.build()
    }

    /// Which condition of what was found is known to hold.
    pub(crate) fn known(&self, at: usize) -> Option<usize> {
        self.known.get(at).filter(|known| **known != UNKNOWN).map(|known| usize::from(*known))
    }

    /// Everything whose conditions may hold, in order.
    pub(crate) fn find(&self, request: &Request<'_>) -> Found {
        let mut found = Found::from_slice(&self.always);
        for (attribute, index_of) in &self.attributes {
            if let Some(value) = request.value(attribute) {
                index_of.find(&value, &mut found);
            }
        }
        if !self.networks.is_empty()
            && let Some(address) = request.client()
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

/// Whether what is found under a condition is sure to fulfil it.
fn tells_all(condition: &Condition) -> bool {
    condition.tests.iter().all(|test| match test {
        Test::Present => condition.attribute != Attribute::Client,
        Test::Network(_) => true,
        Test::Glob(glob) => glob.is_one_sided(),
        // What is behind `**` is not looked at.
        Test::Path(pattern) => pattern
            .segments()
            .split_last()
            .is_none_or(|(_, before)| !before.contains(&Segment::Any)),
    })
}

/// Where a condition can be filed: in all of these places.
fn index_keys(condition: &Condition) -> Vec<IndexKey> {
    if condition.not {
        return Vec::new();
    }
    let attribute = || condition.attribute.clone();
    let literals = condition.literals.iter().map(|it| IndexKey::Exact(attribute(), it.clone()));
    let tests = condition.tests.iter().map(|test| match test {
        Test::Present => IndexKey::Present(attribute()),
        Test::Network(network) => IndexKey::Network(network.to_string()),
        Test::Path(pattern) => IndexKey::Path(attribute(), pattern.text().to_owned()),
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

/// Of places as crowded, those that tell most.
const fn rank(place: &IndexKey) -> usize {
    match place {
        IndexKey::Exact(..) => 0,
        IndexKey::Path(..) => 1,
        IndexKey::Network(_) => 2,
        IndexKey::Prefix(..) | IndexKey::Suffix(..) => 3,
        IndexKey::Present(_) => 4,
    }
}

/// An index that is being made.
#[derive(Default)]
struct IndexBuilder {
    index: Index,
    networks: Vec<(Network, u32)>,
    prefixes: AHashMap<Attribute, Ends>,
}

/// Beginnings and ends of values, with what is filed under each.
type Ends = [Vec<(Bytes, u32)>; 2];

impl IndexBuilder {
    fn add(&mut self, condition: &Condition, item: u32) {
        for test in &condition.tests {
            match test {
                Test::Network(network) => self.networks.push((*network, item)),
                Test::Path(pattern) => self.paths(&condition.attribute).add(pattern, item),
                Test::Present | Test::Glob(_) => {}
            }
        }
        for place in index_keys(condition) {
            match place {
                IndexKey::Exact(attribute, value) => {
                    self.index_of(&attribute).exact.entry(&value).push(item);
                }
                IndexKey::Prefix(attribute, prefix) => self.ends(attribute)[0].push((prefix, item)),
                IndexKey::Suffix(attribute, suffix) => self.ends(attribute)[1].push((suffix, item)),
                // Of an address, presence is nothing that a shelf could tell by its text.
                IndexKey::Present(Attribute::Client) => self.index.always.push(item),
                IndexKey::Present(attribute) => self.index_of(&attribute).present.push(item),
                IndexKey::Network(_) | IndexKey::Path(..) => {}
            }
        }
    }

    fn paths(&mut self, attribute: &Attribute) -> &mut Paths {
        let Attribute::LoosePath(options) = attribute else {
            return self.index.paths.get_or_insert_default();
        };
        let all = &mut self.index.loose_paths;
        let at = all.iter().position(|(it, _)| it == options).unwrap_or(all.len());
        if at == all.len() {
            all.push((*options, Paths::default()));
        }
        &mut all[at].1
    }

    fn ends(&mut self, attribute: Attribute) -> &mut Ends {
        self.prefixes.entry(attribute).or_default()
    }

    fn index_of(&mut self, attribute: &Attribute) -> &mut AttributeIndex {
        let attributes = &mut self.index.attributes;
        let at = attributes.iter().position(|(it, _)| it == attribute).unwrap_or(attributes.len());
        if at == attributes.len() {
            attributes.push((attribute.clone(), AttributeIndex::default()));
        }
        &mut attributes[at].1
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

impl AttributeIndex {
    fn find(&self, value: &[u8], found: &mut Found) {
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

/// Patterns of paths as a tree of their segments, from one of its nodes on.
#[derive(Clone, Debug, Default)]
struct Paths {
    /// What ends here.
    ends: Items,
    /// What goes on with any segments; what is behind those is not looked at.
    any: Items,
    /// Elsewhere, so that a node lies in one line with the segment that leads to it: most are leaves, of
    /// which another is asked for each time.
    deeper: Option<Box<PathNode>>,
}

/// What goes on with one more segment.
#[derive(Clone, Debug, Default)]
struct PathNode {
    literals: InlineMap<16, Paths>,
    globs: Vec<(Glob, Paths)>,
    one: Option<Box<Paths>>,
}

impl Paths {
    fn add(&mut self, pattern: &PathPattern, item: u32) {
        let mut node = self;
        for segment in pattern.segments() {
            if *segment == Segment::Any {
                return node.any.push(item);
            }
            node = node.deeper.get_or_insert_default().behind(segment);
        }
        node.ends.push(item);
    }

    fn find(&self, mut path: std::str::Split<'_, char>, found: &mut Found) {
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
    fn behind(&mut self, segment: &Segment) -> &mut Paths {
        match segment {
            Segment::Any | Segment::One(_) => self.one.get_or_insert_default(),
            Segment::Literal(text) => self.literals.entry(text.as_bytes()),
            Segment::Glob(glob) => {
                let there = self.globs.iter().position(|(it, _)| it == glob);
                let at = there.unwrap_or(self.globs.len());
                if there.is_none() {
                    self.globs.push((glob.clone(), Paths::default()));
                }
                &mut self.globs[at].1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inline_map::bytes_of_an_entry;

    #[test]
    fn what_is_looked_up_lies_in_one_line() {
        assert_eq!(bytes_of_an_entry::<40, Items>(), 64);
        assert_eq!(bytes_of_an_entry::<16, Paths>(), 64);
    }
}
