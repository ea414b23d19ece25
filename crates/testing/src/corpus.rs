use std::{fs, path::Path};

use crate::Random;

/// The files of a fuzz target's corpus, in order.
///
/// # Panics
/// If there are fewer than five.
#[must_use]
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "the corpus is in {folder:?}");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Checks each file of a corpus and `mutations` mutations of it, the same in every run. `parts` are typical pieces of
/// such files, because random bytes seldom get past the first field.
pub fn check_mutations(target: &str, mutations: usize, parts: &[&[u8]], check: impl Fn(&[u8])) {
    let seeds = corpus(target);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in &seeds {
        check(seed);
        for _ in 0..mutations {
            let other = choose(&seeds, &mut random);
            check(&mutate(seed, other, parts, &mut random));
        }
    }
}

/// One to four small changes.
fn mutate(seed: &[u8], other: &[u8], parts: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=below(4, random) {
        let at = below(bytes.len() + 1, random);
        let end = at + below((bytes.len() - at).min(8) + 1, random);
        match below(6, random) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, choose(parts, random).iter().copied())),
            3 => drop(bytes.splice(at..end, choose(parts, random).iter().copied())),
            4 => bytes.extend_from_within(at..end),
            _ => {
                let from = below(other.len() + 1, random);
                bytes.splice(at..end, other[from..].iter().take(40).copied());
            }
        }
    }
    bytes
}

/// An index below `end`, or 0.
fn below(end: usize, random: &mut Random) -> usize {
    let end = u64::try_from(end.max(1)).expect("a length fits");
    usize::try_from(random.below(end)).expect("it is below a length")
}

fn choose<'a, T>(from: &'a [T], random: &mut Random) -> &'a T {
    &from[below(from.len(), random)]
}
