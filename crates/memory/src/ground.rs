//! Memory for the buckets of segments, on huge pages where the system has them.
//!
//! Keys at random fall on pages at random. With pages of 4 KiB the processor must look up most of
//! them (and their tables) in memory, which takes longer than to read the slot; a large table is
//! so laid on pages of 2 MiB. To take such a page the system writes zeros to all of it, and that is
//! longer than a decision may wait: a thread touches the next page before it is needed.

use std::{
    alloc::{self, Layout},
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    thread,
};

use parking_lot::{Condvar, Mutex};

use crate::segment::{Buckets, SEEDS};

/// Where buckets begin: there is room for a seed in the low bits of their address.
pub(crate) const PAGE: usize = 4096;
const _: () = assert!(SEEDS <= PAGE && size_of::<Buckets>().is_multiple_of(PAGE) || cfg!(loom));

const HUGE_PAGE: usize = 2 << 20;
/// Blocks of a table that is still small, on small pages.
const SMALL_BLOCK: usize = 1 << 20;
/// Blocks of a table that has grown; their memory is taken up as it is written to.
const LARGE_BLOCK: usize = 16 << 20;
/// A table larger than this is continued on huge pages,
const SMALL_TABLE: usize = 4 << 20;
/// if it may become as large as this: what is touched ahead is then little beside it.
const LARGE_BOUND: usize = 64 << 20;

/// Where a store's buckets come from. A clone is the same.
#[derive(Clone, Debug)]
pub(crate) struct Ground(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when there may be a page to touch.
    wanted: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether a table that grows is laid on huge pages.
    huge: bool,
    blocks: Vec<Block>,
    /// Bytes of the last block that are handed out, and that are touched.
    used: usize,
    touched: usize,
    has_thread: bool,
    closed: bool,
}

impl Ground {
    /// Ground for a table of up to `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let state = State {
            huge: max_bytes >= LARGE_BOUND,
            blocks: Vec::new(),
            used: 0,
            touched: 0,
            has_thread: false,
            closed: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), wanted: Condvar::new() }))
    }

    /// Buckets of slots never used, which are there as long as the ground is.
    pub(crate) fn take(&self) -> *const Buckets {
        let mut state = self.0.state.lock();
        if state.blocks.last().is_none_or(|block| state.used == block.size) {
            state.add_block();
        }
        let block = state.blocks.last().expect("one is added where there was none");
        let (buckets, huge) = (block.at(state.used), block.huge);
        state.used += size_of::<Buckets>();
        if huge && state.next_page().is_some() {
            if !state.has_thread {
                state.has_thread = true;
                let shared = Arc::clone(&self.0);
                // Without the thread the pages are touched by who writes to them first.
                let _ = thread::Builder::new()
                    .name("sluicegate-pages".to_owned())
                    .spawn(move || shared.touch_pages());
            }
            self.0.wanted.notify_one();
        }
        buckets.cast()
    }

    /// Lets the thread end.
    pub(crate) fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.wanted.notify_one();
    }
}

impl Shared {
    /// Touches pages that will be used next, until the ground is closed.
    fn touch_pages(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            let Some(page) = state.next_page() else {
                self.wanted.wait(&mut state);
                continue;
            };
            state.touched += HUGE_PAGE;
            parking_lot::MutexGuard::unlocked(&mut state, || touch(page));
        }
    }
}

impl State {
    fn add_block(&mut self) {
        let size: usize = self.blocks.iter().map(|block| block.size).sum();
        self.blocks.push(match self.huge && size >= SMALL_TABLE {
            true => Block::new(LARGE_BLOCK, true),
            false => Block::new(SMALL_BLOCK, false),
        });
        (self.used, self.touched) = (0, 0);
    }

    /// The next page to touch: one is kept ahead of what is used.
    fn next_page(&self) -> Option<NonNull<AtomicU64>> {
        let block = self.blocks.last().filter(|block| block.huge)?;
        let wanted = (self.used + HUGE_PAGE).min(block.size);
        (self.touched < wanted).then(|| block.page(self.touched))
    }
}

