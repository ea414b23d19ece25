//! `rules`: explains rules files, and runs their tests.

use std::{io::Write, path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use sluicegate_core::human::printable;
use sluicegate_rules::RuleSet;
use sluicegate_server::RuleFiles;

use crate::{
    arguments::Rules,
    explain::in_words,
    output::{output, report},
};

/// Exit status if a test fails.
const TEST_FAILED: u8 = 1;

pub(crate) fn run(command: &Rules) -> anyhow::Result<ExitCode> {
    let out = &mut output();
    match command {
        Rules::Check { files } => check(files, out),
        Rules::Test { files, require_tests } => test(files, *require_tests, out),
    }
}

/// The rules of all files, with the names of the files.
struct LoadedRules {
    files: RuleFiles,
    rules: RuleSet,
}

impl LoadedRules {
    /// # Errors
    /// All errors of all files; `error: ` is in front of each but the first.
    fn load(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let files = RuleFiles::read(paths).map_err(|error| anyhow!(error))?;
        let rules = files.check().map_err(|errors| {
            let (one, count) = (errors.len() == 1, errors.len());
            let count = if one { String::new() } else { format!("\n\n{count} errors") };
            anyhow!("{}{count}", errors.join("\n\nerror: "))
        })?;
        Ok(Self { files, rules })
    }

    /// Name of a source, in front of a line number; empty if there is only one file.
    fn file(&self, source: usize) -> String {
        match &*self.files.names() {
            [_] => String::new(),
            names => {
                names.get(source).map(|name| format!("{}, ", printable(name))).unwrap_or_default()
            }
        }
    }
}

fn count(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}

fn check(files: &[PathBuf], out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let loaded = LoadedRules::load(files)?;
    let rules = &loaded.rules;
    let all: Vec<_> = rules.described().collect();
    let names = rules.policy_names();
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    writeln!(
        out,
        "{}, {}{named}, {}",
        count(all.len(), "rule", "rules"),
        count(names.len(), "named policy", "named policies"),
        count(rules.examples().len(), "test", "tests"),
    )?;
    let mut explained = Vec::new();
    for rule in all {
        let name = printable(&rule.name);
        writeln!(out, "\n{name} ({}line {})", loaded.file(rule.source), rule.line)?;
        for (label, text) in rule.lines {
            writeln!(out, "  {label:<10} {}", printable(&text))?;
        }
        explained.extend(rule.policies);
    }
    let mut known = Vec::new();
    explained.extend(names.iter().filter_map(|name| rules.policy(name).cloned()));
    for policy in explained {
        let text = policy.to_string();
        if !known.contains(&text) {
            write!(out, "\n{}", in_words(&policy))?;
            known.push(text);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn test(files: &[PathBuf], require: bool, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let loaded = LoadedRules::load(files)?;
    let mut failed = 0;
    for example in loaded.rules.examples() {
        let faults = loaded.rules.run_example(example);
        let word = if faults.is_empty() { "ok  " } else { "FAIL" };
        let file = loaded.file(example.source);
        let name = printable(&example.name);
        writeln!(out, "{word} {name} ({file}line {})", example.line)?;
        for fault in &faults {
            writeln!(out, "       {}", printable(fault))?;
        }
        for warning in loaded.rules.example_warnings(example) {
            writeln!(out, "       warning: {}", printable(&warning))?;
        }
        failed += usize::from(!faults.is_empty());
    }
    let all = loaded.rules.examples().len();
    if all == 0 {
        let names = loaded.files.names().join(", ");
        if require {
            return Err(anyhow!("no tests in {names}: expected at least one under `tests`"));
        }
        report(format_args!("warning: no tests in {names}: write some under `tests`"));
    }
    writeln!(out, "{} of {all} tests pass", all - failed)?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(TEST_FAILED) })
}
