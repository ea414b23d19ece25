//! The store against the conformance kit.

use sluicegate_conformance::{Shape, Subject, check_histories, check_keys, check_traces};
use sluicegate_core::{Decision, Operation, Policy, Timestamp};
use sluicegate_memory::MemoryStore;

struct InMemory(MemoryStore);

impl Subject for InMemory {
    fn apply(
        &mut self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, String> {
        self.0.apply(key, policy, now, operation).map_err(|error| error.to_string())
    }
}

#[test]
fn it_passes_the_kit() {
    check_traces(&mut InMemory(MemoryStore::new().without_forgetting()));
    check_keys(&mut InMemory(MemoryStore::new()));
}

#[test]
fn it_answers_random_histories_as_the_core_does() {
    let keeping = MemoryStore::new().without_forgetting();
    check_histories(&mut InMemory(keeping), 11, 1_000, Shape::default());
    // What is forgotten is not remembered when the clock steps back, nor need it be.
    let shape = Shape { steps_back: false, ..Shape::default() };
    check_histories(&mut InMemory(MemoryStore::new()), 5_000, 1_000, shape);
}
