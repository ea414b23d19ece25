//! How long the comparison takes must not depend on the secret: RELIABILITY 33.
//!
//! It is measured here and not over the network, where what is to be seen is a thousandth of the noise:
//! an attacker has at most what is measured here.
//!
//! The machine may be busy, and its noise only ever adds time. So the two classes of one comparison take
//! turns in random order, from the same place in memory and by the same code; the slowest quarter of all
//! samples is dropped, by one bound for both; and the means of the rest are compared by Welch's t-test.
//! For as many samples as here, p > 0.01 is |t| < 2.576. By chance one comparison of a hundred fails this,
//! and a burst of noise may make it two: so three of five have to pass.

use std::{hint::black_box, time::Instant};

use sluicegate_testing::size;

use super::Secret;

/// Comparisons in one sample.
const CALLS: u64 = 16;
/// Tries whose mean has little noise.
const MANY: u64 = 1_000_000;
const RIGHT: &str = "correct horse battery staple 42!";

/// How two classes differ: their means, relative to that of the first, and Welch's t.
#[derive(Clone, Copy, Debug)]
struct Difference {
    relative: f64,
    t: f64,
}

impl Difference {
    fn is_significant(self) -> bool {
        self.t.abs() >= 2.576
    }

    /// What the test allows: no significant difference, and none of 1 %. With few tries on a busy machine, the noise of the
    /// mean is larger: then only a difference that is both is one.
    fn is_harmless(self) -> bool {
        let (is_significant, is_large) = (self.is_significant(), self.relative.abs() >= 0.01);
        if tries() < MANY { !(is_significant && is_large) } else { !is_significant && !is_large }
    }
}

/// Times `matches` for both classes, each of which is a secret and a guess, with `tries` calls in all.
fn difference<T>(
    tries: u64,
    classes: [(&T, &str); 2],
    copy: fn(&T) -> T,
    matches: fn(&T, &[u8]) -> bool,
) -> Difference {
    let mut samples = Vec::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut slot = (copy(classes[0].0), Vec::with_capacity(256));
    for _ in 0..tries / CALLS / 2 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let first = usize::from(random >> 63 == 1);
        for class in [first, 1 - first] {
            let (secret, given) = classes[class];
            slot.0 = copy(secret);
            slot.1.clear();
            slot.1.extend_from_slice(given.as_bytes());
            #[expect(clippy::disallowed_methods, reason = "time is what this is about")]
            let start = Instant::now();
            for _ in 0..CALLS {
                black_box(matches(black_box(&slot.0), black_box(&slot.1)));
            }
            samples.push((start.elapsed().as_nanos() as f64, class));
        }
    }
    samples.sort_by(|one, other| one.0.total_cmp(&other.0));
    samples.truncate(samples.len() / 4 * 3);
    let [(n, mean, variance), other] = [0, 1].map(|class| {
        let times = || samples.iter().filter(|it| it.1 == class).map(|it| it.0);
        let n = times().count() as f64;
        let mean = times().sum::<f64>() / n;
        (n, mean, times().map(|it| (it - mean).powi(2)).sum::<f64>() / (n - 1.0))
    });
    let t = (other.1 - mean) / (variance / n + other.2 / other.0).sqrt();
    Difference { relative: (other.1 - mean) / mean, t }
}

/// Compares five times, and prints that; how many are harmless.
fn harmless(what: &str, compare: impl Fn() -> Difference) -> usize {
    let differences: [_; 5] = std::array::from_fn(|_| compare());
    let texts = differences.map(|it| format!("{:+.3} % (t {:+.1})", it.relative * 100.0, it.t));
    println!("figure: {what}: {}", texts.join(", "));
    differences.iter().filter(|it| it.is_harmless()).count()
}

fn tries() -> u64 {
    size("SLUICEGATE_AUTH_TRIES", 20_000)
}

#[test]
fn secret_comparison_takes_the_same_time_for_all_guesses() {
    let [secret, longer] = [RIGHT, &RIGHT.repeat(3)].map(Secret::new);
    let nothing = "x".repeat(RIGHT.len());
    let all_but_one = format!("{}?", &RIGHT[..RIGHT.len() - 1]);
    let short = (&RIGHT[..16], &nothing[..16]);
    for (what, classes) in [
        (
            "nothing right, or all but the last byte",
            [(&secret, &*nothing), (&secret, &*all_but_one)],
        ),
        ("nothing right, or all", [(&secret, &nothing), (&secret, RIGHT)]),
        ("half of the secret, or as much of another", [(&secret, short.0), (&secret, short.1)]),
        (
            "a secret as long as what is given, or longer",
            [(&secret, &nothing), (&longer, &nothing)],
        ),
    ] {
        let compare = || difference(tries(), classes, |it| Secret(it.0), Secret::matches);
        let passed = harmless(what, compare);
        assert!(passed >= 3, "{what}: {passed} of 5");
    }
}

/// A comparison that stops at the first byte that differs is found out by the same statistic.
#[test]
fn secret_comparison_that_ends_early_is_detected() {
    let matches = |secret: &Vec<u8>, given: &[u8]| {
        secret.len() == given.len()
            && secret.iter().zip(given).all(|(one, other)| black_box(one) == other)
    };
    let secret = RIGHT.as_bytes().to_vec();
    let nothing = "x".repeat(RIGHT.len());
    let classes = [(&secret, &*nothing), (&secret, RIGHT)];
    let passed = harmless("a comparison that ends early", || {
        difference(tries(), classes, |it| it.clone(), matches)
    });
    assert_eq!(passed, 0, "it looks harmless");
}
