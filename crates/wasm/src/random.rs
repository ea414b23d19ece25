//! Random bytes, from the host: the keys of hashes are secret, because clients choose the keys of limits.
//!
//! WebAssembly has no source of its own. `cargo xtask wasm` builds `getrandom` with the cfg that makes it call this.

#![cfg(target_family = "wasm")]
#![expect(unsafe_code, reason = "an import of the host and an export to `getrandom`")]

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Fills `length` bytes at `start` with random bytes.
    fn random(start: *mut u8, length: usize);
}

/// The backend that `getrandom` looks for. 0 is success.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(start: *mut u8, length: usize) -> u32 {
    // SAFETY: the caller gives a buffer of that length, and the host writes nothing else.
    unsafe { random(start, length) };
    0
}
