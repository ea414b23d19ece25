//! Sources of traffic.

use std::{
    fs::{File, FileType},
    io::{self, Cursor, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{anyhow, bail, ensure};
use sluicegate_commands::plain_error;
use sluicegate_core::{Policy, Timestamp};
use sluicegate_simulator::{
    Batch, DurationField, HeavyHitters, KeyTemplate, LogError, LogFault, LogFormat, LogReader,
    Quoted, TraceReader, Traffic, periods,
};

use super::{
    options::{DEFAULT_KEY, Simulate},
    progress::Watched,
    unzip::{Damage, Unzip},
};
use crate::{output::report, table::duration_text};

/// Bytes of standard input that are read before the replay.
const STDIN_BYTES: u64 = 16 << 20;
/// Maximum number of lines, and of bytes, that are read to detect a format.
const SAMPLE_LINES: usize = 32;
const SAMPLE_BYTES: u64 = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// First bytes of a gzip file.
const GZIP: &[u8] = &[0x1f, 0x8b];
/// First bytes of other kinds of files, with their kinds, and what converts them.
const OTHER_KINDS: [(&[u8], &str, &str); 10] = [
    (b"BZh", "compressed by bzip2", "bzcat FILE"),
    (b"\xfd7zXZ\0", "compressed by xz", "xzcat FILE"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat FILE"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4cat FILE"),
    (b"\x1f\x9d", "compressed by compress", "zcat FILE"),
    (b"LZIP", "compressed by lzip", "lzip -dc FILE"),
    (b"PK\x03\x04", "a zip archive", "unzip -p FILE"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x -so FILE"),
    (b"\xff\xfe", "in UTF-16", "iconv -f utf-16 -t utf-8 FILE"),
    (b"\xfe\xff", "in UTF-16", "iconv -f utf-16 -t utf-8 FILE"),
];
/// Where the header of a tar archive has its mark, and the mark.
const TAR: (usize, &[u8]) = (257, b"ustar");
/// Start of synthetic traffic: a round minute, as in the scenarios.
const START: u64 = 1_700_000_040_000_000;

/// The input, before it is opened.
#[derive(Debug)]
pub(super) enum Input {
    /// A file that can be read twice.
    File(PathBuf),
    /// Input that can be read only once.
    Stream(ReplayedInput),
    /// Synthetic traffic.
    Traffic,
}

/// Input that can be read only once, with the bytes that were read already.
pub(super) struct ReplayedInput {
    start_bytes: Vec<u8>,
    rest: Box<dyn Read>,
}

/// Events in order.
pub(super) enum Source {
    Trace(Box<TraceReader<Box<dyn Read>>>, Damage),
    Log(Box<LogReader<Box<dyn Read>>>, Damage),
    Traffic(Box<Traffic>),
}

impl std::fmt::Debug for ReplayedInput {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ReplayedInput")
            .field("start_bytes", &self.start_bytes.len())
            .finish_non_exhaustive()
    }
}

impl Input {
    pub(super) fn new(options: &Simulate, trace: Option<&Path>) -> anyhow::Result<Self> {
        let path = match (trace, &*options.traffic) {
            (None, [_, ..]) => return Ok(Self::Traffic),
            (Some(_), [_, ..]) => {
                bail!("invalid FILE together with --traffic: expected one of them")
            }
            (None, []) => bail!("missing FILE: expected a trace, an access log, `-` or --traffic"),
            (Some(path), []) => path,
        };
        if path.as_os_str() == "-" {
            let rest: Box<dyn Read> = Box::new(io::stdin().lock());
            return Ok(Self::Stream(ReplayedInput { start_bytes: Vec::new(), rest }));
        }
        let file = open(path)?;
        let kind = file.metadata().map(|data| data.file_type());
        if kind.as_ref().is_ok_and(FileType::is_file) {
            return Ok(Self::File(path.to_owned()));
        }
        if kind.is_ok_and(|kind| kind.is_dir()) {
            let path = path.display();
            bail!("invalid FILE `{path}`: expected a trace or an access log, found a folder");
        }
        Ok(Self::Stream(ReplayedInput { start_bytes: Vec::new(), rest: Box::new(file) }))
    }

    /// The key that charts follow: the one that was named, else the one with the most requests, or with the most events
    /// if none is a request. For a source that can be read only once, the beginning decides.
    pub(super) fn key_to_follow(&mut self, options: &Simulate) -> anyhow::Result<Option<Vec<u8>>> {
        if let Some(key) = &options.key_plot {
            return Ok(Some(key.as_bytes().to_vec()));
        }
        let source = match self {
            Self::File(path) => source(Box::new(open(path)?), options),
            Self::Stream(once) => {
                let start = once.rest.by_ref().take(STDIN_BYTES).read_to_end(&mut once.start_bytes);
                start.map_err(|error| unreadable(&error))?;
                source(Box::new(Cursor::new(once.start_bytes.clone())), options)
            }
            Self::Traffic => Ok(traffic(options)),
        };
        let (mut requests, mut others) = (HeavyHitters::default(), HeavyHitters::default());
        // Errors are reported when the events are decided.
        if let Ok(mut source) = source {
            while let Ok(batch) = source.next_batch() {
                if batch.is_empty() {
                    break;
                }
                for event in batch.events() {
                    let counts = if event.kind.is_request() { &mut requests } else { &mut others };
                    counts.count(event.key, false);
                }
            }
        }
        let busiest = |counts: &HeavyHitters| Some(counts.busiest(1).0.first()?.key.to_vec());
        Ok(busiest(&requests).or_else(|| busiest(&others)))
    }

    pub(super) fn open(self, options: &Simulate) -> anyhow::Result<Source> {
        match self {
            Self::File(path) => source(Box::new(Watched::new(open(&path)?)), options),
            Self::Stream(once) => {
                source(Box::new(Cursor::new(once.start_bytes).chain(once.rest)), options)
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
                    // A trace must be complete; its last line may be broken because of the damage.
                    Some(damage) if batch.as_ref().map_or(true, |it| it.is_empty()) => {
                        bail!("cannot read the trace: {damage}")
                    }
                    _ => Ok(batch?),
                }
            }
            Self::Log(reader, _) => reader
                .next_batch()
                .map_err(|error| anyhow!("cannot read the log: {}", plain_error(&error))),
            Self::Traffic(traffic) => Ok(traffic.next_batch()),
        }
    }

    /// After the last event: warns about lines that were left out or moved.
    pub(super) fn finish(&self, options: &Simulate) -> anyhow::Result<()> {
        let Self::Log(reader, damage) = self else { return Ok(()) };
        let (broken, late) = (reader.broken(), reader.late());
        let first = || broken.first.iter().map(|(line, fault)| format!("line {line}: {fault}"));
        if broken.count > 0 && reader.events() == 0 {
            if broken.first.iter().any(|(_, fault)| *fault == LogFault::NoDuration) {
                return Err(no_duration(options));
            }
            let skipped =
                |fault: &LogFault| broken.reasons.get(fault.reason()).copied().unwrap_or(0);
            if skipped(&LogFault::NoTime) == broken.count {
                bail!(
                    "invalid log: no line has a time under one of its usual names; use --time-field for another \
                     field"
                );
            }
            if skipped(&LogFault::NoClient) + skipped(&LogFault::NoRequest) < broken.count {
                let first: Vec<String> = first().collect();
                bail!("invalid log: no line has the expected format; {}", first.join("; "));
            }
        }
        if broken.count == 0 && reader.events() == 0 {
            bail!("invalid log: expected at least one request");
        }
        let is_default = Ok(&options.key) == DEFAULT_KEY.parse().as_ref();
        if let Some(field) = reader.missing_fields().next() {
            if is_default {
                return Err(no_client());
            }
            bail!(
                "invalid --key: no line has the field `{field}`; use a field of the log, as `{{field}}`"
            );
        }
        if reader.events() == 0 {
            if is_default {
                return Err(no_client());
            }
            bail!(
                "invalid --key: no line has a client; use another field of the log, as `{{field}}`"
            );
        }
        if let Some(key) = options.key.constant().filter(|key| *key != "all") {
            report(format_args!(
                "warning: --key `{key}` has no field in braces: all lines have the same key"
            ));
        }
        if broken.count > 0 {
            let all = broken.count + reader.events();
            report(format_args!("warning: skipped {} of {all} lines:", broken.count));
            first().for_each(|line| report(format_args!("  {line}")));
            if broken.count > u64::try_from(broken.first.len()).unwrap_or(u64::MAX) {
                report("  ...");
            }
            if let [_, _, ..] = &*broken.reasons.iter().collect::<Vec<_>>() {
                let reasons =
                    broken.reasons.iter().map(|(reason, count)| format!("{count} {reason}"));
                report(format_args!("  in all: {}", reasons.collect::<Vec<_>>().join(", ")));
            }
        }
        if let Some(damage) = damage.get() {
            report(format_args!("warning: the log is damaged ({damage}): read up to the damage"));
        }
        if late.count > 0 {
            let lines = if late.count == 1 { "line was" } else { "lines were" };
            report(format_args!(
                "warning: {} {lines} too late to be sorted, and moved by up to {}; increase --disorder",
                late.count,
                duration_text(late.most)
            ));
        }
        Ok(())
    }
}

/// No client, where no key is given.
fn no_client() -> anyhow::Error {
    anyhow!(
        "invalid log: no line has a client under one of its usual names; use --key for another field, as \
         `--key '{{field}}'`"
    )
}

fn unreadable(error: &io::Error) -> anyhow::Error {
    anyhow!("cannot read the traffic: {}", plain_error(error))
}

/// Detects the format of the input, and opens it.
fn source(bytes: Box<dyn Read>, options: &Simulate) -> anyhow::Result<Source> {
    let unreadable = |error| unreadable(&error);
    let (bytes, start) = peek(bytes, 2, |it| it.len() >= 2).map_err(unreadable)?;
    let damage = Damage::default();
    let bytes: Box<dyn Read> = if start.starts_with(GZIP) {
        Box::new(Unzip::new(bytes, Damage::clone(&damage)))
    } else {
        bytes
    };
    let (bytes, start) = peek(bytes, SAMPLE_BYTES, is_enough).map_err(unreadable)?;
    check_kind(&start)?;
    let log = options.log.as_ref();
    let Some(format) = log.map(|log| log.value.clone()).or_else(|| guess(&start)) else {
        ensure!(
            is_trace(&start),
            "unknown format: expected a trace with the header `t_us,key,cost`, or an access log; use --log \
             for a log of another format; the first line is `{}`",
            Quoted::from(lines(&start).next().unwrap_or_default())
        );
        let logs = ["--key", "--time-field", "--duration-field", "--disorder"];
        if let Some(given) = logs.into_iter().find(|it| options.is_given(it)) {
            bail!("invalid {given}: expected an access log; a trace has columns of its own");
        }
        return Ok(Source::Trace(Box::new(TraceReader::new(bytes)?), damage));
    };
    ensure!(
        !options.policies.is_empty(),
        "missing --policy: expected one such as `--policy gcra:30/60s` for an access log"
    );
    if let Some(text) = options.key.constant() {
        ensure!(
            !text.is_empty(),
            "invalid --key ``: expected a field in braces, such as `{{ip}}`, or a text"
        );
        ensure!(
            !KeyTemplate::is_field(text),
            "invalid --key `{text}`: expected a field in braces, such as `{{{text}}}`"
        );
    }
    let time_field = options.time_field.as_deref();
    let concurrency = options.concurrency();
    let duration_field = match (options.duration_field.as_deref(), concurrency) {
        (Some(name), _) => DurationField::Named(name),
        (None, Some(_)) => DurationField::Detected,
        (None, None) => DurationField::Ignored,
    };
    // A line is written when its request ends, which began as long ago as a hold may last.
    let longest = options.all_policies().filter(|it| it.counts_holds()).flat_map(periods).max();
    let disorder = options.disorder + longest.unwrap_or_default();
    let reader = LogReader::new(bytes, &format, &options.key, time_field, duration_field, disorder);
    if let (Err(LogError::Field { name, .. }), Some(log), None) = (&reader, log, time_field)
        && name == "time"
    {
        bail!(
            "invalid --log `{}`: expected a format with the time, such as `$time_local` or `%t`; use \
             --time-field for another field",
            log.text
        );
    }
    let reader = reader.map_err(|error| match (&error, duration_field, concurrency) {
        (LogError::Field { name, .. }, _, _) if time_field.unwrap_or("time") == name => {
            anyhow!("invalid --time-field: {error}")
        }
        (LogError::Field { name, .. }, DurationField::Named(field), _)
            if field.starts_with(name.as_str()) =>
        {
            anyhow!("invalid --duration-field: {error}")
        }
        (LogError::Field { name, has }, DurationField::Detected, Some(policy))
            if name == "duration" =>
        {
            missing_duration(policy, &format!("the fields are {has}"))
        }
        _ => anyhow!("invalid --key: {error}"),
    })?;
    Ok(Source::Log(Box::new(reader), damage))
}

/// The error of a log in which no line has a duration.
fn no_duration(options: &Simulate) -> anyhow::Error {
    match (&options.duration_field, options.concurrency()) {
        (None, Some(policy)) => missing_duration(policy, "no line has one"),
        (field, _) => anyhow!(
            "invalid --duration-field: no line has the field `{}`; use a field of the log",
            field.as_deref().unwrap_or("duration")
        ),
    }
}

fn missing_duration(policy: &Policy, reason: &str) -> anyhow::Error {
    anyhow!(
        "missing duration of the requests, which `{policy}` needs: expected a log with `$request_time` \
         (nginx), `%D` (Apache) or `duration` (Envoy, Caddy), but {reason}; use --duration-field for another \
         field"
    )
}

/// Rejects a file without content, and one that has to be converted.
fn check_kind(start: &[u8]) -> anyhow::Result<()> {
    let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
    ensure!(!text.trim_ascii().is_empty(), "the file is empty: expected a trace or an access log");
    if let Some((_, kind, tool)) = OTHER_KINDS.iter().find(|(first, ..)| start.starts_with(first)) {
        bail!("invalid FILE: it is {kind}; use `{tool} | sluicegate simulate -`");
    }
    if start.get(TAR.0..).is_some_and(|rest| rest.starts_with(TAR.1)) {
        bail!("invalid FILE: it is a tar archive; use `tar -xOf FILE | sluicegate simulate -`");
    }
    Ok(())
}

/// Reads up to `most` bytes, or until `enough`, and puts them back.
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

/// Whether `start` is enough to detect the format.
fn is_enough(start: &[u8]) -> bool {
    let lines = start.iter().filter(|byte| **byte == b'\n').count();
    lines >= SAMPLE_LINES || (lines > 0 && is_trace(start))
}

fn lines(start: &[u8]) -> impl Iterator<Item = &[u8]> {
    start.split(|byte| *byte == b'\n').take(SAMPLE_LINES)
}

/// Whether the first line is the header of a trace, which has a column of time.
fn is_trace(start: &[u8]) -> bool {
    let start = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
    let mut columns = lines(start).next().unwrap_or_default().split(|byte| *byte == b',');
    columns.any(|column| matches!(column.trim_ascii(), b"t_us" | b"\"t_us\""))
}

fn guess(start: &[u8]) -> Option<LogFormat> {
    let start = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
    if is_trace(start) { None } else { LogFormat::detect(lines(start)) }
}

fn traffic(options: &Simulate) -> Source {
    let Simulate { traffic, keys, seed, length, .. } = options;
    let specs: Vec<_> = traffic.iter().map(|it| it.value).collect();
    let start = Timestamp::saturating_from_micros(START);
    Source::Traffic(Box::new(Traffic::new(&specs, *keys, *seed, start, *length)))
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path);
    file.map_err(|error| anyhow!("cannot open {}: {}", path.display(), plain_error(&error)))
}
