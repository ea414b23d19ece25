//! The words of a line of a script.

use std::str::{FromStr, SplitWhitespace};

use anyhow::{Context as _, Result};

/// The words of a line that have not been read.
pub(crate) struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> Self {
        Self(line.split_whitespace())
    }

    /// The next word, if there is one.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    pub(crate) fn word(&mut self) -> Result<&'a str> {
        self.next().context("the line ends too early")
    }

    pub(crate) fn number<T: FromStr>(&mut self) -> Result<T> {
        parse(self.word()?)
    }

    /// The numbers up to the end of the line.
    pub(crate) fn numbers<T: FromStr>(&mut self) -> Result<Vec<T>> {
        self.0.by_ref().map(parse).collect()
    }
}

/// The number that a word is.
pub(crate) fn parse<T: FromStr>(word: &str) -> Result<T> {
    word.parse().ok().with_context(|| format!("invalid number `{word}`"))
}
