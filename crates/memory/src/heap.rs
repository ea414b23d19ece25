//! Returns free memory of the process to the system.

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
