//! The fuzz target's property over the committed corpus and its neighbourhood, on stable Rust.

use std::fs;
use std::path::Path;

use sluicegate_resp::fuzz::check;

/// Mutations tried of each file.
const MUTATIONS: usize = 3000;

/// Bytes that RESP gives a meaning to: random ones would seldom get past the first header.
const TELLING: &[u8] = b"*$+-:_,#!=(%~>|\r\n0123456789 \"'\\x\0\xff";

#[test]
fn the_corpus_and_its_mutations_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/resp");
    let entries = fs::read_dir(&folder).expect("the corpus is committed");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 10, "the corpus is in {}", folder.display());

    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in &seeds {
        check(seed);
        for _ in 0..MUTATIONS {
            let other = random.choose(&seeds);
            check(&mutate(seed, other, &mut random));
        }
    }
}

/// One to four small changes.
fn mutate(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(8) + 1);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, *random.choose(TELLING)),
            3 => bytes[at..end].fill(*random.choose(TELLING)),
            4 => bytes.extend_from_within(at..end),
            _ => {
                let from = random.below(other.len() + 1);
                bytes.splice(at..end, other[from..].iter().take(40).copied());
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

    fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
