//! Any bytes at all, read as a policy: see `sluicegate_core::fuzz::check_policy` for what must hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sluicegate_core::fuzz::check_policy(data));
