//! Compares the core with the traces and with the oracle.

use sluicegate_conformance::{CoreSubject, OracleSubject, Shape, check_histories, check_traces};

#[test]
fn core_passes_traces() {
    check_traces(&mut CoreSubject::default());
}

#[test]
fn oracle_passes_traces() {
    check_traces(&mut OracleSubject::default());
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

/// Number of histories; the environment may set it: `SLUICEGATE_HISTORIES=1000000`.
fn histories() -> u64 {
    let wanted = std::env::var("SLUICEGATE_HISTORIES").ok();
    wanted.and_then(|count| count.parse().ok()).unwrap_or(1_500)
}
