//! Where traffic comes from.

use std::{
    fs::File,
    io::{self, Cursor, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use sluicegate_core::Timestamp;
use sluicegate_simulator::{Batch, KeyCounts, LogFormat, LogReader, TraceReader, Traffic};

use super::{
    options::Simulate,
    progress::Watched,
    unzip::{Damage, Unzip},
};
use crate::table::words;

/// Bytes of standard input that are looked at beforehand.
const AHEAD: u64 = 16 << 20;
/// Of what is not told: the lines that are looked at, and the most bytes of them.
const LINES: usize = 32;
const BEGINNING: u64 = 64 << 10;
/// The column of time, which the header of every trace has.
const TRACE: &[u8] = b"t_us";
/// What gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// When made-up traffic begins: a round minute, as in the scenarios.
const START: u64 = 1_700_000_040_000_000;

/// What there is to read, before it is opened.
#[derive(Debug)]
pub(super) enum Input {
    /// A file that can be read twice.
    File(PathBuf),
    /// What can be read only once, and what was read of it already.
    Stream(Once),
    /// What is made up.
    Traffic,
}

/// A source that can be read only once.
pub(super) struct Once {
    begun: Vec<u8>,
    rest: Box<dyn Read>,
}

/// Events in order.
pub(super) enum Source {
    Trace(Box<TraceReader<Box<dyn Read>>>, Damage),
    Log(Box<LogReader<Box<dyn Read>>>, Damage),
    Traffic(Box<Traffic>),
}

impl std::fmt::Debug for Once {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Once").field("begun", &self.begun.len()).finish_non_exhaustive()
    }
}

impl Input {
    pub(super) fn new(options: &Simulate, trace: Option<&Path>) -> anyhow::Result<Self> {
        let path = match (trace, &*options.traffic) {
            (None, [_, ..]) => return Ok(Self::Traffic),
            (Some(_), [_, ..]) => bail!("traffic is either made up or read from a file"),
            (None, []) => bail!("there is no traffic; a file, `-` or `--traffic` would do"),
            (Some(path), []) => path,
        };
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
        let source = match self {
            Self::File(path) => source(Box::new(open(path)?), options),
            Self::Stream(once) => {
                once.rest.by_ref().take(AHEAD).read_to_end(&mut once.begun)?;
                source(Box::new(Cursor::new(once.begun.clone())), options)
            }
            Self::Traffic => Ok(traffic(options)),
        };
        let mut counts = KeyCounts::default();
        // What is wrong with it is told when it is decided.
        if let Ok(mut source) = source {
            while let Ok(batch) = source.next_batch() {
                if batch.is_empty() {
                    break;
                }
                batch.events().for_each(|event| counts.count(event.key, false));
            }
        }
        Ok(counts.busiest(1).0.first().map(|busiest| busiest.key.to_vec()))
    }

    pub(super) fn open(self, options: &Simulate) -> anyhow::Result<Source> {
        match self {
            Self::File(path) => source(Box::new(Watched::new(open(&path)?)), options),
            Self::Stream(once) => {
                source(Box::new(Cursor::new(once.begun).chain(once.rest)), options)
            }
            Self::Traffic => Ok(traffic(options)),
        }
    }
}

impl Source {
    /// The next events; none at the end.
    pub(super) fn next_batch(&mut self) -> anyhow::Result<Batch<'_>> {
        match self {
            Self::Trace(reader, damage) => {
                let batch = reader.next_batch();
                match damage.get() {
                    // Of a trace all is meant; and its last line may be broken for that reason alone.
                    Some(damage) if batch.as_ref().map_or(true, |it| it.is_empty()) => {
                        bail!("the trace cannot be read: {damage}")
                    }
                    _ => Ok(batch?),
                }
            }
            Self::Log(reader, _) => reader.next_batch().context("the log cannot be read"),
            Self::Traffic(traffic) => Ok(traffic.next_batch()),
        }
    }

    /// Behind the last event: tells what was left out or moved.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        let Self::Log(reader, damage) = self else { return Ok(()) };
        let (broken, late) = (reader.broken(), reader.late());
        let first = || broken.first.iter().map(|(line, fault)| format!("line {line}: {fault}"));
        if broken.count > 0 && reader.events() == 0 {
            let first: Vec<String> = first().collect();
            bail!("no line is of that format; {}", first.join("; "));
        }
        if broken.count > 0 {
            let all = broken.count + reader.events();
            eprintln!("{} of {all} lines are broken and left out:", broken.count);
            first().for_each(|line| eprintln!("  {line}"));
            if broken.count > u64::try_from(broken.first.len()).unwrap_or(u64::MAX) {
                eprintln!("  ...");
            }
        }
        if let Some(damage) = damage.get() {
            eprintln!("the log ends early ({damage}): what stands before is what was decided on");
        }
        if late.count > 0 {
            eprintln!(
                "{} lines came too late to be put in order and were taken later, by {} at the most; \
                 `--disorder` sets how far apart lines may be",
                late.count,
                words(late.most)
            );
        }
        Ok(())
    }
}

