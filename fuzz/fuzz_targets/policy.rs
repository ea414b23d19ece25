//! Any bytes, read as a policy: see `check_policy` for the checks.
#![no_main]

#[allow(dead_code, reason = "another target runs the other check")]
#[path = "../../crates/core/tests/it/check.rs"]
mod check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::check_policy(data));
