//! Every scenario under every policy for which rows are expected: the rows themselves, where it turns from allowed to
//! denied and back.
//!
//! `SLUICEGATE_BLESS=1 cargo test` writes the expected rows again; review the difference.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::run::{output, scenarios};

#[test]
fn scenarios_are_decided_as_recorded() {
    let expected = fs::read(scenarios().join("expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.len(), 12);
    for (name, scenario) in &expected {
        let mut actual = String::new();
        for (policy, expected) in scenario["expect"].as_object().unwrap() {
            let trace = scenarios().join(format!("{name}.csv"));
            let trace = trace.to_str().unwrap();
            let rows = output(&["simulate", "--format", "csv", "--policy", policy, trace], "");
            let piped = ["simulate", "--format", "csv", "--policy", policy, "-"];
            assert_eq!(rows, output(&piped, fs::read(trace).unwrap()), "by standard input");
            let allowed = rows.lines().filter(|row| field(row, 3) == "1").count();
            assert_eq!(expected["allowed"], allowed, "{name}: {policy}");
            actual += &format!("{policy}\n{}\n", turns(&rows));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
        if std::env::var_os("SLUICEGATE_BLESS").is_some() {
            fs::write(&path, &actual).unwrap();
        }
        assert_eq!(actual, fs::read_to_string(&path).unwrap(), "{name}");
    }
}

/// The rows at both ends, and those beside which `allowed` turns; dots for the others.
fn turns(rows: &str) -> String {
    let rows: Vec<&str> = rows.lines().collect();
    let allowed = |index: usize| rows.get(index).map(|row| field(row, 3));
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let telling = index < 4
            || index + 4 > rows.len()
            || allowed(index) != allowed(index - 1)
            || allowed(index) != allowed(index + 1);
        if telling {
            out += &format!("{row}\n");
        } else if !out.ends_with("...\n") {
            out += "...\n";
        }
    }
    out
}

fn field(row: &str, index: usize) -> &str {
    row.split(',').nth(index).unwrap()
}
