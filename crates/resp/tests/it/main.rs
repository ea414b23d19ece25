//! The fuzz target's property over the committed corpus and its neighbourhood, on stable Rust.

mod check;
mod other;

use sluicegate_testing::check_mutations;

use check::check;

/// Mutations tried of each file.
const MUTATIONS: usize = 3000;

/// Bytes that RESP gives a meaning to.
const TELLING: &[u8] = b"*$+-:_,#!=(%~>|\r\n0123456789 \"'\\x\0\xff";

#[test]
fn decode_corpus_and_its_mutations_never_panic() {
    let parts: Vec<_> = TELLING.chunks(1).collect();
    check_mutations("resp", MUTATIONS, &parts, check);
}
