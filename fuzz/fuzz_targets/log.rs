//! Any bytes at all, read as an access log: see `sluicegate_simulator::fuzz::check_log` for what must
//! hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sluicegate_simulator::fuzz::check_log(data));
