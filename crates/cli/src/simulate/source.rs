//! Where traffic comes from.

use std::{
    fs::File,
    io::{self, Cursor, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use sluicegate_simulator::{Batch, KeyCounts, TraceReader};

use super::options::Simulate;

/// Bytes of standard input that are looked at beforehand.
const AHEAD: u64 = 16 << 20;

/// What there is to read, before it is opened.
#[derive(Debug)]
pub(super) enum Input {
    /// A file that can be read twice.
    File(PathBuf),
    /// What can be read only once, and what was read of it already.
    Stream(Once),
}

/// A source that can be read only once.
pub(super) struct Once {
    begun: Vec<u8>,
    rest: Box<dyn Read>,
}

/// Events in order.
pub(super) enum Source {
    Trace(TraceReader<Box<dyn Read>>),
}

impl std::fmt::Debug for Once {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Once").field("begun", &self.begun.len()).finish_non_exhaustive()
    }
}

impl Input {
    pub(super) fn new(_options: &Simulate, trace: Option<&Path>) -> anyhow::Result<Self> {
        let path = trace.context("there is no traffic; a file, or `-` for standard input")?;
        if path.as_os_str() == "-" {
            let rest: Box<dyn Read> = Box::new(io::stdin().lock());
            return Ok(Self::Stream(Once { begun: Vec::new(), rest }));
        }
        let file = open(path)?;
        if file.metadata().is_ok_and(|data| data.is_file()) {
            return Ok(Self::File(path.to_owned()));
        }
        Ok(Self::Stream(Once { begun: Vec::new(), rest: Box::new(file) }))
    }

    /// The key that pictures follow: the one asked for, else the one with the most requests. Of
    /// what can be read only once, the beginning decides.
    pub(super) fn key_to_follow(&mut self, options: &Simulate) -> anyhow::Result<Option<Vec<u8>>> {
        if let Some(key) = &options.key_plot {
            return Ok(Some(key.as_bytes().to_vec()));
        }
        let beginning: Box<dyn Read> = match self {
            Self::File(path) => Box::new(open(path)?),
            Self::Stream(once) => {
                once.rest.by_ref().take(AHEAD).read_to_end(&mut once.begun)?;
                Box::new(Cursor::new(once.begun.clone()))
            }
        };
        let mut counts = KeyCounts::default();
        // What is wrong with it is told when it is decided.
        if let Ok(mut source) = source(beginning) {
            while let Ok(batch) = source.next_batch() {
                if batch.is_empty() {
                    break;
                }
                batch.events().for_each(|event| counts.count(event.key, false));
            }
        }
        Ok(counts.busiest(1).0.first().map(|busiest| busiest.key.to_vec()))
    }

    pub(super) fn open(self) -> anyhow::Result<Source> {
        match self {
            Self::File(path) => source(Box::new(open(&path)?)),
            Self::Stream(once) => source(Box::new(Cursor::new(once.begun).chain(once.rest))),
        }
    }
}

impl Source {
    /// The next events; none at the end.
    pub(super) fn next_batch(&mut self) -> anyhow::Result<Batch<'_>> {
        match self {
            Self::Trace(reader) => Ok(reader.next_batch()?),
        }
    }
}

fn source(bytes: Box<dyn Read>) -> anyhow::Result<Source> {
    Ok(Source::Trace(TraceReader::new(bytes)?))
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}
