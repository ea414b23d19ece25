//! Any bytes, read as RESP: see `check.rs` for the checks.
#![no_main]

#[path = "../../crates/resp/tests/it/check.rs"]
mod check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::check(data));
