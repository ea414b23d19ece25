//! Checks for any bytes that are read as a trace. The fuzz target `trace` and a test run them.

use std::io::Read;

use sluicegate_simulator::{Rows, Simulation, TraceError, TraceReader};

use crate::pieces::Pieces;

/// Reads `data` as a trace, in one piece and cut into small ones, and decides it, event by event
/// and in batches.
///
/// # Panics
/// If two ways disagree, or a row is missing.
pub(crate) fn check_trace(data: &[u8]) {
    let whole = read(data);
    assert_eq!(whole, read(Pieces::new(data)), "the events depend on the cut");
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
        loop {
            let batch = reader.next_batch()?;
            if batch.is_empty() {
                return Ok(());
            }
            for event in batch.events() {
                let decision = simulation.decide(&event)?;
                rows.write(event.time, event.key, event.cost, &decision)?;
                events += 1;
            }
        }
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
