//! `cargo xtask tidy`: what no compiler checks about this repository. A rule a file.

mod arrows;
mod circles;
pub(crate) mod code;
mod licences;
pub(crate) mod links;
mod manifests;
mod places;
mod scenarios;
mod sizes;
mod sources;
mod versions;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{shell, workspace};

/// What was found: errors, which must be mended, and notes, which may wait.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    errors: Vec<String>,
    notes: Vec<String>,
}

impl Findings {
    pub(crate) fn error(&mut self, text: String) {
        self.errors.push(text);
    }

    fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Prints everything; an error where `check` has found one.
    pub(crate) fn report(&self, check: &str) -> Result<()> {
        for note in &self.notes {
            println!("note: {note}");
        }
        for error in &self.errors {
            println!("error: {error}");
        }
        match self.errors.len() {
            0 => Ok(()),
            1 => bail!("{check} found an error"),
            count => bail!("{check} found {count} errors"),
        }
    }
}

/// A file of the repository.
pub(crate) struct Source {
    /// Its path from the root, with `/` between the parts.
    pub(crate) path: String,
    /// How many bytes it has.
    bytes: usize,
    /// `None` for bytes that are no text.
    pub(crate) text: Option<String>,
}

pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let metadata = workspace::metadata()?;
    let files = files(&root)?;
    let mut findings = Findings::default();

    manifests::check(&metadata, &root, &mut findings)?;
    arrows::check(&metadata, &mut findings);
    circles::check(&files, &mut findings);
    versions::check(&metadata, &mut findings);
    licences::check(&metadata, &root, &mut findings)?;
    sources::check(&files, &mut findings);
    sizes::check(&files, &mut findings);
    places::check(&files, &mut findings);
    links::check(&files, &root, &mut findings);
    scenarios::check(&root, &mut findings)?;

    findings.report("tidy")
}

/// All files that git tracks or would track.
pub(crate) fn files(root: &Path) -> Result<Vec<Source>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = shell::output(&mut git).context("git could not list the files of the repository")?;
    let paths = list.split('\0').filter(|path| !path.is_empty());
    // A file that was deleted, but not yet for git, is none.
    let paths = paths.filter(|path| root.join(path).is_file());
    let files = paths.map(|path| {
        let bytes = fs::read(root.join(path)).with_context(|| format!("{path} cannot be read"))?;
        let length = bytes.len();
        Ok(Source { path: path.to_owned(), bytes: length, text: String::from_utf8(bytes).ok() })
    });
    files.collect()
}

/// `path` from the root, with `/` between the parts.
fn relative(path: &Path, root: &Path) -> String {
    let path: PathBuf = path.strip_prefix(root).unwrap_or(path).to_owned();
    path.to_string_lossy().replace('\\', "/")
}
