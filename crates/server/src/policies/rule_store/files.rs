//! Rules files with their contents.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use sluicegate_commands::plain_error;
use sluicegate_rules::{Format, RuleSet, RulesSource};

/// Extensions of rules files in a folder.
const ENDINGS: [&str; 3] = ["yaml", "yml", "toml"];
/// Maximum number of bytes of a file, also for the parser.
const MAX_BYTES: u64 = 16 << 20;

/// A digest of names and contents.
pub(super) type Digest = [u8; 32];

/// Rules files with their contents, in order.
#[derive(Debug)]
pub struct Files(Vec<(PathBuf, String)>);

impl Files {
    /// Files with these names and contents.
    pub(crate) fn of(files: Vec<(PathBuf, String)>) -> Self {
        Self(files)
    }

    /// Reads files, and the rules files in folders, sorted by name.
    ///
    /// # Errors
    /// The file that cannot be read, and the reason.
    pub fn read(paths: &[PathBuf]) -> Result<Self, String> {
        let mut files = Vec::new();
        for path in paths {
            let fault = |error| unreadable(path, &error);
            if !fs::metadata(path).map_err(fault)?.is_dir() {
                files.push((path.clone(), read(path)?));
                continue;
            }
            let mut names = Vec::new();
            for entry in fs::read_dir(path).map_err(fault)? {
                let name = entry.map_err(fault)?.path();
                // Kubernetes builds a mounted folder from entries that start with a dot.
                let hidden = name.file_name().is_some_and(|it| it.as_encoded_bytes()[0] == b'.');
                let ending = name.extension().and_then(|it| it.to_str());
                if !hidden && ending.is_some_and(|it| ENDINGS.contains(&it)) && name.is_file() {
                    names.push(name);
                }
            }
            if names.is_empty() {
                let endings = ENDINGS.join(", .");
                return Err(format!(
                    "no rules files in {}: expected names that end in .{endings}",
                    path.display()
                ));
            }
            names.sort();
            for name in names {
                let text = read(&name)?;
                files.push((name, text));
            }
        }
        Ok(Self(files))
    }

    /// Parses all files as one set.
    ///
    /// # Errors
    /// The first error, with file, line, column and the line itself.
    pub(super) fn parse(&self) -> Result<RuleSet, String> {
        self.check().map_err(|errors| errors.into_iter().next().unwrap_or_default())
    }

    /// Parses all files as one set.
    ///
    /// # Errors
    /// All errors, each with the file, the line, the column and the line itself.
    pub fn check(&self) -> Result<RuleSet, Vec<String>> {
        let names = self.names();
        let sources = self.0.iter().zip(&names).map(|((path, text), name)| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            RulesSource { name, text, format: Format::of_file(&file) }
        });
        RuleSet::check(&sources.collect::<Vec<_>>()).map_err(|errors| {
            let texts = errors.into_iter().map(|(index, error)| {
                let (name, excerpt) = (&names[index], &error.excerpt);
                let gap = if excerpt.is_empty() { "" } else { "\n" };
                format!("{name}: {error}{gap}{}", excerpt.trim_end())
            });
            texts.collect()
        })
    }

    /// The names of the files, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|(path, _)| path.display().to_string()).collect()
    }

    pub(super) fn digest(&self) -> Digest {
        let mut hasher = Sha256::new();
        for (path, text) in &self.0 {
            for part in [path.as_os_str().as_encoded_bytes(), text.as_bytes()] {
                hasher.update(part.len().to_le_bytes());
                hasher.update(part);
            }
        }
        hasher.finalize().into()
    }
}

/// The digest of files that cannot be read, because of `problem`.
pub(super) fn digest_of(problem: &str) -> Digest {
    Sha256::digest(problem.as_bytes()).into()
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {}: {}", path.display(), plain_error(error))
}

fn read(path: &Path) -> Result<String, String> {
    let fault = |error| unreadable(path, &error);
    let mut text = Vec::new();
    let file = File::open(path).map_err(fault)?;
    let length = file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(fault)?;
    if length as u64 > MAX_BYTES {
        return Err(format!(
            "{}: the file is too long: expected up to {MAX_BYTES} bytes",
            path.display()
        ));
    }
    String::from_utf8(text).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|it| **it == b'\n').count();
        format!("{}: line {line}: expected UTF-8", path.display())
    })
}
