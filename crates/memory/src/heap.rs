//! Free memory of the process, back to the system.

/// Returns memory that was freed, but that the allocator keeps, to the system.
///
/// The allocator of glibc keeps freed blocks between used ones for ever: after a flood of large
/// requests a server would stay as large as the flood. It locks its arenas one at a time and takes
/// some milliseconds, so call it seldom, and from a thread that serves nobody. It does nothing where
/// the allocator is another one.
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the allocator's own function, which has no safe form")
)]
pub fn release_free_memory() {
    // SAFETY: it takes no pointer, and may be called at any time from any thread.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}
