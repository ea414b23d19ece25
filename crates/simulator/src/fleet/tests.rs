use sluicegate_core::Policy;

use super::*;
use crate::{Simulation, kind::Kind};

const SECOND: Duration = Duration::from_secs(1);

fn fleet(policy: &str, units: u32) -> Fleet {
    Fleet::new(Some(policy.parse().unwrap()), 8, units, SECOND).unwrap()
}

fn take(key: &[u8], micros: u64, cost: u32) -> Event<'_> {
    let time = Timestamp::saturating_from_micros(1_700_000_000_000_000 + micros);
    Event {
        line: 1,
        time,
        key,
        cost: Some(cost),
        policy: b"",
        kind: Kind::Take,
        id: b"",
        ttl: None,
    }
}

/// Takes one unit every so many microseconds. Returns how many pass.
fn run(fleet: &mut Fleet, every: u64, count: u64) -> u64 {
    let events = (0..count).map(|it| fleet.decide(&take(b"k", it * every, 1)).unwrap());
    events.filter(Decision::allowed).count() as u64
}

#[test]
fn twice_the_limit_passes_as_much_as_the_policy() {
    let mut fleet = fleet("gcra:10000/1s:burst=1000", 200);
    // 20 000 a second, for 10 s.
    let passed = run(&mut fleet, 50, 200_000);
    let totals = fleet.totals();
    assert!((97_000..=101_000 + totals.bound).contains(&passed), "{passed}");
    assert!(totals.excess <= totals.bound, "{totals:?}");
    assert_eq!((totals.decided, totals.bound), (200_000, 8 * 200));
}

#[test]
fn below_the_limit_everything_passes_and_few_requests_ask() {
    let mut fleet = fleet("gcra:10000/1s:burst=1000", 200);
    assert_eq!(run(&mut fleet, 125, 80_000), 80_000);
    assert!(fleet.totals().asked * 50 < 80_000, "{:?}", fleet.totals());
}

/// No unit of one window passes in the next, whatever the process.
#[test]
fn fixed_windows_pass_exactly_their_limit() {
    for policy in
        ["fixed-window:500/300ms", "fixed-window:500/1s:align=clock", "fixed-window:900/day"]
    {
        let mut fleet = fleet(policy, 50);
        let _ = run(&mut fleet, 300, 20_000);
        assert_eq!((fleet.totals().excess, fleet.totals().bound), (0, 0), "{policy}");
    }
    // Most units are handed out without asking while there are enough.
    for policy in ["fixed-window:100000/1h", "fixed-window:9000/1s:align=clock"] {
        let mut fleet = fleet(policy, 50);
        assert_eq!(run(&mut fleet, 125, 40_000), 40_000, "{policy}");
        assert!(fleet.totals().asked * 10 < 40_000, "{policy}: {:?}", fleet.totals());
    }
}

#[test]
fn excess_is_never_more_than_the_bound() {
    for policy in [
        "gcra:100/1s:burst=20",
        "token-bucket:30/200ms:refill=interval",
        "sliding-log:100/500ms",
        "sliding-counter:100/500ms",
        "gcra:1000/1s,fixed-window:300/400ms",
    ] {
        let mut fleet = fleet(policy, 16);
        let mut time = 0;
        for count in 0..30_000 {
            // Bursts and pauses.
            time += [100, 100, 3000, 100, 200_000]
                [usize::try_from(mix(count) % 40).unwrap().min(4) % 5];
            let _ = fleet.decide(&take(b"k", time, 1)).unwrap();
        }
        let totals = fleet.totals();
        assert!(totals.excess <= totals.bound, "{policy}: {totals:?}");
    }
}

/// With one process, and leases of one unit, there is nothing to lease.
#[test]
fn one_process_without_leases_decides_as_the_store() {
    let policy: Policy = "gcra:10/1s:burst=5".parse().unwrap();
    let mut fleet = Fleet::new(Some(policy.clone()), 1, 1, SECOND).unwrap();
    let mut simulation = Simulation::new(Some(policy));
    for count in 0..1000 {
        let event = take(if count % 3 == 0 { b"a" } else { b"b" }, count * 20_000, 1);
        assert_eq!(fleet.decide(&event).unwrap(), simulation.decide(&event).unwrap());
    }
    assert_eq!(fleet.totals().asked, 1000);
}

#[test]
fn new_refuses_what_cannot_be_leased() {
    let new = |policy: &str, processes| {
        Fleet::new(Some(policy.parse().unwrap()), processes, 10, SECOND).map(drop)
    };
    for (policy, processes, error) in [
        ("leaky-queue:1/1s", 8, "invalid policy `leaky-queue:1/1s` for a lease"),
        ("gcra:1/1s", 0, "invalid number of processes `0`: expected 1 to 1024"),
        ("gcra:1/1s", 1025, "invalid number of processes `1025`: expected 1 to 1024"),
    ] {
        let actual = new(policy, processes).unwrap_err().to_string();
        assert!(actual.contains(error), "{actual}");
    }
}
