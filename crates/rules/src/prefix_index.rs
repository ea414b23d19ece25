//! Prefixes that nest: of addresses, and of texts.
//!
//! Of two prefixes one lies within the other, or they have nothing in common. So, sorted, all that
//! contain a value lie on one line of ancestors, found by one binary search: what is asked costs
//! the logarithm of how many there are.

use std::{ops::Deref, slice};

use smallvec::SmallVec;

/// A prefix: sorted so that one which contains another comes before it, and what lies between them
/// lies within the first.
pub(crate) trait Prefix: Ord {
    /// What a prefix may contain.
    type Value: ?Sized;
    /// How many of their first bytes two prefixes have in common, as far as heads leave them out.
    fn common(&self, other: &Self) -> usize;

    /// As much of it as is compared first, without what all have in common: what sorts before another has no
    /// greater head.
    fn head(&self, common: usize) -> u64;
    /// The same of a value; `None` where it doesn't begin as `one` of them does.
    fn head_of(value: &Self::Value, common: usize, one: &Self) -> Option<u64>;

    /// Whether it comes no later than `value` does among all.
    fn at_most(&self, value: &Self::Value) -> bool;
    /// Whether it contains `value`.
    fn contains(&self, value: &Self::Value) -> bool;
    /// Whether it contains all that `other` does.
    fn covers(&self, other: &Self) -> bool;
}

/// Items by prefix.
///
/// The heads lie close together: the search is done there, and few of the nodes are ever touched.
#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex<P: Prefix> {
    /// Bytes that all begin with, and that heads leave out.
    common: usize,
    heads: Vec<u64>,
    nodes: Vec<PrefixNode<P>>,
}

/// Within one line of memory.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct PrefixNode<P> {
    prefix: P,
    items: Items,
    /// The innermost that contains it; [`NONE`] if none does.
    within: u32,
}

const NONE: u32 = u32::MAX;

impl<P> PrefixNode<P> {
    fn within(&self) -> Option<usize> {
        (self.within != NONE).then_some(self.within as usize)
    }
}

/// Items of one place: hardly ever more than one, so that two words are enough.
#[derive(Clone, Debug, Default)]
pub(crate) enum Items {
    #[default]
    None,
    One(u32),
    More(Box<More>),
}

/// In a box of its own: a vector alone has three words.
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
        // What the first and the last have in common, all between them have.
        let ends = nodes.first().zip(nodes.last());
        let common = ends.map_or(0, |(first, last)| first.prefix.common(&last.prefix));
        Self { common, heads: nodes.iter().map(|it| it.prefix.head(common)).collect(), nodes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many heads are `head`, from the first of them on.
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

    /// Tells the items of all prefixes that contain `value`.
    pub(crate) fn find(&self, value: &P::Value, mut tell: impl FnMut(&[u32])) {
        let Some(one) = self.nodes.first() else { return };
        let Some(head) = P::head_of(value, self.common, &one.prefix) else { return };
        let before = self.heads.partition_point(|it| *it < head);
        // Hardly ever more than one, so they are not searched for among all that follow.
        let same = self.run(before, head);
        let alike = &self.nodes[before..before + same];
        let behind = before + alike.partition_point(|nest| nest.prefix.at_most(value));
        let mut next = behind.checked_sub(1);
        while let Some(nest) = next.map(|at| &self.nodes[at]) {
            if nest.prefix.contains(value) {
                tell(&nest.items);
            }
            next = nest.within();
        }
    }
}

/// Bytes that lie where they are used, unless there are many.
pub(crate) type Bytes = SmallVec<[u8; 24]>;

/// A prefix of a text.
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

/// The first eight bytes as a number, which sorts as they do.
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
        fn all_prefixes_of_a_value_are_found(
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
