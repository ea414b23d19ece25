//! Errors and notes of the checks.

use anyhow::{Result, bail};

/// Errors, which fail the check, and notes, which do not.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(super) errors: Vec<String>,
    notes: Vec<String>,
}

impl Findings {
    pub(crate) fn error(&mut self, text: String) {
        self.errors.push(text);
    }

    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Prints everything. Returns an error if `check` found one.
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
