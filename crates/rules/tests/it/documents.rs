//! Rules in the documentation and in `examples`.

use std::{fs, path::PathBuf};

use sluicegate_rules::{Format, RuleSet};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Parses a text, runs the examples in it, and returns their number.
fn check(name: &str, text: &str, format: Format) -> usize {
    let rules = RuleSet::parse(text, format)
        .unwrap_or_else(|error| panic!("{name}: {error}\n{}", error.excerpt));
    for example in rules.examples() {
        assert_eq!(rules.run_example(example), [""; 0], "{name}: {}", example.name);
    }
    rules.described().for_each(|it| assert!(!it.lines.is_empty(), "{name}: {}", it.name));
    rules.examples().len()
}

#[test]
fn example_files_have_no_faults() {
    let mut examples = 0;
    let mut files = 0;
    for entry in fs::read_dir(root().join("examples/rules")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        examples += check(&name, &text, Format::of_file(&name));
        files += 1;
    }
    assert!(files >= 4 && examples >= 9, "{files} files, {examples} examples");
}

/// Each block of YAML or TOML in docs/rules.md is a complete file.
#[test]
fn rules_page_examples_have_no_faults() {
    let page = fs::read_to_string(root().join("docs/rules.md")).unwrap();
    let mut blocks = 0;
    let mut examples = 0;
    let mut rest = page.as_str();
    while let Some(at) = rest.find("\n```") {
        let block = &rest[at + 4..];
        let (format, body) = block.split_once('\n').unwrap();
        let end = body.find("\n```").unwrap();
        let (text, behind) = (&body[..=end], &body[end + 4..]);
        match format {
            "yaml" => examples += check(text, text, Format::Yaml),
            "toml" => examples += check(text, text, Format::Toml),
            _ => blocks -= 1,
        }
        blocks += 1;
        rest = behind;
    }
    assert!(blocks >= 6 && examples >= 6, "{blocks} blocks, {examples} examples");
}
