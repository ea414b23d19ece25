//! Any bytes at all, read as RESP: see `sluicegate_resp::fuzz::check` for what must hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sluicegate_resp::fuzz::check(data));
