use std::time::Duration;

use super::*;
use crate::{run::Simulation, trace::TraceReader};

fn track(policy: &str, trace: &str, until: Option<u64>) -> Track {
    let policy: Policy = policy.parse().unwrap();
    let mut simulation = Simulation::new(Some(policy.clone()));
    let mut track = Track::new(Some(b"k"));
    let trace = format!("t_us,key,cost\n{trace}");
    let mut reader = TraceReader::new(trace.as_bytes()).unwrap();
    while let Some(event) = reader.next_event().unwrap() {
        let decision = simulation.decide(&event).unwrap();
        track.add(&event, &decision, Some(&policy));
    }
    track.finish(until.map(|micros| Timestamp::from_micros(micros).unwrap()));
    track
}

#[test]
fn units_come_back_between_events() {
    let track = track("gcra:4/4s", "0,k,4\n", Some(4_000_000));
    let spans = track.spans(1_000_000);
    assert_eq!((spans.start, spans.width), (0, 1_000_000));
    let left: Vec<_> = spans.bins.iter().map(|bin| bin.left.unwrap().0).collect();
    assert_eq!(left, [4, 1, 2, 3]);
}

#[test]
fn what_waits_departs_later() {
    let track = track("leaky-queue:1/1s:capacity=3", "0,k,1\n0,k,1\n0,k,1\n0,k,1\n", None);
    let spans = track.spans(1_000_000);
    let of = |field: fn(&Bin) -> u64| spans.bins.iter().map(field).collect::<Vec<_>>();
    assert_eq!(of(|bin| bin.offered), [4, 0, 0]);
    assert_eq!(of(|bin| bin.admitted), [3, 0, 0]);
    assert_eq!(of(|bin| bin.denied), [1, 0, 0]);
    assert_eq!(of(|bin| bin.delayed), [2, 0, 0]);
    assert_eq!(of(|bin| bin.departed), [1, 1, 1]);
    assert_eq!(track.worst(), None);
}

#[test]
fn more_than_the_limit_in_a_period_is_found() {
    let edge = "59000000,k,3\n60000000,k,3\n61000000,other,3\n";
    let found = track("fixed-window:3/1m:align=clock", edge, None);
    let over = Over {
        from: 59_000_000,
        to: 60_000_000,
        units: 6,
        limit: 3,
        period: Duration::from_secs(60),
    };
    assert_eq!(found.worst(), Some(&over));
    let overs: Vec<_> = found.spans(1_000_000).bins.iter().map(|bin| bin.over).collect();
    assert_eq!(overs, [0, 6, 0]);
    assert_eq!(track("sliding-log:3/1m", edge, None).worst(), None);
}

#[test]
fn a_change_is_seen_from_its_moment_on() {
    let (small, large): (Policy, Policy) =
        ("sliding-log:2/1m".parse().unwrap(), "sliding-log:5/1m".parse().unwrap());
    let mut track = Track::new(Some(b"k"));
    let mut simulation = Simulation::new(Some(small.clone()));
    let event = Event {
        line: 1,
        time: Timestamp::EPOCH,
        key: b"k",
        cost: 2,
        policy: b"",
        kind: Kind::Take,
    };
    track.add(&event, &simulation.decide(&event).unwrap(), Some(&small));
    track.change(Timestamp::from_micros(10_000_000).unwrap(), &large);
    track.finish(Some(Timestamp::from_micros(20_000_000).unwrap()));
    let left: Vec<_> = track.spans(5_000_000).bins.iter().map(|bin| bin.left).collect();
    assert_eq!(left, [Some((2, 0)), Some((0, 0)), Some((3, 3)), Some((3, 3))]);
}

#[test]
fn a_year_of_silence_costs_no_memory() {
    let year = 366 * 86_400_000_000_u64;
    let track = track("gcra:1/1d", &format!("0,k,1\n{year},k,1\n"), None);
    assert!(track.spans(0).bins.len() <= 1024);
    assert!(track.spans(track.width_for(150)).bins.len() <= 150);
}
