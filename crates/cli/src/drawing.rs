//! Where charts are drawn: in the terminal, or to a file.

use std::{
    env, fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process,
};

use anyhow::{anyhow, bail};
use clap::Args;
use sluicegate_commands::plain_error;
use sluicegate_plot::Terminal;

/// Columns of a chart if the width of the terminal is unknown.
const COLUMNS: usize = 100;

/// The option that asks for a chart.
#[derive(Args, Debug)]
pub(crate) struct Drawing {
    /// Draw a chart: in the terminal, or to a file that ends in `.svg`
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1)]
    plot: Option<Option<PathBuf>>,
}

/// Output of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plot {
    Terminal,
    File(PathBuf),
}

impl Drawing {
    /// The trace, and the output of the chart. `--plot` takes the next word only if that is an SVG
    /// file; otherwise the word is the trace.
    pub(crate) fn files(
        &self,
        trace: Option<&PathBuf>,
    ) -> anyhow::Result<(Option<PathBuf>, Option<Plot>)> {
        match (&self.plot, trace) {
            (None, trace) => Ok((trace.cloned(), None)),
            (Some(None), trace) => Ok((trace.cloned(), Some(Plot::Terminal))),
            (Some(Some(file)), trace) if file.extension().is_some_and(|it| it == "svg") => {
                Ok((trace.cloned(), Some(Plot::File(file.clone()))))
            }
            (Some(Some(file)), None) => Ok((Some(file.clone()), Some(Plot::Terminal))),
            (Some(Some(file)), Some(_)) => {
                bail!("invalid --plot `{}`: expected a file that ends in `.svg`", file.display())
            }
        }
    }
}

/// The terminal that a chart is drawn on.
pub(crate) fn terminal() -> Terminal {
    let is_terminal = io::stdout().is_terminal();
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    let columns = is_terminal.then(terminal_size::terminal_size).flatten();
    let columns = columns.map_or(COLUMNS, |(width, _)| usize::from(width.0));
    Terminal { columns, colour: is_terminal && !dumb && !set("NO_COLOR") }
}

/// Writes a chart or a page to a file, whole or not at all.
pub(crate) fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let why = |error| anyhow!("cannot write {}: {}", path.display(), plain_error(&error));
    // A link keeps pointing to the file.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return fs::write(&path, text).map_err(why);
    }
    // Beside it first: a full disk must not leave a part of the file, nor remove the one before.
    let mut name = path.clone().into_os_string();
    name.push(format!(".tmp-{}", process::id()));
    let temporary = PathBuf::from(name);
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        why(error)
    })
}
