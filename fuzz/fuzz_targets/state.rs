//! Any bytes at all, read as a key's state: see `sluicegate_core::fuzz::check_state` for what must
//! hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sluicegate_core::fuzz::check_state(data));
