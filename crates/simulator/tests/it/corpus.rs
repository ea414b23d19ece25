//! The fuzz targets' properties over the committed corpus and its neighbourhood, on stable Rust.

use std::{fs, path::Path};

use sluicegate_simulator::fuzz::{check_log, check_trace};

/// Mutations tried of each file.
const MUTATIONS: usize = 500;

/// What traces are made of: random bytes would seldom get past the first field.
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

/// What lines of logs are made of.
const LOG_PARTS: [&[u8]; 16] = [
    b" ",
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
    b"10/Oct/2000:13:55:36 -0700",
    b"2000-10-10T13:55:36Z",
    b"99999999999999999999",
    b"\xff",
    b"\\x41",
];

#[test]
fn the_corpus_and_its_mutations_hold() {
    hold("trace", 10, &PARTS, check_trace);
}

#[test]
fn the_logs_and_their_mutations_hold() {
    hold("log", 5, &LOG_PARTS, check_log);
}

fn hold(target: &str, least: usize, parts: &[&[u8]], check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).expect("the corpus is committed");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= least, "the corpus is in {}", folder.display());

    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in &seeds {
        check(seed);
        for _ in 0..MUTATIONS {
            check(&mutate(seed, parts, &mut random));
        }
    }
}

/// One to four small changes.
fn mutate(seed: &[u8], parts: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(8) + 1);
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.extend_from_within(at..end),
            _ => {
                let part = parts[random.below(parts.len())];
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
    bytes
}

/// xorshift64: the same mutations in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let bound = u64::try_from(bound.max(1)).expect("a length fits");
        usize::try_from((self.0 >> 8) % bound).expect("it is below a length")
    }
}
