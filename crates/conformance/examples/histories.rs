//! Prints random histories with the answers of the oracle, for tests in other languages: `histories FIRST COUNT`. One line for each
//! step: the number of the history, the time in microseconds, the policy, the operation, its cost, its longest wait in
//! microseconds, and the seven integers of the decision or the word `error`, with tabs between them.

use std::{env, time::Duration};

use sluicegate_conformance::{History, OracleSubject, Shape, Subject as _};
use sluicegate_core::Operation;

fn main() {
    let numbers: Vec<u64> = env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let (first, count) = match numbers[..] {
        [first, count] => (first, count),
        _ => (0, 100),
    };
    for seed in first..first + count {
        let mut oracle = OracleSubject::default();
        for step in History::random(seed, Shape::default()).0 {
            let (operation, cost, wait) = match step.operation {
                Operation::Take(cost) => ("take", cost, Duration::ZERO),
                Operation::Peek(cost) => ("peek", cost, Duration::ZERO),
                Operation::Charge(cost) => ("charge", cost, Duration::ZERO),
                Operation::Refund(cost) => ("refund", cost, Duration::ZERO),
                Operation::Reserve { cost, max_wait } => ("reserve", cost, max_wait),
                Operation::Reset => ("reset", 0, Duration::ZERO),
            };
            let answer = match oracle.apply(step.of(&seed.to_le_bytes())) {
                Ok(decision) => decision.to_integers().map(|it| it.to_string()).join(" "),
                Err(_) => "error".to_owned(),
            };
            let (now, policy, wait) = (step.now.as_micros(), &step.policy, wait.as_micros());
            println!("{seed}\t{now}\t{policy}\t{operation}\t{cost}\t{wait}\t{answer}");
        }
    }
}
