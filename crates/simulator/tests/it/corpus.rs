//! The fuzz targets' properties over the committed corpus and its neighbourhood, on stable Rust.

use sluicegate_testing::check_mutations;

use crate::{check_log::check_log, check_trace::check_trace};

/// Mutations tried of each file.
const MUTATIONS: usize = 500;

/// Parts of traces.
const PARTS: [&[u8]; 20] = [
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
    b"hold",
    b"settle",
    b"concurrency:2/1s",
    b"t_us,key,cost,op,id,ttl_us,policy\n",
    b"gcra:1/1s",
    b"t_us,key,cost\n",
    b"\xff",
    b"\xef\xbb\xbf",
];

/// Parts of lines of logs.
const LOG_PARTS: [&[u8]; 21] = [
    b" ",
    b"  ",
    b"\r",
    b"1m2.5s",
    b"\"",
    b"\\\"",
    b"\n",
    b"\r\n",
    b"[",
    b"] \"",
    b"{",
    b"}",
    b":",
    b"\"ts\":1700000000.5,",
    b"\"duration\":12.5,",
    b" 0.250",
    b"10/Oct/2000:13:55:36 -0700",
    b"2000-10-10T13:55:36Z",
    b"99999999999999999999",
    b"\xff",
    b"\\x41",
];

#[test]
fn corpus_traces_and_mutations_hold() {
    check_mutations("trace", MUTATIONS, &PARTS, check_trace);
}

#[test]
fn corpus_logs_and_mutations_hold() {
    check_mutations("log", MUTATIONS, &LOG_PARTS, check_log);
}
