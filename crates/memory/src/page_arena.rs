//! Memory for the buckets of segments, on huge pages where the system has them.
//!
//! Random keys lie on random pages. With pages of 4 KiB the processor reads the address of most pages from memory
//! (and that of their tables), which takes longer than reading the slot; therefore a large table uses pages of
//! 2 MiB. The system fills such a page with zeros when it is first used, which takes longer than a decision
//! may wait: a thread prefaults the next pages before they are needed.

use std::{
    alloc::{self, Layout},
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    thread,
};

use parking_lot::{Condvar, Mutex};

use crate::segment::{Buckets, SEEDS};

/// Alignment of the buckets of a segment: the low bits of their address can hold a seed.
pub(crate) const PAGE: usize = 4096;
const _: () = assert!(SEEDS <= PAGE && size_of::<Buckets>().is_multiple_of(PAGE) || cfg!(loom));

const HUGE_PAGE: usize = 2 << 20;
/// Size of the blocks of a small table, on small pages.
const SMALL_BLOCK: usize = 1 << 20;
/// Size of the blocks of a larger table. Their memory is used only once it is written.
const LARGE_BLOCK: usize = 16 << 20;
/// Bytes after which a table uses huge pages,
const SMALL_TABLE: usize = 4 << 20;
/// if its bound is at least this: prefaulted pages are then a small part of it.
const LARGE_BOUND: usize = 128 << 20;
/// Bytes that are prefaulted: shards grow in bursts, and a page may take milliseconds.
const PREFAULT_BYTES: usize = 4 * HUGE_PAGE;

/// The memory of a store's buckets. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct PageArena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when there may be a page to prefault.
    wanted: Condvar,
}

#[derive(Debug)]
struct State {
    /// Whether the table uses huge pages once it has grown.
    huge: bool,
    /// Bytes of the large blocks that the table uses at most.
    most: usize,
    small: ArenaBlocks,
    large: ArenaBlocks,
    /// Prefaulted bytes of the large blocks.
    prefaulted: usize,
    has_thread: bool,
    closed: bool,
}

impl PageArena {
    /// An arena for a table of up to `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let state = State {
            huge: max_bytes >= LARGE_BOUND,
            most: max_bytes.saturating_sub(SMALL_TABLE),
            small: ArenaBlocks::new(SMALL_BLOCK, PAGE),
            large: ArenaBlocks::new(LARGE_BLOCK, HUGE_PAGE),
            prefaulted: 0,
            has_thread: false,
            closed: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), wanted: Condvar::new() }))
    }

    /// The buckets of a new segment, all slots unused. They live as long as the arena.
    pub(crate) fn take(&self) -> *const Buckets {
        let mut state = self.0.state.lock();
        if !state.huge || state.small.used < SMALL_TABLE {
            return state.small.take().cast();
        }
        let buckets = state.large.take();
        if state.has_page_to_prefault() {
            if !state.has_thread {
                state.has_thread = true;
                let shared = Arc::clone(&self.0);
                // Without the thread, the first write to a page faults it in.
                let _ = thread::Builder::new()
                    .name("sluicegate-pages".to_owned())
                    .spawn(move || shared.prefault_pages());
            }
            self.0.wanted.notify_one();
        }
        buckets.cast()
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.wanted.notify_one();
    }
}

impl Shared {
    /// Prefaults the next pages until the arena is closed.
    fn prefault_pages(&self) {
        run_anywhere();
        let mut state = self.state.lock();
        while !state.closed {
            if !state.has_page_to_prefault() {
                self.wanted.wait(&mut state);
                continue;
            }
            let prefaulted = state.prefaulted;
            let page = NonNull::new(state.large.at(prefaulted).cast()).expect("nothing is at 0");
            state.prefaulted += HUGE_PAGE;
            parking_lot::MutexGuard::unlocked(&mut state, || prefault(page));
        }
    }
}

impl State {
    /// Whether the next page is needed soon. Pages beyond the bound are never needed.
    fn has_page_to_prefault(&self) -> bool {
        self.prefaulted < (self.large.used + PREFAULT_BYTES).min(self.most)
    }
}

/// Blocks of one size, used one after the other.
#[derive(Debug)]
struct ArenaBlocks {
    blocks: Vec<ArenaBlock>,
    size: usize,
    page: usize,
    /// Bytes in use.
    used: usize,
}

impl ArenaBlocks {
    const fn new(size: usize, page: usize) -> Self {
        Self { blocks: Vec::new(), size, page, used: 0 }
    }

    /// The address of the next buckets.
    fn take(&mut self) -> *mut u8 {
        self.used += size_of::<Buckets>();
        self.at(self.used - size_of::<Buckets>())
    }

    /// The address of a byte, which may be the first of the next block.
    fn at(&mut self, offset: usize) -> *mut u8 {
        if offset / self.size == self.blocks.len() {
            self.blocks.push(ArenaBlock::new(self.size, self.page));
        }
        self.blocks[offset / self.size].at(offset % self.size)
    }
}

