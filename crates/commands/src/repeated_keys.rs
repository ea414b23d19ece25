//! Keys that a request on several keys names more than once.

use sluicegate_core::{Answer, Decision};

/// Relates the takes of a request to the distinct keys that a store decides on.
///
/// Only the first take of a key counts. The reply has a decision for each take, in order: a repeated take has the
/// decision on its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepeatedKeys {
    /// For each take, the index of its key among the distinct ones. Empty if no key is repeated.
    indexes: Vec<usize>,
}

impl RepeatedKeys {
    /// Removes the takes of a key after its first one. `key` returns the key of a take.
    pub fn remove_from<T>(takes: &mut Vec<T>, key: impl Fn(&T) -> &[u8]) -> Self {
        let first =
            |index: usize| takes[..index].iter().position(|it| key(it) == key(&takes[index]));
        let first: Vec<_> = (0..takes.len()).map(first).collect();
        if first.iter().all(Option::is_none) {
            return Self::default();
        }
        let mut distinct = 0;
        let mut indexes = Vec::with_capacity(first.len());
        for first in &first {
            indexes.push(first.map_or(distinct, |first| indexes[first]));
            distinct += usize::from(first.is_none());
        }
        let mut first = first.into_iter();
        takes.retain(|_| first.next().flatten().is_none());
        Self { indexes }
    }

    /// The index of the binding key in the takes as given: that of its first take.
    #[must_use]
    pub fn binding_key(&self, answer: &Answer) -> usize {
        self.indexes.iter().position(|it| *it == answer.key).unwrap_or(answer.key)
    }

    /// The decisions on the takes as given, in order.
    pub fn decisions<'a>(
        &'a self,
        answer: &'a Answer,
    ) -> impl ExactSizeIterator<Item = &'a Decision> {
        let count = if self.indexes.is_empty() { answer.each().len() } else { self.indexes.len() };
        (0..count).map(|take| &answer.each()[self.indexes.get(take).copied().unwrap_or(take)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decisions that differ in `remaining`.
    fn decided(remaining: &[u32]) -> Answer {
        use std::time::Duration;

        use sluicegate_core::{Outcome, Source};

        let decision = |&remaining| Decision {
            outcome: Outcome::Allow { delay: Duration::ZERO },
            limit: 9,
            remaining,
            reset_after: Duration::ZERO,
            binding: 0,
        };
        Answer::of_all(remaining.iter().map(decision).collect(), Source::Store).unwrap()
    }

    #[test]
    fn repeated_keys_decisions_are_those_of_the_takes_as_given() {
        for (given, distinct, remaining, binding, expected) in [
            ("abc", "abc", &[5, 4, 3][..], 2, &[5, 4, 3][..]),
            ("aab", "ab", &[5, 4], 2, &[5, 5, 4]),
            ("abab", "ab", &[5, 4], 1, &[5, 4, 5, 4]),
            ("abbca", "abc", &[5, 4, 3], 3, &[5, 4, 4, 3, 5]),
            ("aaa", "a", &[5], 0, &[5, 5, 5]),
        ] {
            let mut takes: Vec<_> = given.split_terminator("").skip(1).collect();
            let repeated = RepeatedKeys::remove_from(&mut takes, |it| it.as_bytes());
            assert_eq!(takes.concat(), distinct, "{given}");
            let taken = decided(remaining);
            assert_eq!(repeated.binding_key(&taken), binding, "{given}");
            let decisions: Vec<_> = repeated.decisions(&taken).map(|it| it.remaining).collect();
            assert_eq!(decisions, expected, "{given}");
        }
    }
}
