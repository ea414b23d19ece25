//! Prefixes that nest: of addresses, and of texts.
//!
//! Of two prefixes one lies within the other, or they have nothing in common. So, sorted, all that
//! contain a value lie on one line of ancestors, found by one binary search: what is asked costs
//! the logarithm of how many there are.

use smallvec::{SmallVec, smallvec};

/// A prefix: sorted so that one which contains another comes before it, and what lies between them
/// lies within the first.
pub(crate) trait Prefix: Ord {
    /// What a prefix may contain.
    type Value: ?Sized;
    /// As much of either as is compared first: what sorts before another has no greater head.
    type Head: Ord + Copy;

    fn head(&self) -> Self::Head;
    fn head_of(value: &Self::Value) -> Self::Head;

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
pub(crate) struct Nested<P: Prefix> {
    heads: Vec<P::Head>,
    nodes: Vec<Nest<P>>,
}

#[derive(Clone, Debug)]
struct Nest<P> {
    prefix: P,
    /// The innermost that contains it.
    within: Option<usize>,
    items: Items,
}

/// Items of one place: hardly ever more than one.
pub(crate) type Items = SmallVec<[u32; 2]>;

impl<P: Prefix> Default for Nested<P> {
    fn default() -> Self {
        Self { heads: Vec::new(), nodes: Vec::new() }
    }
}

impl<P: Prefix> Nested<P> {
    pub(crate) fn of(mut items: Vec<(P, u32)>) -> Self {
        items.sort();
        let mut nodes: Vec<Nest<P>> = Vec::new();
        for (prefix, item) in items {
            if let Some(last) = nodes.last_mut().filter(|last| last.prefix == prefix) {
                last.items.push(item);
                continue;
            }
            let mut within = nodes.len().checked_sub(1);
            while let Some(at) = within.filter(|at| !nodes[*at].prefix.covers(&prefix)) {
                within = nodes[at].within;
            }
            nodes.push(Nest { prefix, within, items: smallvec![item] });
        }
        Self { heads: nodes.iter().map(|it| it.prefix.head()).collect(), nodes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Tells the items of all prefixes that contain `value`.
    pub(crate) fn find(&self, value: &P::Value, mut tell: impl FnMut(&[u32])) {
        let head = P::head_of(value);
        let before = self.heads.partition_point(|it| *it < head);
        let same = self.heads[before..].iter().take_while(|it| **it == head).count();
        let alike = &self.nodes[before..before + same];
        let behind = before + alike.partition_point(|nest| nest.prefix.at_most(value));
        let mut next = behind.checked_sub(1);
        while let Some(nest) = next.map(|at| &self.nodes[at]) {
            if nest.prefix.contains(value) {
                tell(&nest.items);
            }
            next = nest.within;
        }
    }
}

/// Bytes that lie where they are used, unless there are many.
pub(crate) type Bytes = SmallVec<[u8; 24]>;

/// A prefix of a text.
impl Prefix for Bytes {
    type Value = [u8];
    type Head = u128;

    fn head(&self) -> u128 {
        Self::head_of(self)
    }

    fn head_of(value: &[u8]) -> u128 {
        let mut head = [0; 16];
        let length = value.len().min(16);
        head[..length].copy_from_slice(&value[..length]);
        u128::from_be_bytes(head)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_prefixes_of_a_value_are_found(
            prefixes in prop::collection::vec("[ab]{0,5}|a{12}[ab]{0,6}", 0..30),
            value in "[abc]{0,6}|a{12}[ab]{0,6}",
        ) {
            let items = prefixes.iter().zip(0..);
            let items = items.map(|(it, index)| (Bytes::from_slice(it.as_bytes()), index)).collect();
            let mut found: Vec<u32> = Vec::new();
            Nested::<Bytes>::of(items).find(value.as_bytes(), |items| found.extend(items));
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
