//! Traffic, run through the algorithms in virtual time.
//!
//! [`TraceReader`] reads a trace in CSV; a [`Simulation`] decides each as a store
//! does; [`Rows`] writes the decisions as CSV, and a [`Report`] has their totals. Each
//! can be used without the others. Nothing here reads a clock, opens a file or prints.
//!
//! ```
//! use sluicegate_simulator::{Rows, Simulation, TraceReader};
//!
//! let trace = "t_us,key,cost\n0,alice,1\n250000,alice,1\n";
//! let mut reader = TraceReader::new(trace.as_bytes())?;
//! let mut simulation = Simulation::new(Some("gcra:1/1s".parse()?));
//! let mut rows = Rows::new(Vec::new());
//! loop {
//!     let batch = reader.next_batch()?;
//!     if batch.is_empty() {
//!         break;
//!     }
//!     for event in batch.events() {
//!         let decision = simulation.decide(&event)?;
//!         rows.write(event.time, event.key, event.cost, &decision)?;
//!     }
//! }
//! let rows = String::from_utf8(rows.finish()?)?;
//! assert!(rows.ends_with("250000,alice,1,0,1,0,750000,750000,0\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod bounds;
mod error;
mod event;
mod fleet;
mod heavy_hitters;
mod kind;
mod limits;
mod log;
mod recommend;
mod records;
mod report;
mod rows;
mod run;
mod simple_line;
mod trace;
mod track;
mod traffic;
mod windows;

pub use batch::Batch;
pub use bounds::Bound;
pub use error::{Fault, Quoted, TraceError};
pub use event::Event;
pub use fleet::{Fleet, FleetTotals, MAX_PROCESSES};
pub use heavy_hitters::{BusyKey, HeavyHitters, MAX_BUSY_KEYS};
pub use kind::Kind;
pub use limits::MAX_LINE;
pub use log::{
    Broken, DurationField, KeyTemplate, LateLines, LogError, LogFault, LogFormat, LogReader,
};
pub use recommend::{
    ATTACK_REQUESTS, Attacker, DeniedKey, EVEN_GAPS, EVEN_SHARE, Evidence, LONG, LONG_PAUSE,
    LONG_PER_HOUR, MIN_KEYS, MIN_LENGTH, Named, Outcome, PAUSE, Percentiles, Point, Recommendation,
    Survey, VOLUME_FACTOR,
};
pub use report::{Report, Totals, periods};
pub use rows::{HEADER, Rows};
pub use run::Simulation;
pub use trace::TraceReader;
pub use track::{Bin, Bounds, CountedWindow, Excess, Level, Levels, Spans, TimeSeries};
pub use traffic::{KeySpec, Steady, Traffic, TrafficError, TrafficSpec};
pub use windows::WindowPeak;
