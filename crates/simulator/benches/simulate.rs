//! How fast a trace is decided, beside how fast the `csv` crate only parses it.
//!
//! `cargo bench -p sluicegate-simulator --bench simulate [-- --quick]`

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    time::{Duration, Instant},
};

use csv::ByteRecord;
use sluicegate_simulator::{Rows, Simulation, TraceError, TraceReader};

const EVENTS: u64 = 2_000_000;
const KEYS: u64 = 10_000;
const ROUNDS: usize = 7;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let (events, rounds) = if quick { (20_000, 3) } else { (EVENTS, ROUNDS) };

    let path = std::env::temp_dir().join(format!("sluicegate-bench-{}.csv", std::process::id()));
    let bytes = generate(&path, events).expect("the temporary folder can be written to");
    println!("{events} events of {KEYS} keys, {bytes} bytes, {rounds} rounds");

    let (mut parsed, mut simulated) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        parsed.push(timed(|| assert_eq!(parse(&path), events)));
        simulated.push(timed(|| assert_eq!(simulate(&path), events)));
    }
    std::fs::remove_file(&path).expect("the trace is there until now");

    let parsed = report("csv crate, parse only", &mut parsed, events, bytes);
    let simulated = report("simulate to csv", &mut simulated, events, bytes);
    println!("ratio {:.2} (bar: at least 0.50)", parsed / simulated);
}

/// Parses the file into a reused record.
fn parse(path: &Path) -> u64 {
    let mut reader = csv::Reader::from_path(path).expect("the trace was just written");
    let mut record = ByteRecord::new();
    let mut events = 0;
    while reader.read_byte_record(&mut record).expect("the trace is CSV") {
        events += 1;
    }
    events
}

/// Reads, decides and writes the rows.
fn simulate(path: &Path) -> u64 {
    let file = File::open(path).expect("the trace was just written");
    let policy = "gcra:100/60s".parse().expect("a policy");
    let mut reader = TraceReader::new(file).expect("a header");
    let mut simulation = Simulation::new(Some(policy));
    let mut rows = Rows::new(io::sink());
    let mut events = 0;
    loop {
        let batch = reader.next_batch().expect("the trace has no broken line");
        if batch.is_empty() {
            rows.finish().expect("a sink takes all");
            return events;
        }
        let decided = simulation.decide_batch(batch, |event, decision| {
            events += 1;
            rows.write(event.time, event.key, event.cost, decision).map_err(TraceError::from)
        });
        decided.expect("the policy is given, and a sink takes all");
    }
}

/// Writes a trace of [`KEYS`] keys, some far busier than others, and returns its length.
fn generate(path: &Path, events: u64) -> io::Result<u64> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "t_us,key,cost")?;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) % bound
    };
    let mut time = 1_700_000_000_000_000;
    for _ in 0..events {
        time += next(200);
        let user = next(KEYS).min(next(KEYS)).min(next(KEYS));
        let cost = if next(10) == 0 { 1 + next(20) } else { 1 };
        writeln!(out, "{time},user:{user}:login,{cost}")?;
    }
    out.flush()?;
    drop(out);
    Ok(path.metadata()?.len())
}

#[expect(clippy::disallowed_methods, reason = "a benchmark is about the time it takes")]
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Prints the median and gives it back in seconds.
fn report(what: &str, times: &mut [Duration], events: u64, bytes: u64) -> f64 {
    times.sort_unstable();
    let median = times[times.len() / 2].as_secs_f64();
    let per = |count: u64| median / to_float(count);
    println!(
        "{what:24}{:8.1} ms{:8.1} ns an event{:8.0} MB/s",
        median * 1e3,
        per(events) * 1e9,
        1e-6 / per(bytes)
    );
    median
}

/// Counts here are far below 2^53.
fn to_float(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let float = count as f64;
    float
}
