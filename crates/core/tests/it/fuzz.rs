//! The fuzz targets over the committed corpus, and over changes of it.

use proptest::prelude::*;
use sluicegate_testing::corpus;

use crate::check::{check_policy, check_state};

/// Checks each file, its cuts at every byte, and changes of each byte.
fn check_corpus(target: &str, check: fn(&[u8])) {
    for seed in corpus(target) {
        for cut in 0..=seed.len() {
            check(&seed[..cut]);
        }
        for index in 0..seed.len() {
            for change in [1, 0x10, 0x80, 0xff] {
                let mut changed = seed.clone();
                changed[index] ^= change;
                check(&changed);
            }
        }
    }
}

#[test]
fn policy_text_of_the_corpus_never_panics() {
    check_corpus("policy", check_policy);
}

#[test]
fn state_of_the_corpus_never_panics() {
    check_corpus("state", check_state);
}

proptest! {
    #![proptest_config(super::cases(256))]

    #[test]
    fn policy_text_random_never_panics(text in "[a-z:/=,0-9-]{0,60}") {
        check_policy(text.as_bytes());
    }

    #[test]
    fn state_random_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..80), machine in 0..12_u8) {
        for (byte, value) in bytes.iter_mut().zip([1, 1, machine]) {
            *byte = value;
        }
        check_state(&bytes);
    }
}
