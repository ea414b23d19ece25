use std::time::Duration;

use super::*;
use crate::{kind::Kind, run::Simulation, trace::TraceReader};

fn track(policy: &str, trace: &str, until: Option<u64>) -> TimeSeries {
    track_columns(policy, &format!("t_us,key,cost\n{trace}"), until)
}

fn track_columns(policy: &str, trace: &str, until: Option<u64>) -> TimeSeries {
    let policy: Policy = policy.parse().unwrap();
    let mut simulation = Simulation::new(Some(policy.clone()));
    let mut track = TimeSeries::new(Some(b"k"));
    let mut reader = TraceReader::new(trace.as_bytes()).unwrap();
    loop {
        let batch = reader.next_batch().unwrap();
        if batch.is_empty() {
            break;
        }
        for event in batch.events() {
            let decision = simulation.decide(&event).unwrap();
            track.add(&event, &decision, Some(&policy));
        }
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
fn time_series_delayed_request_is_sent_later() {
    let track = track("leaky-queue:1/1s:capacity=3", "0,k,1\n0,k,1\n0,k,1\n0,k,1\n", None);
    let spans = track.spans(1_000_000);
    let of = |field: fn(&Bin) -> u64| spans.bins.iter().map(field).collect::<Vec<_>>();
    assert_eq!(of(|bin| bin.offered), [4, 0, 0]);
    assert_eq!(of(|bin| bin.admitted), [3, 0, 0]);
    assert_eq!(of(|bin| bin.denied), [1, 0, 0]);
    assert_eq!(of(|bin| bin.delayed), [2, 0, 0]);
    assert_eq!(of(|bin| bin.sent), [1, 1, 1]);
    assert_eq!(track.worst(), None);
}

#[test]
fn track_excess_across_the_edge_of_a_window_is_found() {
    let edge = "59000000,k,3\n60000000,k,3\n61000000,other,3\n";
    let found = track("fixed-window:3/1m:align=clock", edge, None);
    let period = Duration::from_secs(60);
    let bound = Bound { limit: 3, burst: 0, period, borrows: false, counts_holds: false };
    let excess = Excess { limit: 0, from: 59_000_000, to: 60_000_000, units: 6, bound };
    assert_eq!(found.worst(), Some(&excess));
    let levels: Vec<_> = found.spans(1_000_000).bins.iter().map(|bin| bin.levels[0]).collect();
    let level = |units, exceeds| Level { units, exceeds };
    assert_eq!(levels, [level(3, false), level(6, true), level(6, true)]);
    assert_eq!(found.peaks()[0], level(6, true));
    assert!(found.has_other_keys());
    let windows: Vec<_> = found.windows().iter().map(|it| (it.from, it.to, it.units)).collect();
    assert_eq!(windows, [(0, 60_000_000, 3), (60_000_000, 120_000_000, 3)]);
    let log = track("sliding-log:3/1m", edge, None);
    assert_eq!((log.worst(), log.peaks()[0], log.windows()), (None, level(3, false), &[][..]));
}

#[test]
fn track_bucket_that_keeps_to_burst_and_limit_is_not_in_excess() {
    let trace = "0,k,4\n1000000,k,1\n2000000,k,1\n3000000,k,1\n";
    let bucket = track("token-bucket:4/4s:burst=4", trace, None);
    assert_eq!((bucket.worst(), bucket.peaks()[0].units), (None, 7));
    assert_eq!(bucket.bounds()[0].limits[0].units(), 7);
    assert!(!bucket.has_other_keys());
}

#[test]
fn track_units_of_a_queue_count_when_they_are_sent() {
    let queue = track("leaky-queue:1/1s:capacity=3", "0,k,1\n0,k,1\n0,k,1\n", None);
    let levels: Vec<_> = queue.spans(1_000_000).bins.iter().map(|it| it.levels[0].units).collect();
    assert_eq!(levels, [1, 1, 1]);
}

#[test]
fn track_key_that_comes_late_has_no_units_left_before() {
    let late = track("gcra:4/4s", "0,other,1\n3000000,k,4\n3500000,k,1\n", None);
    let left: Vec<_> = late.spans(1_000_000).bins.iter().map(|bin| bin.left).collect();
    assert_eq!(left, [None, None, None, Some((4, 0))]);
}

#[test]
fn track_units_leave_the_period_between_events() {
    let log = track("sliding-log:4/2s", "0,k,4\n", Some(4_000_000));
    let levels: Vec<_> = log.spans(1_000_000).bins.iter().map(|it| it.levels[0].units).collect();
    assert_eq!(levels, [4, 4, 0, 0]);
}

#[test]
fn track_concurrency_draws_the_units_held() {
    let trace = "t_us,key,cost,op,id\n0,k,2,hold,a\n1000000,k,1,hold,b\n1500000,k,1,hold,c\n\
                 2000000,k,,settle,a\n2500000,k,3,hold,d\n4000000,k,,renew,b\n";
    let track = track_columns("concurrency:3/4s", trace, Some(9_000_000));
    let spans = track.spans(1_000_000);
    let of = |field: fn(&Bin) -> u64| spans.bins.iter().map(field).collect::<Vec<_>>();
    // `b` was to expire at 5 s, and is renewed until 8 s; `c` and `d` are denied.
    assert_eq!(of(|bin| bin.levels[0].units), [2, 3, 3, 1, 1, 1, 1, 1, 0]);
    assert_eq!(of(|bin| bin.left.unwrap().1.into()), [1, 0, 0, 2, 2, 2, 2, 2, 3]);
    assert_eq!(
        (of(|bin| bin.offered), of(|bin| bin.denied)),
        (vec![1, 2, 1, 0, 0, 0, 0, 0, 0], vec![0, 1, 1, 0, 0, 0, 0, 0, 0],)
    );
    assert_eq!((track.peaks()[0].units, track.worst()), (3, None));
    assert!(track.bounds()[0].limits[0].counts_holds);
}

#[test]
fn track_held_units_of_a_rate_are_counted_when_they_are_charged() {
    let trace = "t_us,key,cost,op,id,ttl_us\n0,k,4,hold,a,1500000\n0,k,4,hold,b,9000000\n\
                 3000000,k,2,settle,b,\n";
    let track = track_columns("sliding-log:8/1s", trace, Some(5_000_000));
    let levels: Vec<_> = track.spans(1_000_000).bins.iter().map(|it| it.levels[0].units).collect();
    assert_eq!(levels, [0, 4, 4, 2, 0]);
}

#[test]
fn time_series_policy_change_starts_new_bounds() {
    let (small, large): (Policy, Policy) =
        ("sliding-log:2/1m".parse().unwrap(), "sliding-log:5/1m".parse().unwrap());
    let mut track = TimeSeries::new(Some(b"k"));
    let mut simulation = Simulation::new(Some(small.clone()));
    let event = Event {
        line: 1,
        time: Timestamp::EPOCH,
        key: b"k",
        cost: Some(2),
        policy: b"",
        kind: Kind::Take,
        id: b"",
        ttl: None,
    };
    track.add(&event, &simulation.decide(&event).unwrap(), Some(&small));
    track.change(Timestamp::from_micros(10_000_000).unwrap(), &large);
    track.finish(Some(Timestamp::from_micros(20_000_000).unwrap()));
    let left: Vec<_> = track.spans(5_000_000).bins.iter().map(|bin| bin.left).collect();
    assert_eq!(left, [Some((2, 0)), Some((0, 0)), Some((3, 3)), Some((3, 3))]);
    let bounds: Vec<_> = track.bounds().iter().map(|it| (it.from, it.limits[0].units())).collect();
    assert_eq!(bounds, [(0, 2), (10_000_000, 5)]);
}

#[test]
fn time_series_idle_year_takes_bounded_memory() {
    let year = 366 * 86_400_000_000_u64;
    let track = track("gcra:1/1d", &format!("0,k,1\n{year},k,1\n"), None);
    assert!(track.spans(0).bins.len() <= 1024);
    assert!(track.spans(track.width_for(150)).bins.len() <= 150);
}
