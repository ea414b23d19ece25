//! `cargo xtask test`: what CI runs, and everybody before they hand in a change.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{bench, docs, install, loom, shell, tidy, workspace};

/// Every step is run even when one before it failed, so that one run tells all there is to mend.
pub(crate) fn run(may_install: bool) -> Result<()> {
    let path = install::ensure(may_install)?;
    let mut steps = Steps::default();

    steps.cargo(&["fmt", "--all", "--check"]);
    steps.cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
    steps.cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    shell::announce("cargo xtask tidy");
    steps.note("tidy", tidy::run());
    shell::announce("cargo xtask docs: links and words; its tests are among those that follow");
    steps.note("docs", docs::check());
    let mut test = command(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    steps.run(test.env("PATH", path));
    steps.note("loom", loom::run());
    let mut doc = command(&["doc", "--workspace", "--no-deps", "--locked"]);
    steps.run(doc.env("RUSTDOCFLAGS", "-D warnings"));
    for (name, package) in workspace::benches(&workspace::packages()?) {
        steps.run(&mut bench::command(package, name, &["--quick"]));
    }

    steps.finish()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).args(arguments);
    command
}

/// What has failed so far.
#[derive(Default)]
struct Steps {
    failed: Vec<String>,
}

impl Steps {
    fn cargo(&mut self, arguments: &[&str]) {
        self.run(&mut command(arguments));
    }

    fn run(&mut self, command: &mut Command) {
        let name = shell::command_line(command);
        let result = shell::run(command);
        self.note(&name, result);
    }

    fn note(&mut self, name: &str, result: Result<()>) {
        if let Err(error) = result {
            println!("{error:#}");
            self.failed.push(name.to_owned());
        }
    }

    fn finish(self) -> Result<()> {
        if self.failed.is_empty() {
            shell::announce("all steps passed");
            return Ok(());
        }
        bail!("these steps failed:\n  {}", self.failed.join("\n  "))
    }
}
