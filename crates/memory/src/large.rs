//! Entries that do not fit in a slot, of one segment.

use sluicegate_core::Entry;

use crate::slot::{LARGE, Slot};

/// Entries by index.
#[derive(Debug, Default)]
pub(crate) struct Large {
    entries: Vec<Option<Box<Entry>>>,
    free: Vec<u32>,
}

impl Large {
    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(index).ok()?)?.as_deref()
    }

    /// Keeps an entry, and tells where.
    pub(crate) fn put(&mut self, entry: Entry) -> u64 {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(Box::new(entry));
            return index.into();
        }
        self.entries.push(Some(Box::new(entry)));
        self.entries.len() as u64 - 1
    }

    pub(crate) fn take(&mut self, index: u64) -> Option<Entry> {
        let index = u32::try_from(index).ok()?;
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(*entry)
    }

    /// Moves the entries of `slots` to another, where the slots then find them.
    pub(crate) fn split_off<P>(&mut self, slots: &mut [(P, Slot)]) -> Self {
        let mut other = Self::default();
        for (_, slot) in slots.iter_mut().filter(|(_, slot)| slot.rule() == LARGE) {
            if let Some(entry) = self.take(slot.index()) {
                *slot = slot.moved(other.put(entry));
            }
        }
        other
    }
}
