//! Completions for shells and man pages, from the definition of the command line.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use anyhow::anyhow;
use clap::{Command, ValueEnum};
use sluicegate_commands::plain_error;

use crate::output::output;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn completions(shell: Shell, definition: &mut Command) -> io::Result<()> {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // It panics if it cannot write: a pager may close the pipe.
    let mut text = Vec::new();
    clap_complete::generate(generator, definition, "sluicegate", &mut text);
    output().write_all(&text)
}

/// One page for the program, and one for each of its commands.
pub(crate) fn man_pages(definition: Command, folder: &Path) -> anyhow::Result<()> {
    let written = fs::create_dir_all(folder);
    let written = written.and_then(|()| clap_mangen::generate_to(definition, folder));
    written.map_err(|error| anyhow!("cannot write {}: {}", folder.display(), plain_error(&error)))
}
