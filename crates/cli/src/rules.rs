//! `rules`: what files of rules do, in words, and whether their examples hold.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, anyhow};
use sluicegate_rules::{Format, RuleSet};

use crate::{arguments::Rules, explain::in_words};

/// What it ends with where an example does not hold.
const BROKEN: u8 = 1;

pub(crate) fn run(command: &Rules) -> anyhow::Result<ExitCode> {
    let out = &mut io::stdout().lock();
    match command {
        Rules::Check { files } => check(files, out),
        Rules::Test { files } => test(files, out),
    }
}

/// The rules that files say together.
fn read(files: &[PathBuf]) -> anyhow::Result<RuleSet> {
    let texts: Vec<_> = files
        .iter()
        .map(|file| {
            let name = file.display().to_string();
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
            Ok((Format::of_file(&name), name, text))
        })
        .collect::<anyhow::Result<_>>()?;
    RuleSet::parse_all(texts.iter().map(|(format, _, text)| (&**text, *format))).map_err(
        |(index, error)| {
            let name = texts.get(index).map_or("", |(_, name, _)| name);
            anyhow!("{name}: {error}\n{}", error.excerpt().trim_end())
        },
    )
}

fn check(files: &[PathBuf], out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let rules = read(files)?;
    let all: Vec<_> = rules.described().collect();
    let names = rules.policy_names();
    let count = |count: usize, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let named = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
    writeln!(
        out,
        "{}, {}{named}, {}",
        count(all.len(), "rule", "rules"),
        count(names.len(), "named policy", "named policies"),
        count(rules.examples().len(), "example", "examples"),
    )?;
    let mut explained = Vec::new();
    for rule in all {
        writeln!(out, "\n{}", rule.title)?;
        for (label, text) in rule.lines {
            writeln!(out, "  {label:<10} {text}")?;
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

fn test(files: &[PathBuf], out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let rules = read(files)?;
    let mut broken = 0;
    for example in rules.examples() {
        let faults = rules.run_example(example);
        let word = if faults.is_empty() { "ok  " } else { "FAIL" };
        writeln!(out, "{word} {} (line {})", example.name(), example.line())?;
        for fault in &faults {
            writeln!(out, "       {fault}")?;
        }
        broken += usize::from(!faults.is_empty());
    }
    let all = rules.examples().len();
    writeln!(out, "{} of {all} examples hold", all - broken)?;
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(BROKEN) })
}
