//! Errors that the checks found.

use anyhow::{Result, bail};

/// Errors that a check found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(super) errors: Vec<String>,
}

impl Findings {
    pub(crate) fn error(&mut self, text: String) {
        self.errors.push(text);
    }

    /// Prints everything. Returns an error if `check` found one.
    pub(crate) fn report(&self, check: &str) -> Result<()> {
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
