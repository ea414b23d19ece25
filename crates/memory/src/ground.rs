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
const LARGE_BOUND: usize = 128 << 20;
/// How much is touched ahead: shards grow in bursts, and a page may take milliseconds.
const AHEAD: usize = 4 * HUGE_PAGE;

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
    small: Blocks,
    large: Blocks,
    /// Bytes of the large blocks that are touched.
    touched: usize,
    has_thread: bool,
    closed: bool,
}

impl Ground {
    /// Ground for a table of up to `max_bytes`.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let state = State {
            huge: max_bytes >= LARGE_BOUND,
            small: Blocks::new(SMALL_BLOCK, PAGE),
            large: Blocks::new(LARGE_BLOCK, HUGE_PAGE),
            touched: 0,
            has_thread: false,
            closed: false,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), wanted: Condvar::new() }))
    }

    /// Buckets of slots never used, which are there as long as the ground is.
    pub(crate) fn take(&self) -> *const Buckets {
        let mut state = self.0.state.lock();
        if !state.huge || state.small.used < SMALL_TABLE {
            return state.small.take().cast();
        }
        let buckets = state.large.take();
        if state.has_page_to_touch() {
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
        run_anywhere();
        let mut state = self.state.lock();
        while !state.closed {
            if !state.has_page_to_touch() {
                self.wanted.wait(&mut state);
                continue;
            }
            let touched = state.touched;
            let page = NonNull::new(state.large.at(touched).cast()).expect("nothing is at 0");
            state.touched += HUGE_PAGE;
            parking_lot::MutexGuard::unlocked(&mut state, || touch(page));
        }
    }
}

impl State {
    const fn has_page_to_touch(&self) -> bool {
        self.touched < self.large.used + AHEAD
    }
}

/// Blocks of one kind, taken up one after the other.
#[derive(Debug)]
struct Blocks {
    blocks: Vec<Block>,
    size: usize,
    page: usize,
    /// Bytes that are handed out.
    used: usize,
}

impl Blocks {
    const fn new(size: usize, page: usize) -> Self {
        Self { blocks: Vec::new(), size, page, used: 0 }
    }

    /// Where the next buckets are.
    fn take(&mut self) -> *mut u8 {
        self.used += size_of::<Buckets>();
        self.at(self.used - size_of::<Buckets>())
    }

    /// The address of a byte, which may be the first of the next block.
    fn at(&mut self, offset: usize) -> *mut u8 {
        if offset / self.size == self.blocks.len() {
            self.blocks.push(Block::new(self.size, self.page));
        }
        self.blocks[offset / self.size].at(offset % self.size)
    }
}

/// Has the system take up the page at this address, which is part of a block.
#[expect(unsafe_code, reason = "the address is one of a block's")]
fn touch(page: NonNull<AtomicU64>) {
    // A read would not do (nor a `fetch_or`, of which the compiler makes one), and a write must not
    // change what has been put there meanwhile.
    let (zero, relaxed) = (0, Ordering::Relaxed);
    // SAFETY: blocks are there as long as the ground is, and hold nothing but such words.
    let _ = unsafe { page.as_ref() }.compare_exchange(zero, zero, relaxed, relaxed);
}

/// Zeroed memory, which is taken up as it is written to.
#[derive(Debug)]
struct Block {
    memory: NonNull<u8>,
    layout: Layout,
    page: usize,
}

// SAFETY: a block is memory of words that are atomics, owned by nobody else.
#[expect(unsafe_code, reason = "a raw pointer is not `Send` by itself")]
unsafe impl Send for Block {}

impl Block {
    #[expect(unsafe_code, reason = "std has no other way to ask for memory that is not written to")]
    fn new(size: usize, page: usize) -> Self {
        // A page more than is needed, so that there is room to begin at one. To ask the allocator
        // for that instead would have it write all of it.
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

    /// The address of a byte, the first being where a page begins.
    fn at(&self, offset: usize) -> *mut u8 {
        let memory = self.memory.as_ptr();
        let start = memory.addr().next_multiple_of(self.page) - memory.addr();
        memory.wrapping_add(start + offset)
    }
}

impl Drop for Block {
    #[expect(unsafe_code, reason = "gives back what `alloc_zeroed` gave")]
    fn drop(&mut self) {
        // SAFETY: it came from there, with the same layout.
        unsafe { alloc::dealloc(self.memory.as_ptr(), self.layout) }
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no other way to tell the system")]
fn advise_huge_pages(start: *mut u8, size: usize) {
    // SAFETY: the range is part of a block; the advice does not change what it holds. Where the
    // system does not follow it, pages are small.
    unsafe { libc::madvise(start.cast(), size, libc::MADV_HUGEPAGE) };
}

/// Lets this thread run on any core: it was started by one that may be bound to its own, and which
/// it should not hold up.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "std has no other way to tell the system")]
fn run_anywhere() {
    // SAFETY: all bits of a set may be set; the system leaves out the cores that there are not.
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
        assert_eq!((state.small.used, state.large.used), (2 * SMALL_TABLE, 0));
        assert!(!state.has_thread);
    }

    #[test]
    fn so_much_is_touched_ahead_and_no_more() {
        let ground = Ground::new(LARGE_BOUND);
        let used = LARGE_BLOCK - HUGE_PAGE;
        take_all(&ground, SMALL_TABLE + used);
        // Until the thread has nothing left to touch.
        while ground.0.state.lock().has_page_to_touch() {
            thread::yield_now();
        }
        assert_eq!(ground.0.state.lock().touched, used + AHEAD);
        ground.close();
    }
}
