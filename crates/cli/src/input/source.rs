//! Sources of traffic, and the progress of reading a file: a bar on standard error, if that is a terminal.

use std::{
    fs::{File, FileType},
    io::{self, Cursor, IsTerminal, Read},
    path::{Path, PathBuf},
};

use anyhow::{anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use sluicegate_commands::plain_error;
use sluicegate_core::{Policy, Timestamp};
use sluicegate_simulator::{
    Batch, DurationField, HeavyHitters, KeyTemplate, LogError, LogFault, LogFormat, LogReader,
    Quoted, TraceReader, Traffic,
};

use super::{
    options::{DEFAULT_KEY, InputOptions, Reading},
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
const OTHER_KINDS: [(&[u8], &str, &str); 17] = [
    (b"BZh", "compressed by bzip2", "bzcat"),
    (b"\xfd7zXZ\0", "compressed by xz", "xzcat"),
    (b"\x5d\0\0", "compressed by lzma", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat"),
    // The first frame of pzstd.
    (b"\x50\x2a\x4d\x18", "compressed by zstd", "zstdcat"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4cat"),
    (b"\x1f\x9d", "compressed by compress", "zcat"),
    (GZIP, "compressed by gzip twice", "zcat"),
    (b"\x89LZO", "compressed by lzop", "lzop -dc"),
    (b"LZIP", "compressed by lzip", "lzip -dc"),
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x -so"),
    (b"Rar!\x1a\x07", "a rar archive", "unrar p -inul"),
    (b"\xff\xfe\0\0", "in UTF-32", "iconv -f utf-32 -t utf-8"),
    (b"\0\0\xfe\xff", "in UTF-32", "iconv -f utf-32 -t utf-8"),
    (b"\xff\xfe", "in UTF-16", "iconv -f utf-16 -t utf-8"),
    (b"\xfe\xff", "in UTF-16", "iconv -f utf-16 -t utf-8"),
];
/// Start of synthetic traffic: a round minute, as in the scenarios.
const START: u64 = 1_700_000_040_000_000;

/// The input, before it is opened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A file that can be read twice.
    File(PathBuf),
    /// Input that can be read only once.
    Stream(ReplayedInput),
    /// Synthetic traffic.
    Traffic,
}

/// Input that can be read only once, with the bytes that were read already.
pub(crate) struct ReplayedInput {
    start_bytes: Vec<u8>,
    rest: Box<dyn Read>,
}

/// Events in order.
pub(crate) enum Source {
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
    pub(crate) fn new(options: &InputOptions, trace: Option<&Path>) -> anyhow::Result<Self> {
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

    /// The key with the most requests, or with the most events if none is a request. For a source that can be read
    /// only once, the beginning decides.
    pub(crate) fn busiest_key(&mut self, reading: Reading<'_>) -> anyhow::Result<Option<Vec<u8>>> {
        let source = match self {
            Self::File(path) => source(Box::new(open(path)?), reading),
            Self::Stream(once) => {
                let start = once.rest.by_ref().take(STDIN_BYTES).read_to_end(&mut once.start_bytes);
                start.map_err(|error| unreadable(&error))?;
                source(Box::new(Cursor::new(once.start_bytes.clone())), reading)
            }
            Self::Traffic => Ok(traffic(reading.options)),
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

    pub(crate) fn open(self, reading: Reading<'_>) -> anyhow::Result<Source> {
        match self {
            Self::File(path) => source(Box::new(Watched::new(open(&path)?)), reading),
            Self::Stream(once) => {
                source(Box::new(Cursor::new(once.start_bytes).chain(once.rest)), reading)
            }
            Self::Traffic => Ok(traffic(reading.options)),
        }
    }
}

impl Source {
    /// The next events; none at the end.
    pub(crate) fn next_batch(&mut self) -> anyhow::Result<Batch<'_>> {
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
    pub(crate) fn finish(&self, reading: Reading<'_>) -> anyhow::Result<()> {
        let options = reading.options;
        let Self::Log(reader, damage) = self else { return Ok(()) };
        let (broken, late) = (reader.broken(), reader.late());
        let first = || broken.first.iter().map(|(line, fault)| format!("line {line}: {fault}"));
        if broken.count > 0 && reader.events() == 0 {
            if broken.first.iter().any(|(_, fault)| *fault == LogFault::NoDuration) {
                return Err(no_duration(reading));
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
fn source(bytes: Box<dyn Read>, reading: Reading<'_>) -> anyhow::Result<Source> {
    let Reading { options, durations, .. } = reading;
    let unreadable = |error| unreadable(&error);
    let (bytes, start) = peek(bytes, 2, |it| it.len() >= 2).map_err(unreadable)?;
    let damage = Damage::default();
    let is_zipped = start.starts_with(GZIP);
    let bytes: Box<dyn Read> =
        if is_zipped { Box::new(Unzip::new(bytes, Damage::clone(&damage))) } else { bytes };
    let (bytes, start) = peek(bytes, SAMPLE_BYTES, is_enough).map_err(unreadable)?;
    check_kind(&start, is_zipped, reading.command)?;
    let (log, time_field) = (options.log.as_ref(), options.time_field.as_deref());
    let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&start);
    let format = match log {
        Some(log) => Some(log.value.clone().inside(lines(text), &options.key, time_field)),
        None if is_trace(text) => None,
        None => LogFormat::detect(lines(text)),
    };
    let Some(format) = format else {
        ensure!(
            is_trace(&start),
            "unknown format: expected a trace with the header `t_us,key,cost`, or an access log; use --log \
             for a log of another format; the first line is `{}`",
            Quoted::from(lines(&start).next().unwrap_or_default())
        );
        let is_given = |it: &&str| match *it {
            "--duration-field" => durations.field.is_some(),
            other => options.is_given(other),
        };
        let logs = ["--key", "--time-field", "--duration-field", "--disorder"];
        if let Some(given) = logs.into_iter().find(is_given) {
            bail!("invalid {given}: expected an access log; a trace has columns of its own");
        }
        return Ok(Source::Trace(Box::new(TraceReader::new(bytes)?), damage));
    };
    ensure!(
        !reading.lacks_policy,
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
    let duration_field = match (durations.field, durations.policy) {
        (Some(name), _) => DurationField::Named(name),
        (None, Some(_)) => DurationField::Detected,
        (None, None) => DurationField::Ignored,
    };
    let disorder = options.disorder + durations.longest;
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
    let reader = reader.map_err(|error| match (&error, duration_field, durations.policy) {
        (LogError::Field { name, .. }, _, _) if time_field.unwrap_or("time") == name => {
            anyhow!("invalid --time-field: {error}")
        }
        (LogError::Unit(_), ..) => anyhow!("invalid --duration-field: {error}"),
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
fn no_duration(reading: Reading<'_>) -> anyhow::Error {
    match (reading.durations.field, reading.durations.policy) {
        (None, Some(policy)) => missing_duration(policy, "no line has one"),
        (field, _) => anyhow!(
            "invalid --duration-field: no line has the field `{}`; use a field of the log",
            field.unwrap_or("duration")
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
fn check_kind(start: &[u8], is_zipped: bool, command: &str) -> anyhow::Result<()> {
    let text = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start);
    ensure!(!text.trim_ascii().is_empty(), "the file is empty: expected a trace or an access log");
    let known = OTHER_KINDS.iter().find(|(first, ..)| start.starts_with(first));
    let kind = known.map(|(_, kind, tool)| (*kind, *tool));
    let kind = kind.or_else(|| is_tar(start).then_some(("a tar archive", "tar -xOf")));
    if let Some((kind, tool)) = kind.or_else(|| utf16(start)) {
        let tool = match is_zipped {
            true => format!("zcat FILE | {tool} -"),
            false => format!("{tool} FILE"),
        };
        bail!("invalid FILE: it is {kind}; use `{tool} | sluicegate {command} -`");
    }
    let text = text.trim_ascii();
    let returns = text.windows(2).filter(|it| it[0] == b'\r' && !matches!(it[1], b'\r' | b'\n'));
    let cat = if is_zipped { "zcat" } else { "cat" };
    ensure!(
        returns.count() <= text.iter().filter(|byte| **byte == b'\n').count(),
        "invalid FILE: its lines end in a carriage return alone; use \
         `{cat} FILE | tr '\\r' '\\n' | sluicegate {command} -`"
    );
    Ok(())
}

/// Whether a file begins with the header of a tar archive, of any version: it has the sum of its own bytes, in which
/// those of the sum are spaces.
fn is_tar(start: &[u8]) -> bool {
    let Some(header) = start.get(..512) else { return false };
    let (before, rest) = header.split_at(148);
    let (sum, after) = rest.split_at(8);
    let given = str::from_utf8(sum).map(|sum| sum.trim_matches(['\0', ' '])).unwrap_or_default();
    let bytes = before.iter().chain(after).map(|byte| u32::from(*byte)).sum::<u32>();
    u32::from_str_radix(given, 8) == Ok(bytes + 8 * u32::from(b' '))
}

/// UTF-16 without a mark: of each of the first characters, one byte is zero.
fn utf16(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let zeros = |first: usize| {
        start.iter().skip(first).step_by(2).take(8).filter(|byte| **byte == 0).count()
    };
    match (zeros(0), zeros(1)) {
        (0, 8) => Some(("in UTF-16", "iconv -f utf-16le -t utf-8")),
        (8, 0) => Some(("in UTF-16", "iconv -f utf-16be -t utf-8")),
        _ => None,
    }
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

fn traffic(options: &InputOptions) -> Source {
    let InputOptions { traffic, keys, seed, length, .. } = options;
    let specs: Vec<_> = traffic.iter().map(|it| it.value).collect();
    let start = Timestamp::saturating_from_micros(START);
    Source::Traffic(Box::new(Traffic::new(&specs, *keys, *seed, start, *length)))
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = File::open(path);
    file.map_err(|error| anyhow!("cannot open {}: {}", path.display(), plain_error(&error)))
}

/// Smaller files are read before a bar can be seen.
const WORTH_A_BAR: u64 = 32 << 20;

/// A file with a bar that moves as it is read.
#[derive(Debug)]
pub(super) struct Watched {
    file: File,
    bar: Option<ProgressBar>,
}

impl Watched {
    pub(super) fn new(file: File) -> Self {
        let length = file.metadata().map_or(0, |data| data.len());
        let shown = length >= WORTH_A_BAR && io::stderr().is_terminal();
        let bar = shown.then(|| ProgressBar::new(length));
        let style = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template(style)) {
            bar.set_style(style);
        }
        Self { file, bar }
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        if let Some(bar) = &self.bar {
            bar.inc(u64::try_from(read).unwrap_or(0));
            if read == 0 {
                bar.finish_and_clear();
            }
        }
        Ok(read)
    }
}
