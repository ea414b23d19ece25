//! Any bytes, read as an access log: see `check_log.rs` for the checks.
#![no_main]

#[path = "../../crates/simulator/tests/it/check_log.rs"]
mod check_log;
#[path = "../../crates/simulator/tests/it/pieces.rs"]
mod pieces;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check_log::check_log(data));
