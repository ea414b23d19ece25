//! The error of the sliding counter compared with an exact sliding log: RELIABILITY 5.
//!
//! Both count all requests, also denied ones (`count=all`), so that they have the same history whatever they decide.
//! A decision is *wrong* if the counter allows what the log denies, or the reverse.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
use sluicegate_simulator::{KeySpec, Steady, Traffic, TrafficSpec};
use sluicegate_testing::size;

/// The limit of every test here.
const LIMIT: u32 = 100;
const MINUTE: u64 = 60_000_000;
/// On an edge of the counter's windows.
const START: u64 = 1_700_000_040_000_000;

/// Decisions of both about the same requests.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    requests: u64,
    /// Allowed by the counter, denied by the log.
    too_lenient: u64,
    /// Denied by the counter, allowed by the log.
    too_strict: u64,
}

impl Compared {
    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            too_lenient: self.too_lenient + other.too_lenient,
            too_strict: self.too_strict + other.too_strict,
        }
    }

    const fn wrong(self) -> u64 {
        self.too_lenient + self.too_strict
    }

    fn print(self, traffic: &str) {
        println!(
            "figure: sliding counter, {traffic}: {} of {} decisions wrong ({:.4} %), {} too lenient",
            self.wrong(),
            self.requests,
            self.percent(),
            self.too_lenient,
        );
    }

    fn percent(self) -> f64 {
        self.wrong() as f64 * 100.0 / self.requests as f64
    }
}

/// Clients of traffic, each with a key of its own and with a counter and a log.
struct Clients {
    counter: Policy,
    log: Policy,
    entries: HashMap<Vec<u8>, [Option<Entry>; 2]>,
}

impl Clients {
    fn new() -> Self {
        let [counter, log] = ["sliding-counter", "sliding-log"].map(|it| policy(it, ":count=all"));
        Self { counter, log, entries: HashMap::new() }
    }

    /// Decides all of `traffic`.
    fn compare(
        &mut self,
        specs: &[TrafficSpec],
        clients: u32,
        seed: u64,
        minutes: u64,
    ) -> Compared {
        let length = Duration::from_micros(minutes * MINUTE);
        let start = Timestamp::from_micros(START).unwrap();
        let mut traffic = Traffic::new(specs, KeySpec::Uniform(clients), seed, start, length);
        let mut compared = Compared::default();
        loop {
            let batch = traffic.next_batch();
            if batch.is_empty() {
                return compared;
            }
            for event in batch.events() {
                let [counter, log] = self.entries.entry(event.key.to_vec()).or_default();
                let allows = |policy, entry: &mut Option<Entry>| {
                    apply(policy, entry, event.time, Operation::Take(1)).unwrap().allowed()
                };
                let (guess, truth) = (allows(&self.counter, counter), allows(&self.log, log));
                compared.requests += 1;
                compared.too_lenient += u64::from(guess && !truth);
                compared.too_strict += u64::from(!guess && truth);
            }
        }
    }
}

/// `clients` whose requests are a Poisson process of this percentage of the limit each, for `minutes`.
fn poisson(clients: u32, percent: u32, minutes: u64) -> Compared {
    // The specification has whole requests in a period: the period is a hundred of the limit's.
    let count = LIMIT * percent * clients;
    let spec = TrafficSpec::Poisson(Steady { count, period: 100 * MINUTE, from: 0, to: u64::MAX });
    Clients::new().compare(&[spec], clients, u64::from(percent), minutes)
}

/// Cloudflare counted 400 million requests of 270 000 sources in this way and decided 0.003 % of them wrongly ("How
/// we built rate limiting capable of scaling to millions of domains", 2017). It does not publish the distribution of
/// the rates, which determines the figure: only clients near the limit are ever decided wrongly, and there 5 to 12 %
/// of their requests are. It does say that 3 sources, of 270 000, were found on the wrong side of the threshold.
///
/// This test: a limit of 100 in a minute, 10 000 clients, all Poisson processes: 9 966 far below the limit (at 1, 5,
/// 10 and 25 % of it), 4 near it (one each at 75, 90, 110 and 125 %), and 30 that attack (10 with 10 times, 20 with
/// 100 times the limit). That is 36 times Cloudflare's share near the limit.
#[test]
fn sliding_counter_poisson_traffic_hardly_any_decision_is_wrong() {
    const CLASSES: [(u32, u32); 10] = [
        (1, 4_000),
        (5, 4_000),
        (10, 1_000),
        (25, 966),
        (75, 1),
        (90, 1),
        (110, 1),
        (125, 1),
        (1_000, 10),
        (10_000, 20),
    ];
    let minutes = size("SLUICEGATE_COUNTER_MINUTES", 10);
    let mut all = Compared::default();
    for (percent, clients) in CLASSES {
        let compared = poisson(clients, percent, minutes);
        compared.print(&format!("{clients} Poisson clients at {percent} % of the limit"));
        all = all.add(compared);
    }
    all.print(&format!("all 10 000 Poisson clients for {minutes} min (Cloudflare: 0.003 %)"));
    assert!(all.percent() <= 0.01, "{all:?}");
    assert!(all.wrong() > 0, "some are near the limit");
}

