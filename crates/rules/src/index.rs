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
    nested::{Bytes, Items, Nested},
    network::{Network, bits},
    path::{PathPattern, Segment},
    request::Request,
    texts::Texts,
};

/// What may apply to a request, by position among all.
pub(crate) type Found = SmallVec<[u32; 8]>;

/// Conditions by what they can be found under.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    shelves: Vec<(Attribute, Shelf)>,
    networks: Nested<Network>,
    paths: Option<Box<Paths>>,
    /// Patterns of paths, where rules ignore differences: by which.
    loose_paths: Vec<(PathOptions, Paths)>,
    /// What must be asked each time.
    always: Vec<u32>,
    /// Of each, which condition holds if it is found; [`NONE`] if that is not known.
    known: Vec<u8>,
}

const NONE: u8 = u8::MAX;

/// What is filed under one attribute.
#[derive(Clone, Debug, Default)]
struct Shelf {
    exact: Texts<40, Items>,
    prefixes: Nested<Bytes>,
    /// Ends of values, back to front.
    suffixes: Nested<Bytes>,
    present: Vec<u32>,
}

/// One way to file a condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Exact(Attribute, Bytes),
    Path(Attribute, String),
    Network(String),
    Prefix(Attribute, Bytes),
    Suffix(Attribute, Bytes),
    Present(Attribute),
}

impl Index {
    pub(crate) fn of<'c>(all: impl Iterator<Item = &'c Conditions> + Clone) -> Self {
        let mut shared: AHashMap<Place, usize> = AHashMap::new();
        for place in all.clone().flat_map(|it| &it.0).flat_map(|it| places(it)) {
            *shared.entry(place).or_default() += 1;
        }
        let mut filing = Filing::default();
        for (conditions, item) in all.zip(0..) {
            // How many others stand in the worst of the places that it would have to be filed in.
            let crowd = |condition: &Condition| {
                let places = places(condition);
                let worst = places.iter().map(|place| (shared[place], rank(place))).max();
                (worst, places.len())
            };
            let usable = conditions.0.iter().enumerate().filter(|(_, it)| !it.not);
            let mut known = None;
            match usable.min_by_key(|(_, it)| crowd(it)) {
                Some((at, condition)) => {
                    filing.file(condition, item);
                    known = u8::try_from(at).ok().filter(|_| tells_all(condition));
                }
                None => filing.index.always.push(item),
            }
            filing.index.known.push(known.unwrap_or(NONE));
        }
        filing.done()
    }

    /// Which condition of what was found is known to hold.
    pub(crate) fn known(&self, at: usize) -> Option<usize> {
        self.known.get(at).filter(|known| **known != NONE).map(|known| usize::from(*known))
    }

    /// Everything whose conditions may hold, in order.
    pub(crate) fn find(&self, request: &Request<'_>) -> Found {
        let mut found = Found::from_slice(&self.always);
        for (attribute, shelf) in &self.shelves {
            if let Some(value) = request.value(attribute) {
                shelf.find(&value, &mut found);
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
fn places(condition: &Condition) -> Vec<Place> {
    if condition.not {
        return Vec::new();
    }
    let attribute = || condition.attribute.clone();
    let literals = condition.literals.iter().map(|it| Place::Exact(attribute(), it.clone()));
    let tests = condition.tests.iter().map(|test| match test {
        Test::Present => Place::Present(attribute()),
        Test::Network(network) => Place::Network(network.to_string()),
        Test::Path(pattern) => Place::Path(attribute(), pattern.text().to_owned()),
        Test::Glob(glob) if !glob.prefix().is_empty() => {
            Place::Prefix(attribute(), Bytes::from_slice(glob.prefix()))
        }
        Test::Glob(glob) if !glob.suffix().is_empty() => {
            Place::Suffix(attribute(), glob.suffix().iter().rev().copied().collect())
        }
        Test::Glob(_) => Place::Present(attribute()),
    });
    literals.chain(tests).collect()
}

/// Of places as crowded, those that tell most.
const fn rank(place: &Place) -> usize {
    match place {
        Place::Exact(..) => 0,
        Place::Path(..) => 1,
        Place::Network(_) => 2,
        Place::Prefix(..) | Place::Suffix(..) => 3,
        Place::Present(_) => 4,
    }
}

/// An index that is being made.
#[derive(Default)]
struct Filing {
    index: Index,
    networks: Vec<(Network, u32)>,
    prefixes: AHashMap<Attribute, Ends>,
}

/// Beginnings and ends of values, with what is filed under each.
type Ends = [Vec<(Bytes, u32)>; 2];

impl Filing {
    fn file(&mut self, condition: &Condition, item: u32) {
        for test in &condition.tests {
            match test {
                Test::Network(network) => self.networks.push((*network, item)),
                Test::Path(pattern) => self.paths(&condition.attribute).add(pattern, item),
                Test::Present | Test::Glob(_) => {}
            }
        }
        for place in places(condition) {
            match place {
                Place::Exact(attribute, value) => {
                    self.shelf(&attribute).exact.entry(&value).push(item);
                }
                Place::Prefix(attribute, prefix) => self.ends(attribute)[0].push((prefix, item)),
                Place::Suffix(attribute, suffix) => self.ends(attribute)[1].push((suffix, item)),
                // Of an address, presence is nothing that a shelf could tell by its text.
                Place::Present(Attribute::Client) => self.index.always.push(item),
                Place::Present(attribute) => self.shelf(&attribute).present.push(item),
                Place::Network(_) | Place::Path(..) => {}
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

    fn shelf(&mut self, attribute: &Attribute) -> &mut Shelf {
        let shelves = &mut self.index.shelves;
        let at = shelves.iter().position(|(it, _)| it == attribute).unwrap_or(shelves.len());
        if at == shelves.len() {
            shelves.push((attribute.clone(), Shelf::default()));
        }
        &mut shelves[at].1
    }

    fn done(mut self) -> Index {
        for (attribute, [prefixes, suffixes]) in std::mem::take(&mut self.prefixes) {
            let shelf = self.shelf(&attribute);
            shelf.prefixes = Nested::of(prefixes);
            shelf.suffixes = Nested::of(suffixes);
        }
        self.index.networks = Nested::of(self.networks);
        self.index
    }
}

impl Shelf {
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
    here: Items,
    /// What goes on with any segments; what is behind those is not looked at.
    any: Items,
    /// Elsewhere, so that a node lies in one line with the segment that leads to it: most are leaves, of
    /// which another is asked for each time.
    deeper: Option<Box<Deeper>>,
}

/// What goes on with one more segment.
#[derive(Clone, Debug, Default)]
struct Deeper {
    literals: Texts<16, Paths>,
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
        node.here.push(item);
    }

    fn find(&self, mut path: std::str::Split<'_, char>, found: &mut Found) {
        found.extend_from_slice(&self.any);
        let Some(segment) = path.next() else {
            return found.extend_from_slice(&self.here);
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

impl Deeper {
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
    use crate::texts::bytes_of_an_entry;

    #[test]
    fn what_is_looked_up_lies_in_one_line() {
        assert_eq!(bytes_of_an_entry::<40, Items>(), 64);
        assert_eq!(bytes_of_an_entry::<16, Paths>(), 64);
    }
}
