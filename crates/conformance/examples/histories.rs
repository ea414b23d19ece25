//! Prints steps with the answers of the oracle, for tests in other languages: `histories FIRST COUNT` random histories,
//! `histories holds FIRST COUNT` those with holds, and `histories traces` the traces of this crate. One line for each step:
//! the number of the history, the time in microseconds, the policy, the operation, its cost, its longest wait in
//! microseconds, and the seven integers of the decision or the word `error`, with tabs between them. A hold, a settle and a
//! renew have their lifetime instead of a wait, -1 for what is not given, and the id in hexadecimal digits at the end.

use std::{collections::HashMap, env, time::Duration};

use sluicegate_conformance::{
    Answer, History, HoldHistory, HoldInvocation, HoldSubject, Invocation, OracleSubject, Shape,
    Subject, check_hold_traces, check_traces,
};
use sluicegate_core::{HoldOperation, Operation, Policy, Timestamp};

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
        if holds {
            for step in HoldHistory::random(seed, SHAPE).0 {
                let _ = step.apply_to(&mut printing, &key);
            }
            continue;
        }
        for step in History::random(seed, SHAPE).0 {
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

impl Printing {
    /// Prints the part of a line before the operation.
    fn begin(&mut self, key: &[u8], now: Timestamp, policy: &Policy) {
        let next = self.keys.len();
        let number = *self.keys.entry(key.to_vec()).or_insert(next);
        print!("{number}\t{}\t{policy}\t", now.as_micros());
    }
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
        let (name, cost, wait) = match operation {
            Operation::Take(cost) => ("take", cost, Duration::ZERO),
            Operation::Peek(cost) => ("peek", cost, Duration::ZERO),
            Operation::Charge(cost) => ("charge", cost, Duration::ZERO),
            Operation::Refund(cost) => ("refund", cost, Duration::ZERO),
            Operation::Reserve { cost, max_wait } => ("reserve", cost, max_wait),
            Operation::Reset => ("reset", 0, Duration::ZERO),
        };
        let answer = self.oracle.apply(invocation);
        self.begin(key, now, policy);
        println!("{name}\t{cost}\t{}\t{}", wait.as_micros(), text_of(&answer));
        answer
    }
}

impl HoldSubject for Printing {
    fn apply_hold(&mut self, invocation: HoldInvocation<'_>) -> Answer {
        let HoldInvocation { key, policy, now, operation } = invocation;
        let (name, id, cost, ttl) = match operation {
            HoldOperation::Hold { id, cost, ttl } => ("hold", id, Some(cost), ttl),
            HoldOperation::Settle { id, used } => ("settle", id, used, None),
            HoldOperation::Renew { id, ttl } => ("renew", id, None, ttl),
        };
        let answer = self.oracle.apply_hold(invocation);
        self.begin(key, now, policy);
        let cost = cost.map_or_else(|| "-1".to_owned(), |cost| cost.to_string());
        let ttl = ttl.map_or_else(|| "-1".to_owned(), |ttl| ttl.as_micros().to_string());
        print!("{name}\t{cost}\t{ttl}\t{}\t", text_of(&answer));
        println!("{}", id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        answer
    }
}
