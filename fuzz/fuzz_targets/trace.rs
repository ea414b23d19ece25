//! Any bytes, read as a trace: see `check_trace.rs` for the checks.
#![no_main]

#[path = "../../crates/simulator/tests/it/check_trace.rs"]
mod check_trace;
#[path = "../../crates/simulator/tests/it/pieces.rs"]
mod pieces;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check_trace::check_trace(data));
