//! Checks for any bytes that are read as an access log. The fuzz target `log` and a test run them.

use std::{io::Read, time::Duration};

use sluicegate_simulator::{DurationField, KeyTemplate, Kind, LogFormat, LogReader};

use crate::pieces::Pieces;

/// Reads `data` as an access log: its first line gives the format, the rest are lines.
///
/// # Panics
/// If the events depend on how the bytes are cut, a line is lost, or time runs back.
pub(crate) fn check_log(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (format, lines) = (&data[..end], data.get(end + 1..).unwrap_or(&[]));
    let Ok(format) = String::from_utf8_lossy(format).parse::<LogFormat>() else { return };
    let is_w3c = &data[..end] == b"w3c";
    for duration in [DurationField::Ignored, DurationField::Detected] {
        check_lines(&format, duration, lines, is_w3c);
    }
}

fn check_lines(format: &LogFormat, duration: DurationField<'_>, lines: &[u8], is_w3c: bool) {
    let Some(whole) = read_log(format, duration, lines) else { return };
    let cut = read_log(format, duration, Pieces::new(lines));
    assert_eq!(Some(&whole), cut.as_ref(), "the events depend on the cut");
    let (events, broken) = whole;
    assert!(events.is_sorted_by_key(|(time, ..)| *time), "time runs back");
    let ends = events.iter().filter(|(_, kind, _)| *kind == Kind::End).count();
    let starts = events.len() - ends;
    assert!(ends == 0 || ends == starts, "a request has a start and an end");
    let lines = lines.strip_prefix(b"\xef\xbb\xbf").unwrap_or(lines);
    let given = lines.split(|byte| *byte == b'\n');
    let is_request = |line: &&[u8]| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // One with a carriage return inside may hide a request.
        let is_directive =
            is_w3c && line.starts_with(b"#") && !line.trim_ascii_end().contains(&b'\r');
        !(line.is_empty() || is_directive)
    };
    let given = given.filter(is_request).count();
    let read = starts + usize::try_from(broken).unwrap_or(usize::MAX);
    assert_eq!(read, given, "a line is lost");
}

/// Times, kinds and keys, and the number of broken lines.
type Logged = (Vec<(u64, Kind, Vec<u8>)>, u64);

fn read_log(format: &LogFormat, duration: DurationField<'_>, source: impl Read) -> Option<Logged> {
    let key: KeyTemplate = "{ip}:{path}".parse().ok()?;
    let disorder = Duration::from_secs(5);
    let mut reader = LogReader::new(source, format, &key, None, duration, disorder).ok()?;
    let mut events = Vec::new();
    loop {
        let batch = reader.next_batch().ok()?;
        if batch.is_empty() {
            return Some((events, reader.broken().count));
        }
        events.extend(batch.events().map(|it| (it.time.as_micros(), it.kind, it.key.to_vec())));
    }
}
