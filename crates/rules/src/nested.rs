//! Prefixes that nest: of addresses, and of texts.
//!
//! Of two prefixes one lies within the other, or they have nothing in common. So, sorted, all that
//! contain a value lie on one line of ancestors, found by one binary search: what is asked costs
//! the logarithm of how many there are.

/// A prefix: sorted so that one which contains another comes before it, and what lies between them
/// lies within the first.
pub(crate) trait Prefix: Ord {
    /// What a prefix may contain.
    type Value: ?Sized;

    /// Whether it comes no later than `value` does among all.
    fn at_most(&self, value: &Self::Value) -> bool;
    /// Whether it contains `value`.
    fn contains(&self, value: &Self::Value) -> bool;
    /// Whether it contains all that `other` does.
    fn covers(&self, other: &Self) -> bool;
}

/// Items by prefix.
#[derive(Clone, Debug)]
pub(crate) struct Nested<P> {
    nodes: Vec<Nest<P>>,
}

#[derive(Clone, Debug)]
struct Nest<P> {
    prefix: P,
    /// The innermost that contains it.
    within: Option<usize>,
    items: Vec<u32>,
}

impl<P> Default for Nested<P> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
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
            nodes.push(Nest { prefix, within, items: vec![item] });
        }
        Self { nodes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Tells the items of all prefixes that contain `value`.
    pub(crate) fn find(&self, value: &P::Value, mut tell: impl FnMut(&[u32])) {
        let behind = self.nodes.partition_point(|nest| nest.prefix.at_most(value));
        let mut next = behind.checked_sub(1);
        while let Some(nest) = next.map(|at| &self.nodes[at]) {
            if nest.prefix.contains(value) {
                tell(&nest.items);
            }
            next = nest.within;
        }
    }
}

/// A prefix of a text.
impl Prefix for Box<[u8]> {
    type Value = [u8];

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
            prefixes in prop::collection::vec("[ab]{0,5}", 0..30),
            value in "[abc]{0,6}",
        ) {
            let items = prefixes.iter().zip(0..);
            let items = items.map(|(it, index)| (it.as_bytes().into(), index)).collect();
            let mut found: Vec<u32> = Vec::new();
            Nested::<Box<[u8]>>::of(items).find(value.as_bytes(), |items| found.extend(items));
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
