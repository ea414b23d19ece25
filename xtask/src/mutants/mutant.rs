//! A bug that is planted.

use anyhow::{Result, ensure};

/// A bug: in a file, some text in place of other text.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    /// Occurs once in the file.
    from: &'static str,
    to: &'static str,
}

impl Mutant {
    /// The text of its file with the bug.
    pub(super) fn applied_to(&self, text: &str) -> Result<String> {
        let count = text.matches(self.from).count();
        ensure!(count == 1, "mutant `{}`: {} has its text {count} times", self.name, self.file);
        Ok(text.replacen(self.from, self.to, 1))
    }
}

pub(super) const fn mutant(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { name, file, from, to }
}
