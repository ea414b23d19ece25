//! The document at `/openapi.json` held against the server, by schemathesis.

use std::{env, path::PathBuf, process::Command};

use crate::server::Server;

/// The folder into which `cargo xtask test --all` puts tools: `target/tools` of the workspace, or that of
/// `SLUICEGATE_TOOLS`.
fn tools() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    root.join(env::var_os("SLUICEGATE_TOOLS").map_or_else(|| "target/tools".into(), PathBuf::from))
}

#[test]
fn schema_document_is_true() {
    let server = Server::start(&["--test-clock"]);
    let examples = env::var("SLUICEGATE_SCHEMA_EXAMPLES").unwrap_or_else(|_| "15".to_owned());
    let program = tools().join("schema/bin/schemathesis");
    let output = Command::new(&program)
        .arg("run")
        .arg(format!("http://{}/openapi.json", server.http))
        .args(["--phases", "examples,coverage,fuzzing", "--checks", "all"])
        // Most generated texts are invalid policies: the pattern of valid ones is longer than the schema.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--max-examples", &examples, "--seed", "1", "--request-timeout", "20"])
        .args(["--generation-database", "none", "--no-color", "--warnings", "off"])
        .current_dir(env::temp_dir())
        .output()
        .unwrap_or_else(|error| {
            let program = program.display();
            panic!("{program} could not be run ({error}); `cargo xtask test --all` installs it")
        });
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let actual =
        printed.lines().filter(|line| line.contains("generated") || line.contains("passed"));
    println!("figure: schemathesis: {}", actual.map(str::trim).collect::<Vec<_>>().join("; "));
}