/// Finds out what the bytes are, and reads them as that.
fn source(bytes: Box<dyn Read>, options: &Simulate) -> anyhow::Result<Source> {
    let (bytes, start) = peek(bytes, 2, |it| it.len() >= 2)?;
    let damage = Damage::default();
    let bytes: Box<dyn Read> = if start.starts_with(&GZIP) {
        Box::new(Unzip::new(bytes, Damage::clone(&damage)))
    } else {
        bytes
    };
    let (bytes, start) = match options.log {
        Some(_) => (bytes, Vec::new()),
        None => peek(bytes, BEGINNING, is_enough)?,
    };
    let Some(format) = options.log.clone().or_else(|| guess(&start)) else {
        let trace = TraceReader::new(bytes);
        let trace = if is_trace(&start) || start.is_empty() {
            trace?
        } else {
            trace.context(
                "no access log that is known by its looks, `--log` tells others; no trace",
            )?
        };
        return Ok(Source::Trace(Box::new(trace), damage));
    };
    ensure!(!options.policies.is_empty(), "a log names no policy; `--policy gcra:30/60s` would do");
    let time_field = options.time_field.as_deref();
    let reader = LogReader::new(bytes, &format, &options.key, time_field, options.disorder)?;
    Ok(Source::Log(Box::new(reader), damage))
}

/// Reads the beginning, up to `most` bytes or until `enough`, and puts it back.
fn peek(
    mut bytes: Box<dyn Read>,
    most: u64,
    enough: impl Fn(&[u8]) -> bool,
) -> io::Result<(Box<dyn Read>, Vec<u8>)> {
    let mut start = Vec::new();
    let mut ahead = bytes.by_ref().take(most);
    let mut piece = [0; 4096];
    while !enough(&start) {
        match ahead.read(&mut piece)? {
            0 => break,
            read => start.extend_from_slice(&piece[..read]),
        }
    }
    Ok((Box::new(Cursor::new(start.clone()).chain(bytes)), start))
}

/// Whether what has been read tells what it is.
fn is_enough(start: &[u8]) -> bool {
    let lines = start.iter().filter(|byte| **byte == b'\n').count();
    lines >= LINES || (lines > 0 && is_trace(start))
}

fn lines(start: &[u8]) -> impl Iterator<Item = &[u8]> {
    start.split(|byte| *byte == b'\n').take(LINES)
}

fn is_trace(start: &[u8]) -> bool {
    lines(start).next().is_some_and(|line| line.windows(TRACE.len()).any(|part| part == TRACE))
}

/// What the first line looks like that looks like something: a log that was cut in the middle
/// begins with a line that is broken.
fn guess(start: &[u8]) -> Option<LogFormat> {
    if is_trace(start) {
        return None;
    }
    lines(start).find_map(|line| {
        let name = if line.starts_with(b"{") { "json" } else { "common" };
        let format: LogFormat = name.parse().ok()?;
        (name == "json" || format.fits(line)).then_some(format)
    })
}

fn traffic(options: &Simulate) -> Source {
    let Simulate { traffic, keys, seed, length, .. } = options;
    let start = Timestamp::saturating_from_micros(START);
    Source::Traffic(Box::new(Traffic::new(traffic, *keys, *seed, start, *length)))
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}
