//! Any bytes, read as a rules file: see `check_rules` for the checks.
#![no_main]

#[path = "../../crates/rules/tests/it/check.rs"]
mod check;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::check_rules(data));