/// Bursts of half the limit and more: the result depends on their position in the windows of the counter.
#[test]
fn sliding_counter_bursts_never_pass_twice_the_limit() {
    let bursts = size("SLUICEGATE_COUNTER_MINUTES", 10) * 100;
    for count in [30, 60, 110] {
        // One a minute, anywhere in it.
        let mut at = Random(count.into());
        let specs: Vec<_> = (0..bursts)
            .map(|minute| TrafficSpec::Burst { count, at: minute * MINUTE + at.below(MINUTE) })
            .collect();
        let compared = Clients::new().compare(&specs, 1, 1, bursts);
        compared.print(&format!("bursts of {count} % of the limit, one in each minute"));
        let times = specs.iter().flat_map(|spec| match *spec {
            TrafficSpec::Burst { count, at } => std::iter::repeat_n(START + at, count as usize),
            _ => unreachable!("all are bursts"),
        });
        let most = most_in_a_minute("sliding-counter", times);
        println!("figure: at most {most} of {LIMIT} pass in a minute");
        assert!(most <= 2 * LIMIT as usize, "{most}");
    }
}

/// A client that knows the windows spends the limit just before an edge, and then all units as they become free: 2N
/// at the worst, as `SEMANTICS.md` says, less the one that is not yet free.
#[test]
fn sliding_counter_adversary_gets_less_than_twice_the_limit() {
    let edge = START + MINUTE - 1;
    let before = std::iter::repeat_n(edge, LIMIT as usize);
    // Ten tries for each unit that comes free, through the next window and the one after.
    let after = (0..20 * u64::from(LIMIT)).map(|step| edge + 1 + step * MINUTE / (10 * 100));
    let times: Vec<_> = before.chain(after).collect();
    let counter = most_in_a_minute("sliding-counter", times.iter().copied());
    let log = most_in_a_minute("sliding-log", times.iter().copied());
    println!(
        "figure: the worst minute of a sliding counter of {LIMIT} has {counter}, of a log {log}"
    );
    assert_eq!((counter, log), (2 * LIMIT as usize - 1, LIMIT as usize));
    // The other way round: the limit spent at the begin of a window weighs until the next one ends.
    let (policy, mut entry) = (policy("sliding-counter", ""), None);
    let at = |after| Timestamp::from_micros(START + after).unwrap();
    let spent = apply(&policy, &mut entry, at(0), Operation::Take(LIMIT)).unwrap();
    assert_eq!(spent.reset_after, Duration::from_micros(2 * MINUTE));
    let again =
        |after| apply(&policy, &mut entry.clone(), at(after), Operation::Peek(LIMIT)).unwrap();
    assert!(!again(2 * MINUTE - 1).allowed() && again(2 * MINUTE).allowed());
}

fn policy(name: &str, options: &str) -> Policy {
    format!("{name}:{LIMIT}/1m{options}").parse().unwrap()
}

/// The most takes at these times that pass in any minute, under a limit of this name.
fn most_in_a_minute(name: &str, times: impl Iterator<Item = u64>) -> usize {
    let (policy, mut entry) = (policy(name, ""), None);
    let (mut window, mut most) = (VecDeque::new(), 0);
    for time in times {
        let at = Timestamp::from_micros(time).unwrap();
        if apply(&policy, &mut entry, at, Operation::Take(1)).unwrap().allowed() {
            window.push_back(time);
            while window.front().is_some_and(|first| first + MINUTE <= time) {
                window.pop_front();
            }
            most = most.max(window.len());
        }
    }
    most
}

/// Numbers from a seed: a linear congruential generator (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
