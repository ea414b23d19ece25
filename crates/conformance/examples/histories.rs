//! Prints steps with the answers of the oracle, for tests in other languages: `histories FIRST COUNT` random histories, and
//! `histories traces` the traces of this crate. One line for each step: the number of the history, the time in microseconds,
//! the policy, the operation, its cost, its longest wait in microseconds, and the seven integers of the decision or the word
//! `error`, with tabs between them.

use std::{collections::HashMap, env, time::Duration};

use sluicegate_conformance::{
    Answer, History, Invocation, OracleSubject, Shape, Subject, check_traces,
};
use sluicegate_core::Operation;

fn main() {
    let mut printing = Printing::default();
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments == ["traces"] {
        return check_traces(&mut printing);
    }
    let numbers: Vec<u64> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let (first, count) = match numbers[..] {
        [first, count] => (first, count),
        _ => (0, 100),
    };
    for seed in first..first + count {
        for step in History::random(seed, Shape::default()).0 {
            let _ = printing.apply(step.of(&seed.to_le_bytes()));
        }
    }
}

/// Prints each step, and answers as the oracle.
#[derive(Default)]
struct Printing {
    oracle: OracleSubject,
    /// The numbers of the keys.
    keys: HashMap<Vec<u8>, usize>,
}

impl Subject for Printing {
    fn apply(&mut self, invocation: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = invocation;
        let next = self.keys.len();
        let number = *self.keys.entry(key.to_vec()).or_insert(next);
        let (name, cost, wait) = match operation {
            Operation::Take(cost) => ("take", cost, Duration::ZERO),
            Operation::Peek(cost) => ("peek", cost, Duration::ZERO),
            Operation::Charge(cost) => ("charge", cost, Duration::ZERO),
            Operation::Refund(cost) => ("refund", cost, Duration::ZERO),
            Operation::Reserve { cost, max_wait } => ("reserve", cost, max_wait),
            Operation::Reset => ("reset", 0, Duration::ZERO),
        };
        let answer = self.oracle.apply(invocation);
        let text = match &answer {
            Ok(decision) => decision.to_integers().map(|it| it.to_string()).join(" "),
            Err(_) => "error".to_owned(),
        };
        let (now, wait) = (now.as_micros(), wait.as_micros());
        println!("{number}\t{now}\t{policy}\t{name}\t{cost}\t{wait}\t{text}");
        answer
    }
}