/// Has the system take up the page at this address, which is part of a block.
#[expect(unsafe_code, reason = "the address is one of a block's")]
fn touch(page: NonNull<AtomicU64>) {
    // SAFETY: blocks are there as long as the ground is, and hold nothing but such words. A read
    // would not do, and a write must not change what has been put there meanwhile.
    unsafe { page.as_ref() }.fetch_or(0, Ordering::Relaxed);
}

/// Zeroed memory, which is taken up as it is written to.
#[derive(Debug)]
struct Block {
    memory: NonNull<u8>,
    size: usize,
    huge: bool,
}

// SAFETY: a block is memory of words that are atomics, owned by nobody else.
#[expect(unsafe_code, reason = "a raw pointer is not `Send` by itself")]
unsafe impl Send for Block {}

impl Block {
    #[expect(unsafe_code, reason = "std has no other way to ask for memory that is not written to")]
    fn new(size: usize, huge: bool) -> Self {
        let layout = Self::layout(size, huge);
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc::alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { alloc::handle_alloc_error(layout) };
        let block = Self { memory, size, huge };
        if huge {
            advise_huge_pages(block.at(0), size);
        }
        block
    }

    /// More than is needed, so that there is room to begin at a page. To ask the allocator for that
    /// instead would have it write all of it.
    fn layout(size: usize, huge: bool) -> Layout {
        Layout::from_size_align(size + Self::page_size(huge), 16).expect("some MiB fit in memory")
    }

    const fn page_size(huge: bool) -> usize {
        if huge { HUGE_PAGE } else { PAGE }
    }

    /// The address of a byte, the first being where a page begins.
    fn at(&self, offset: usize) -> *mut u8 {
        let memory = self.memory.as_ptr();
        let start = memory.addr().next_multiple_of(Self::page_size(self.huge)) - memory.addr();
        memory.wrapping_add(start + offset)
    }

    fn page(&self, offset: usize) -> NonNull<AtomicU64> {
        NonNull::new(self.at(offset).cast()).expect("no block is at address 0")
    }
}

impl Drop for Block {
    #[expect(unsafe_code, reason = "gives back what `alloc_zeroed` gave")]
    fn drop(&mut self) {
        // SAFETY: it came from there, with the same layout.
        unsafe { alloc::dealloc(self.memory.as_ptr(), Self::layout(self.size, self.huge)) }
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no other way to tell the system")]
fn advise_huge_pages(start: *mut u8, size: usize) {
    // SAFETY: the range is part of a block; the advice does not change what it holds. Where the
    // system does not follow it, pages are small.
    unsafe { libc::madvise(start.cast(), size, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: *mut u8, _size: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(ground: &Ground, bytes: usize) -> Vec<usize> {
        (0..bytes / size_of::<Buckets>()).map(|_| ground.take().addr()).collect()
    }

    #[test]
    fn buckets_begin_a_page_and_do_not_overlap() {
        let ground = Ground::new(LARGE_BOUND);
        let mut taken = take_all(&ground, SMALL_TABLE + 2 * LARGE_BLOCK + HUGE_PAGE);
        ground.close();
        taken.sort_unstable();
        assert!(taken.iter().all(|start| start.is_multiple_of(PAGE)));
        assert!(taken.windows(2).all(|pair| pair[1] - pair[0] >= size_of::<Buckets>()));
    }

    #[test]
    fn a_table_that_must_stay_small_takes_small_blocks_only() {
        let ground = Ground::new(LARGE_BOUND - 1);
        take_all(&ground, 2 * SMALL_TABLE);
        let state = ground.0.state.lock();
        assert_eq!((state.blocks.len(), state.has_thread), (2 * SMALL_TABLE / SMALL_BLOCK, false));
    }

    #[test]
    fn no_more_than_a_page_is_touched_ahead() {
        let ground = Ground::new(LARGE_BOUND);
        take_all(&ground, SMALL_TABLE + size_of::<Buckets>());
        // Until the thread has nothing left to touch.
        while ground.0.state.lock().next_page().is_some() {
            thread::yield_now();
        }
        let (used, touched) = (size_of::<Buckets>(), ground.0.state.lock().touched);
        assert!(touched >= used + HUGE_PAGE && touched <= 2 * HUGE_PAGE, "{touched}");
        ground.close();
    }
}
