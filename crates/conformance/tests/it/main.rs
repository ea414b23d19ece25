//! Compares the core with the traces and with the oracle.

use sluicegate_conformance::{
    CoreSubject, OracleSubject, Shape, check_histories, check_hold_bounds, check_hold_histories,
    check_hold_traces, check_repeated_holds, check_traces,
};

#[test]
fn core_passes_traces() {
    check_traces(&mut CoreSubject::default());
    check_hold_traces(&mut CoreSubject::default());
}

#[test]
fn oracle_passes_traces() {
    check_traces(&mut OracleSubject::default());
    check_hold_traces(&mut OracleSubject::default());
}

#[test]
fn core_and_oracle_one_policy_agree() {
    let shape = Shape { changes: false, ..Shape::default() };
    check_histories(&mut OracleSubject::default(), 0, histories(), shape);
}

#[test]
fn core_and_oracle_policy_changes_agree() {
    check_histories(&mut OracleSubject::default(), 1 << 40, histories(), Shape::default());
}

#[test]
fn core_and_oracle_holds_under_one_policy_agree() {
    let shape = Shape { changes: false, ..Shape::default() };
    check_hold_histories(&mut OracleSubject::default(), first() + (1 << 41), histories(), shape);
}

#[test]
fn core_and_oracle_holds_under_policy_changes_agree() {
    let first = first() + (1 << 42);
    check_hold_histories(&mut OracleSubject::default(), first, histories(), Shape::default());
}

#[test]
fn core_holds_that_arrive_several_times_charge_once() {
    let (operations, copies) = check_repeated_holds(&mut CoreSubject::default(), 0..histories());
    println!("figure: {operations} operations on holds that arrive {copies} times: equal sums");
    check_repeated_holds(&mut OracleSubject::default(), 0..histories() / 10);
}

#[test]
fn core_keeps_the_bounds_of_holds() {
    check_hold_bounds(&mut CoreSubject::default());
}

/// Number of histories; the environment may set it: `SLUICEGATE_HISTORIES=1000000`.
fn histories() -> u64 {
    environment("SLUICEGATE_HISTORIES").unwrap_or(1_500)
}

/// The first seed with holds; the environment may set it, to try others: `SLUICEGATE_FIRST_HISTORY=5000`.
fn first() -> u64 {
    environment("SLUICEGATE_FIRST_HISTORY").unwrap_or(0)
}

fn environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
