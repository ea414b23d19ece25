//! Any bytes at all, read as a rules file: see `sluicegate_rules::fuzz::check_rules` for what must
//! hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sluicegate_rules::fuzz::check_rules(data));
