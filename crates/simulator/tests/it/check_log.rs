//! What must hold for any bytes that are read as an access log. The fuzz target `log` runs it, and so does a test.

use std::{io::Read, time::Duration};

use sluicegate_simulator::{KeyTemplate, LogFormat, LogReader};

use crate::pieces::Pieces;

/// Reads `data` as an access log: its first line says of which format, the rest are lines.
///
/// # Panics
/// If what is read depends on how it is cut, a line is lost, or time runs back.
pub(crate) fn check_log(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (format, lines) = (&data[..end], data.get(end + 1..).unwrap_or(&[]));
    let Ok(format) = String::from_utf8_lossy(format).parse::<LogFormat>() else { return };
    let Some(whole) = read_log(&format, lines) else { return };
    let cut = read_log(&format, Pieces::new(lines));
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
