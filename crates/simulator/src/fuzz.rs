//! What must hold for any bytes whatever: one function, run by the fuzzer on what it invents and
//! by an ordinary test on the committed corpus.

use std::{io::Read, time::Duration};

use crate::{KeyTemplate, LogFormat, LogReader, Rows, Simulation, TraceError, TraceReader};

/// Reads `data` as a trace, in one piece and cut into small ones, event by event and in batches,
/// and decides it.
///
/// # Panics
/// If two ways of reading disagree, or a row is missing.
pub fn check_trace(data: &[u8]) {
    let whole = read(data);
    assert_eq!(whole, read(Pieces { data, at: 0 }), "what is read depends on the cut");
    assert_eq!(whole, read_batches(data), "a batch is not its events");
    let rows = whole.0.iter().filter(|byte| **byte == b'\n').count();
    assert!(rows > whole.1, "{} events, {rows} lines", whole.1);
}

/// The rows, the number of events, and the error that ended it.
type Outcome = (Vec<u8>, usize, Option<String>);

fn read(source: impl Read) -> Outcome {
    let (mut simulation, mut rows, mut events) = start();
    let run = || -> Result<(), TraceError> {
        let mut reader = TraceReader::new(source)?;
        while let Some(event) = reader.next_event()? {
            let decision = simulation.decide(&event)?;
            rows.write(event.time, event.key, event.cost, &decision)?;
            events += 1;
        }
        Ok(())
    };
    let error = run().err().map(|error| error.to_string());
    (rows.finish().unwrap_or_default(), events, error)
}

fn read_batches(source: impl Read) -> Outcome {
    let (mut simulation, mut rows, mut events) = start();
    let run = || -> Result<(), TraceError> {
        let mut reader = TraceReader::new(source)?;
        loop {
            let batch = reader.next_batch()?;
            if batch.is_empty() {
                return Ok(());
            }
            simulation.decide_batch(batch, |event, decision| {
                rows.write(event.time, event.key, event.cost, decision)?;
                events += 1;
                Ok::<_, TraceError>(())
            })?;
        }
    };
    let error = run().err().map(|error| error.to_string());
    (rows.finish().unwrap_or_default(), events, error)
}

fn start() -> (Simulation, Rows<Vec<u8>>, usize) {
    let policy = "gcra:3/1s:burst=2,sliding-log:5/2s".parse().ok();
    (Simulation::new(policy), Rows::new(Vec::new()), 0)
}

/// A source that gives one byte at a time if it is short, else as many as its own bytes say, so
/// that the fuzzer chooses the cuts.
struct Pieces<'a> {
    data: &'a [u8],
    at: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.data[self.at..];
        let Some(first) = rest.first() else { return Ok(0) };
        let wanted = if self.data.len() <= 256 { 1 } else { 1 + usize::from(*first) };
        let length = wanted.min(rest.len()).min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        Ok(length)
    }
}

/// Reads `data` as an access log: its first line says of which format, the rest are lines.
///
/// # Panics
/// If what is read depends on how it is cut, a line is lost, or time runs back.
pub fn check_log(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (format, lines) = (&data[..end], data.get(end + 1..).unwrap_or(&[]));
    let Ok(format) = String::from_utf8_lossy(format).parse::<LogFormat>() else { return };
    let Some(whole) = read_log(&format, lines) else { return };
    let cut = read_log(&format, Pieces { data: lines, at: 0 });
    assert_eq!(Some(&whole), cut.as_ref(), "what is read depends on the cut");
    let (times, broken) = whole;
    assert!(times.is_sorted_by_key(|(time, _)| *time), "time runs back");
    let given = lines.split(|byte| *byte == b'\n');
    let given = given.filter(|line| !line.strip_suffix(b"\r").unwrap_or(line).is_empty()).count();
    let read = times.len() + usize::try_from(broken).unwrap_or(usize::MAX);
    assert_eq!(read, given, "a line is lost");
}

/// Times and keys, and how many lines are broken.
type Logged = (Vec<(u64, Vec<u8>)>, u64);

fn read_log(format: &LogFormat, source: impl Read) -> Option<Logged> {
    let key: KeyTemplate = "{ip}:{path}".parse().ok()?;
    let mut reader = LogReader::new(source, format, &key, None, Duration::from_secs(5)).ok()?;
    let mut events = Vec::new();
    loop {
        let batch = reader.next_batch().ok()?;
        if batch.is_empty() {
            return Some((events, reader.broken().count));
        }
        events.extend(batch.events().map(|it| (it.time.as_micros(), it.key.to_vec())));
    }
}
