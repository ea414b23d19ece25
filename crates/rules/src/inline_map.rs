//! A map by strings, with each short key and its value in one cache line.

use ahash::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

/// Values by string. Keys of up to `N` bytes are stored inline.
#[derive(Clone, Debug)]
pub(crate) struct InlineMap<const N: usize, T> {
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
pub(crate) const fn bytes_of_an_entry<const N: usize, T>() -> usize {
    size_of::<Entry<N, T>>()
}
