//! Any bytes at all, read as a trace: see `sluicegate_simulator::fuzz::check_trace` for what must
//! hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sluicegate_simulator::fuzz::check_trace(data));
