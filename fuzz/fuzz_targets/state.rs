//! Any bytes, read as the state of a key: see `check_state` for the checks.
#![no_main]

#[allow(dead_code, reason = "another target runs the other check")]
#[path = "../../crates/core/tests/it/check.rs"]
mod check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::check_state(data));
