//! Returns free memory of the process to the system.

/// Free bytes that the allocator may keep at the end of the heap of each thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_FREE: libc::c_int = 1024 * 1024;

/// Bounds the free memory that the allocator of glibc keeps at the end of the heap of each thread: 1 MiB. It would
/// otherwise adapt the bound to the largest block that was ever freed, up to 64 MiB, and
/// [`release_free_memory`] does not reach it. Call it once, at the start. With other allocators it does nothing.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator's own function, which has no safe wrapper")
)]
pub fn limit_free_memory() {
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAX_FREE);
        // The other bound that adapts; setting one ends that for both.
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAX_FREE);
    }
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
