//! Texts that are looked up as a whole, each with what is under it in one line of memory.

use ahash::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;

/// Something for each of many texts, of which those of up to `N` bytes lie where they are compared.
#[derive(Clone, Debug)]
pub(crate) struct InlineMap<const N: usize, T> {
    entries: HashTable<Entry<N, T>>,
    hasher: RandomState,
}

/// Aligned, as one that lies across two lines is waited for twice.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry<const N: usize, T> {
    text: SmallVec<[u8; N]>,
    under: T,
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
        found.map(|entry| &entry.under)
    }
}

impl<const N: usize, T: Default> InlineMap<N, T> {
    /// What is under `text`, which is made if nothing is.
    pub(crate) fn entry(&mut self, text: &[u8]) -> &mut T {
        let Self { entries, hasher } = self;
        let same = |entry: &Entry<N, T>| *entry.text == *text;
        let hash = |entry: &Entry<N, T>| hasher.hash_one(&*entry.text);
        let fresh = || Entry { text: SmallVec::from_slice(text), under: T::default() };
        let entry = entries.entry(hasher.hash_one(text), same, hash).or_insert_with(fresh);
        &mut entry.into_mut().under
    }
}

#[cfg(test)]
pub(crate) const fn bytes_of_an_entry<const N: usize, T>() -> usize {
    size_of::<Entry<N, T>>()
}
