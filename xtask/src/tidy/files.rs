//! The files of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::shell;

/// A file of the repository, read into memory.
pub(crate) struct RepoFile {
    /// Path from the root, separated by `/`.
    pub(crate) path: String,
    /// Size in bytes.
    pub(super) bytes: usize,
    /// `None` if the content is not UTF-8.
    pub(crate) text: Option<String>,
}

/// All files that git tracks or would track.
pub(crate) fn list(root: &Path) -> Result<Vec<RepoFile>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = shell::output(&mut git).context("git could not list the files of the repository")?;
    let paths = list.split('\0').filter(|path| !path.is_empty());
    // Git still lists a file that was deleted without `git rm`.
    let paths = paths.filter(|path| root.join(path).is_file());
    let files = paths.map(|path| {
        let bytes = fs::read(root.join(path)).with_context(|| format!("{path} cannot be read"))?;
        let length = bytes.len();
        Ok(RepoFile { path: path.to_owned(), bytes: length, text: String::from_utf8(bytes).ok() })
    });
    files.collect()
}

/// `path` from the root, separated by `/`.
pub(super) fn relative(path: &Path, root: &Path) -> String {
    let path: PathBuf = path.strip_prefix(root).unwrap_or(path).to_owned();
    path.to_string_lossy().replace('\\', "/")
}
