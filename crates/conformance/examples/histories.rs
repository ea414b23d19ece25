//! Prints steps with the answers of the oracle, for tests in other languages: `histories FIRST COUNT` random histories,
//! `histories holds FIRST COUNT` those with holds, and `histories traces` the traces of this crate. One line for each step:
//! the number of the history, the time in microseconds, the policy, the operation, its cost, its longest wait in
//! microseconds, and the seven integers of the decision or the word `error`, with tabs between them. A hold, a settle and a
//! renew have their lifetime instead of a wait, -1 for what is not given, and the id in hexadecimal digits at the end.

use std::{collections::HashMap, env, time::Duration};

use sluicegate_conformance::{
    Answer, History, Invocation, OracleSubject, Shape, Subject, check_hold_traces, check_traces,
};
use sluicegate_core::Operation;

/// The clocks of these tests do not run back.
const SHAPE: Shape =
    Shape { steps: 40, changes: true, steps_back: false, reserve: true, zones: true };

fn main() {
    let mut printing = Printing::default();
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments == ["traces"] {
        check_traces(&mut printing);
        return check_hold_traces(&mut printing);
    }
    let holds = arguments.first().is_some_and(|word| word == "holds");
    let numbers: Vec<u64> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
    let (first, count) = match numbers[..] {
        [first, count] => (first, count),
        _ => (0, 100),
    };
    for seed in first..first + count {
        let key = seed.to_le_bytes();
        let history = match holds {
            true => History::with_holds(seed, SHAPE),
            false => History::random(seed, SHAPE),
        };
        for step in history.0 {
            let _ = printing.apply(step.of(&key));
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

fn text_of(answer: &Answer) -> String {
    match answer {
        Ok(decision) => decision.to_integers().map(|it| it.to_string()).join(" "),
        Err(_) => "error".to_owned(),
    }
}

impl Subject for Printing {
    fn apply(&mut self, invocation: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = invocation;
        let zero = Some(Duration::ZERO);
        let (name, cost, wait) = match operation {
            Operation::Take(cost) => ("take", Some(cost), zero),
            Operation::Peek(cost) => ("peek", Some(cost), zero),
            Operation::Charge(cost) => ("charge", Some(cost), zero),
            Operation::Refund(cost) => ("refund", Some(cost), zero),
            Operation::Reserve { cost, max_wait } => ("reserve", Some(cost), Some(max_wait)),
            Operation::Reset => ("reset", Some(0), zero),
            Operation::Hold { cost, ttl, .. } => ("hold", Some(cost), ttl),
            Operation::Settle { used, .. } => ("settle", used, None),
            Operation::Renew { ttl, .. } => ("renew", None, ttl),
        };
        let answer = self.oracle.apply(invocation);
        let next = self.keys.len();
        let number = *self.keys.entry(key.to_vec()).or_insert(next);
        let cost = cost.map_or_else(|| "-1".to_owned(), |cost| cost.to_string());
        let wait = wait.map_or_else(|| "-1".to_owned(), |wait| wait.as_micros().to_string());
        print!("{number}\t{}\t{policy}\t{name}\t{cost}\t{wait}\t", now.as_micros());
        print!("{}", text_of(&answer));
        if let Some(id) = operation.id() {
            print!("\t{}", id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
        println!();
        answer
    }
}
