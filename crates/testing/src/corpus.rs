use std::{fs, path::Path};

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
            let other = random.choose(&seeds);
            check(&mutate(seed, other, parts, &mut random));
        }
    }
}

/// One to four small changes.
fn mutate(seed: &[u8], other: &[u8], parts: &[&[u8]], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(8) + 1);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, random.choose(parts).iter().copied())),
            3 => drop(bytes.splice(at..end, random.choose(parts).iter().copied())),
            4 => bytes.extend_from_within(at..end),
            _ => {
                let from = random.below(other.len() + 1);
                bytes.splice(at..end, other[from..].iter().take(40).copied());
            }
        }
    }
    bytes
}

/// xorshift64 with a fixed seed.
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