/// Has the system provide the page at this address, which is part of a block.
#[expect(unsafe_code, reason = "the address is one of a block's")]
fn prefault(page: NonNull<AtomicU64>) {
    // A read maps no page of its own, and the compiler may turn `fetch_or(0)` into a read. A plain write could
    // overwrite a slot that is already in use.
    let (zero, relaxed) = (0, Ordering::Relaxed);
    // SAFETY: blocks live as long as the arena, and hold only such words.
    let _ = unsafe { page.as_ref() }.compare_exchange(zero, zero, relaxed, relaxed);
}

/// Zeroed memory, which is used only once it is written.
#[derive(Debug)]
struct ArenaBlock {
    memory: NonNull<u8>,
    layout: Layout,
    page: usize,
}

// SAFETY: a block owns its memory, which holds only atomics.
#[expect(unsafe_code, reason = "a raw pointer is not `Send` by itself")]
unsafe impl Send for ArenaBlock {}

impl ArenaBlock {
    #[expect(unsafe_code, reason = "std has no other way to allocate memory without writing to it")]
    fn new(size: usize, page: usize) -> Self {
        // One page more than needed, for the alignment: an allocation with the alignment of a page would be
        // written in full by the allocator.
        let layout = Layout::from_size_align(size + page, 16).expect("some MiB fit in memory");
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc::alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { alloc::handle_alloc_error(layout) };
        let block = Self { memory, layout, page };
        if page == HUGE_PAGE {
            advise_huge_pages(block.at(0), size);
        }
        block
    }

    /// The address of a byte; byte 0 begins a page.
    fn at(&self, offset: usize) -> *mut u8 {
        let memory = self.memory.as_ptr();
        let start = memory.addr().next_multiple_of(self.page) - memory.addr();
        memory.wrapping_add(start + offset)
    }
}

impl Drop for ArenaBlock {
    #[expect(unsafe_code, reason = "frees what `alloc_zeroed` returned")]
    fn drop(&mut self) {
        // SAFETY: it was allocated there, with the same layout.
        unsafe { alloc::dealloc(self.memory.as_ptr(), self.layout) }
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no such call")]
fn advise_huge_pages(start: *mut u8, size: usize) {
    // SAFETY: the range is part of a block; the advice does not change its contents. If the
    // system ignores it, pages are small.
    unsafe { libc::madvise(start.cast(), size, libc::MADV_HUGEPAGE) };
}

/// Lets this thread run on any core: the thread that started it may be bound to one core, which this one
/// must not occupy.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no such call")]
fn run_anywhere() {
    // SAFETY: all bits of a set may be set; the system ignores cores that do not exist.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        for core in 0..usize::try_from(libc::CPU_SETSIZE).unwrap_or_default() {
            libc::CPU_SET(core, &mut all);
        }
        libc::sched_setaffinity(0, size_of_val(&all), &raw const all);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: *mut u8, _size: usize) {}

#[cfg(not(target_os = "linux"))]
fn run_anywhere() {}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(arena: &PageArena, bytes: usize) -> Vec<usize> {
        (0..bytes / size_of::<Buckets>()).map(|_| arena.take().addr()).collect()
    }

    #[test]
    fn arena_buckets_are_aligned_and_disjoint() {
        let arena = PageArena::new(LARGE_BOUND);
        let mut taken = take_all(&arena, SMALL_TABLE + 2 * LARGE_BLOCK + HUGE_PAGE);
        arena.close();
        taken.sort_unstable();
        assert!(taken.iter().all(|start| start.is_multiple_of(PAGE)));
        assert!(taken.windows(2).all(|pair| pair[1] - pair[0] >= size_of::<Buckets>()));
    }

    #[test]
    fn arena_small_table_uses_small_blocks() {
        let arena = PageArena::new(LARGE_BOUND - 1);
        take_all(&arena, 2 * SMALL_TABLE);
        let state = arena.0.state.lock();
        assert_eq!((state.small.used, state.large.used), (2 * SMALL_TABLE, 0));
        assert!(!state.has_thread);
    }

    #[test]
    fn arena_huge_pages_are_prefaulted_up_to_bound() {
        let arena = PageArena::new(LARGE_BOUND);
        let used = LARGE_BLOCK - HUGE_PAGE;
        take_all(&arena, SMALL_TABLE + used);
        // Until the thread has no page left to prefault.
        while arena.0.state.lock().has_page_to_prefault() {
            thread::yield_now();
        }
        assert_eq!(arena.0.state.lock().prefaulted, used + PREFAULT_BYTES);
        arena.close();
    }

    #[test]
    fn arena_of_a_full_table_prefaults_nothing_beyond_its_bound() {
        let arena = PageArena::new(LARGE_BOUND);
        take_all(&arena, LARGE_BOUND - HUGE_PAGE);
        while arena.0.state.lock().has_page_to_prefault() {
            thread::yield_now();
        }
        assert_eq!(arena.0.state.lock().prefaulted, LARGE_BOUND - SMALL_TABLE);
        arena.close();
    }
}
