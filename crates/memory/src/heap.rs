//! Returns free memory of the process to the system.
//!
//! The allocator of glibc has a heap for each thread. [`release_free_memory`] reaches the free blocks between used
//! ones. Free memory behind the last used block is returned by a thread's own next free of a block there:
//! [`release_end_of_heap`] frees such a block, and [`limit_free_memory`] sets the threshold. With other allocators
//! all do nothing.

/// Free bytes at the end of a heap from which they are returned.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_FREE: libc::c_int = 1024 * 1024;

/// Bytes of a block whose free makes the allocator check the end of the heap, and which is not a mapping of its own.
const BLOCK: usize = 96 * 1024;

/// Makes the allocator return free memory at the end of a heap from 1 MiB on. Otherwise it adapts the threshold to
/// the largest block that was ever freed, up to 64 MiB. Call it once, at the start.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator's own function, which has no safe wrapper")
)]
pub fn limit_free_memory() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAX_FREE);
        // The other bound that adapts; to set one ends that for both.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_FREE);
    }
}

/// Returns the free memory at the end of the calling thread's heap.
pub fn release_end_of_heap() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(BLOCK)));
}

/// Returns memory to the system that was freed but that the allocator keeps.
///
/// The allocator of glibc keeps freed blocks between used ones indefinitely: after a flood of large requests, a server
/// would keep the memory of the flood. The call locks the allocator's arenas one at a time and takes some
/// milliseconds: call it seldom, and not from a thread that serves clients. With other allocators it does nothing.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator's own function, which has no safe wrapper")
)]
pub fn release_free_memory() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}
