//! Index of nested prefixes: of addresses, and of strings.
//!
//! Two prefixes nest or are disjoint. Therefore, in sorted order, all prefixes that contain a value are one chain of
//! ancestors, which one binary search finds: a lookup takes logarithmic time.

use std::{ops::Deref, slice};

use smallvec::SmallVec;

/// A prefix. The order puts a prefix before those that it contains, and these directly after it.
pub(crate) trait Prefix: Ord {
    /// The values that a prefix may contain.
    type Value: ?Sized;
    /// Length of the common beginning of two prefixes, in bytes that heads leave out.
    fn common(&self, other: &Self) -> usize;

    /// The part that is compared first, without the beginning that all have in common. Heads are sorted like
    /// prefixes.
    fn head(&self, common: usize) -> u64;
    /// The head of a value; `None` if its beginning differs from that of `one`.
    fn head_of(value: &Self::Value, common: usize, one: &Self) -> Option<u64>;

    /// Whether the prefix sorts before `value` or equal to it.
    fn at_most(&self, value: &Self::Value) -> bool;
    /// Whether the prefix contains `value`.
    fn contains(&self, value: &Self::Value) -> bool;
    /// Whether the prefix contains `other`.
    fn covers(&self, other: &Self) -> bool;
}

/// Items by prefix.
///
/// The search only reads the heads, which are adjacent in memory, and then few nodes.
#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex<P: Prefix> {
    /// Length of the common beginning of all prefixes, which heads leave out.
    common: usize,
    heads: Vec<u64>,
    nodes: Vec<PrefixNode<P>>,
}

/// A node fits into one cache line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct PrefixNode<P> {
    prefix: P,
    items: Items,
    /// The innermost prefix that contains this one; [`NONE`] if none does.
    within: u32,
}

const NONE: u32 = u32::MAX;

impl<P> PrefixNode<P> {
    fn within(&self) -> Option<usize> {
        (self.within != NONE).then_some(self.within as usize)
    }
}

/// Items of one node, in two words, because there is rarely more than one.
#[derive(Clone, Debug, Default)]
pub(crate) enum Items {
    #[default]
    None,
    One(u32),
    More(Box<More>),
}

/// Boxed, because a vector takes three words.
#[derive(Clone, Debug)]
pub(crate) struct More(Vec<u32>);

impl Items {
    pub(crate) fn push(&mut self, item: u32) {
        match self {
            Self::None => *self = Self::One(item),
            Self::One(first) => *self = Self::More(Box::new(More(vec![*first, item]))),
            Self::More(more) => more.0.push(item),
        }
    }
}

impl Deref for Items {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        match self {
            Self::None => &[],
            Self::One(item) => slice::from_ref(item),
            Self::More(more) => &more.0,
        }
    }
}

impl<P: Prefix> Default for PrefixIndex<P> {
    fn default() -> Self {
        Self { common: 0, heads: Vec::new(), nodes: Vec::new() }
    }
}

impl<P: Prefix> PrefixIndex<P> {
    pub(crate) fn of(mut items: Vec<(P, u32)>) -> Self {
        items.sort();
        let mut nodes: Vec<PrefixNode<P>> = Vec::new();
        for (prefix, item) in items {
            if let Some(last) = nodes.last_mut().filter(|last| last.prefix == prefix) {
                last.items.push(item);
                continue;
            }
            let mut within = nodes.len().checked_sub(1);
            while let Some(at) = within.filter(|at| !nodes[*at].prefix.covers(&prefix)) {
                within = nodes[at].within();
            }
            let within = within.and_then(|at| u32::try_from(at).ok()).unwrap_or(NONE);
            nodes.push(PrefixNode { prefix, items: Items::One(item), within });
        }
        // All prefixes between the first and the last have their common beginning.
        let ends = nodes.first().zip(nodes.last());
        let common = ends.map_or(0, |(first, last)| first.prefix.common(&last.prefix));
        Self { common, heads: nodes.iter().map(|it| it.prefix.head(common)).collect(), nodes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of heads equal to `head`, from `first` on.
    fn run(&self, first: usize, head: u64) -> usize {
        let heads = &self.heads[first..];
        let mut reach = 1;
        while heads.get(reach - 1).is_some_and(|it| *it == head) {
            reach *= 2;
        }
        let known = reach / 2;
        let unknown = &heads[known..heads.len().min(reach)];
        known + unknown.partition_point(|it| *it == head)
    }

    /// Passes the items of all prefixes that contain `value` to `add`.
    pub(crate) fn find(&self, value: &P::Value, mut add: impl FnMut(&[u32])) {
        let Some(one) = self.nodes.first() else { return };
        let Some(head) = P::head_of(value, self.common, &one.prefix) else { return };
        let before = self.heads.partition_point(|it| *it < head);
        // Rarely more than one, therefore not a search over all that follow.
        let same = self.run(before, head);
        let candidates = &self.nodes[before..before + same];
        let after = before + candidates.partition_point(|node| node.prefix.at_most(value));
        let mut next = after.checked_sub(1);
        while let Some(node) = next.map(|at| &self.nodes[at]) {
            if node.prefix.contains(value) {
                add(&node.items);
            }
            next = node.within();
        }
    }
}

/// Bytes that are stored inline if they are short.
pub(crate) type Bytes = SmallVec<[u8; 24]>;

/// A prefix of a string.
impl Prefix for Bytes {
    type Value = [u8];

    fn common(&self, other: &Self) -> usize {
        self.iter().zip(&**other).take_while(|(one, other)| one == other).count()
    }

    fn head(&self, common: usize) -> u64 {
        first_eight(&self[common..])
    }

    fn head_of(value: &[u8], common: usize, one: &Self) -> Option<u64> {
        value.strip_prefix(&one[..common]).map(first_eight)
    }

    fn at_most(&self, value: &[u8]) -> bool {
        **self <= *value
    }

    fn contains(&self, value: &[u8]) -> bool {
        value.starts_with(self)
    }

    fn covers(&self, other: &Self) -> bool {
        other.starts_with(self)
    }
}

/// The first eight bytes as a number with the same order.
fn first_eight(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let length = bytes.len().min(8);
    head[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prefix_index_find_returns_all_prefixes(
            prefixes in prop_oneof![
                prop::collection::vec("[ab]{0,5}|a{12}[ab]{0,6}", 0..30),
                prop::collection::vec("a{7}b[ab]{0,12}", 0..30),
            ],
            value in "[abc]{0,6}|a{12}[ab]{0,6}|a{6,7}b{0,2}[ab]{0,12}",
        ) {
            let items = prefixes.iter().zip(0..);
            let items = items.map(|(it, index)| (Bytes::from_slice(it.as_bytes()), index)).collect();
            let mut found: Vec<u32> = Vec::new();
            PrefixIndex::<Bytes>::of(items).find(value.as_bytes(), |items| found.extend(items));
            found.sort_unstable();
            let expected: Vec<u32> = prefixes
                .iter()
                .zip(0..)
                .filter(|(prefix, _)| value.starts_with(prefix.as_str()))
                .map(|(_, index)| index)
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
