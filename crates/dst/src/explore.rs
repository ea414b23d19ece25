//! Runs many seeds, in one thread or in several. Each run has a thread of its own while it lasts.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use parking_lot::Mutex;
use sluicegate_core::marks;

use crate::{
    event_log::{Output, print_line},
    worlds::{AnyPlan, KINDS, from_seed},
};

/// One seed of every `TWICE` runs twice, and both runs must be equal. The kind of a plan depends on no multiple of it.
const TWICE: u64 = 13;

/// A run of so many seeds must reach each mark of production code.
const MANY: u64 = 10_000;

/// Which seeds are run, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// Minutes after which no more seeds are begun.
    pub(crate) minutes: u64,
    /// Threads that run seeds.
    pub(crate) jobs: usize,
    /// Whether a violation is shrunk to a script.
    pub(crate) shrinks: bool,
    /// Whether it is printed how often each mark of production code was reached.
    pub(crate) marks: bool,
    /// Whether plans of each kind are run, in the order of [`KINDS`].
    pub(crate) kinds: [bool; KINDS.len()],
}

/// All runs together.
#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    events: u64,
    /// Equal for equal seeds, in any order of the runs.
    hash: u64,
    /// Milliseconds of virtual time, and real time: of each kind.
    times: [(u64, Duration); KINDS.len()],
    /// The lowest seed with a violation, and the violation.
    violation: Option<(u64, String)>,
}

impl Totals {
    fn add(&mut self, seed: u64, ran: &SeedRun) {
        if let Some(violation) = &ran.violation
            && self.violation.as_ref().is_none_or(|it| seed < it.0)
        {
            self.violation = Some((seed, violation.clone()));
        }
        let (millis, took) = &mut self.times[ran.kind];
        (*millis, *took) = (*millis + ran.millis, *took + ran.took);
        self.seeds += 1;
        self.events += ran.events;
        let turns = u32::try_from(seed % 64).unwrap_or_default();
        self.hash = self.hash.wrapping_add(ran.hash.rotate_left(turns));
    }
}

/// A run of a seed.
struct SeedRun {
    /// The index of its kind.
    kind: usize,
    millis: u64,
    took: Duration,
    events: u64,
    hash: u64,
    violation: Option<String>,
}

/// Runs seeds until one violates something. Returns whether none did.
#[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
pub(crate) fn explore(seeds: Seeds) -> Result<bool> {
    let begin = Instant::now();
    let limit = Duration::from_secs(seeds.minutes.saturating_mul(60));
    let (next, ends) = (AtomicU64::new(seeds.first), AtomicBool::new(false));
    let totals = Mutex::new(Totals::default());
    let work = || {
        while !ends.load(Ordering::Relaxed) && begin.elapsed() < limit {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed - seeds.first >= seeds.count {
                break;
            }
            let plan = from_seed(seed);
            let kind = KINDS.iter().position(|it| *it == plan.kind()).unwrap_or_default();
            if !seeds.kinds[kind] {
                continue;
            }
            let ran = run_plan(seed, kind, &*plan);
            if ran.violation.is_some() {
                ends.store(true, Ordering::Relaxed);
            }
            totals.lock().add(seed, &ran);
        }
    };
    thread::scope(|scope| {
        for _ in 0..seeds.jobs {
            scope.spawn(work);
        }
    });
    let totals = totals.into_inner();
    if let Some((seed, violation)) = totals.violation {
        print_line(format_args!("seed {seed}: {violation}"));
        if seeds.shrinks {
            let script = from_seed(seed).shrink()?;
            print_line(format_args!(
                "# the shortest script that shows it, for --script:\n{script}"
            ));
        }
        return Ok(false);
    }
    let speeds = KINDS.iter().zip(totals.times).filter(|it| it.1.0 > 0);
    let speeds: Vec<_> = speeds
        .map(|(name, (millis, took))| {
            let speed = millis as f64 / 1000.0 / took.as_secs_f64().max(1e-9);
            format!("{name} {speed:.0} times")
        })
        .collect();
    print_line(format_args!(
        "figure: {} seeds from {} without a violation: {} events, hash {:016x}, {:.0} seeds a second; as fast as real time: {}",
        totals.seeds,
        seeds.first,
        totals.events,
        totals.hash,
        totals.seeds as f64 / begin.elapsed().as_secs_f64(),
        speeds.join(", ")
    ));
    Ok(check_marks(&seeds, totals.seeds, &marks::counts()))
}

/// Prints how often each mark was reached, if that is asked for, or those that were not in a run of many seeds of all kinds.
/// Returns whether all were, as far as the run had to reach them.
fn check_marks(seeds: &Seeds, count: u64, counts: &[(&str, u64)]) -> bool {
    if seeds.marks {
        for line in counts.chunks(4) {
            let line: Vec<_> = line.iter().map(|(name, count)| format!("{name} {count}")).collect();
            print_line(format_args!("{}", line.join(", ")));
        }
    }
    let missed: Vec<_> = counts.iter().filter(|it| it.1 == 0).map(|it| it.0).collect();
    let must_reach = cfg!(debug_assertions) && count >= MANY && !seeds.kinds.contains(&false);
    if must_reach && !missed.is_empty() {
        print_line(format_args!("never reached: {}", missed.join(", ")));
        return false;
    }
    true
}

#[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
fn run_plan(seed: u64, kind: usize, plan: &dyn AnyPlan) -> SeedRun {
    let started = Instant::now();
    let outcome = plan.run(Output::Nothing);
    let took = started.elapsed();
    let mut violation = outcome.violation.clone();
    if cfg!(tokio_unstable) && seed.is_multiple_of(TWICE) && plan.run(Output::Nothing) != outcome {
        violation.get_or_insert_with(|| "two runs differ".to_owned());
    }
    let (millis, events, hash) = (outcome.millis, outcome.events, outcome.hash);
    SeedRun { kind, millis, took, events, hash, violation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_testing::size;

    const SEEDS: Seeds = Seeds {
        first: 0,
        count: 0,
        minutes: u64::MAX,
        jobs: 2,
        shrinks: true,
        marks: false,
        kinds: [true; KINDS.len()],
    };

    /// `cargo xtask test --all` runs more of them.
    #[test]
    fn first_seeds_violate_nothing_and_repeat() {
        let runs_repeat = cfg!(tokio_unstable);
        assert!(runs_repeat, "expected the flags of .cargo/config.toml, which RUSTFLAGS replaces");
        let seeds = Seeds { count: size("TESTS_SEEDS", 200), ..SEEDS };
        assert!(explore(seeds).unwrap(), "a seed violates what is printed above");
    }

    #[test]
    fn marks_that_a_long_run_never_reached_fail_it() {
        let (all, one_missed) = ([("first", 1), ("second", 7)], [("first", 1), ("second", 0)]);
        assert!(check_marks(&SEEDS, MANY, &all));
        assert!(!check_marks(&SEEDS, MANY, &one_missed), "`second` was never reached");
        assert!(check_marks(&SEEDS, MANY - 1, &one_missed), "a short run");
        let mut kinds = SEEDS.kinds;
        kinds[0] = false;
        assert!(check_marks(&Seeds { kinds, ..SEEDS }, MANY, &one_missed), "not of all kinds");
    }
}
