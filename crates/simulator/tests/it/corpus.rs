//! The fuzz target's property over the committed corpus and its neighbourhood, on stable Rust.

use sluicegate_simulator::fuzz::check_trace;
use sluicegate_testing::check_mutations;

/// Mutations tried of each file.
const MUTATIONS: usize = 500;

/// What traces are made of.
const PARTS: [&[u8]; 16] = [
    b",",
    b"\"",
    b"\"\"",
    b"\n",
    b"\r\n",
    b"\r",
    b"0",
    b"9",
    b"4294967295",
    b"4503599627370496",
    b"reset",
    b"charge",
    b"gcra:1/1s",
    b"t_us,key,cost\n",
    b"\xff",
    b"\xef\xbb\xbf",
];

#[test]
fn the_corpus_and_its_mutations_hold() {
    check_mutations("trace", MUTATIONS, &PARTS, check_trace);
}
