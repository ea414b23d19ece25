//! Requests of an access log under a `concurrency` limit, beside counting those in flight.

use std::time::Duration;

use proptest::prelude::*;
use sluicegate_core::Policy;
use sluicegate_simulator::{DurationField, Kind, LogReader, Report, Simulation, TraceError};

const LIMIT: usize = 3;
/// Of a hold, in milliseconds.
const PERIOD: u64 = 200;
const EPOCH: u64 = 1_700_000_000_000;

/// A request, in milliseconds. It begins at an even one and ends at an odd one, so that no two moments are the same.
#[derive(Clone, Copy, Debug)]
struct Request {
    key: u8,
    start: u64,
    end: u64,
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let request = (0..3_u8, 0..500_u64, 0..150_u64).prop_map(|(key, start, length)| {
        let start = 2 * start;
        Request { key, start, end: start + 2 * length + 1 }
    });
    proptest::collection::vec(request, 0..60)
}

/// The lines of a log, which are written when the requests end.
fn log(requests: &[Request]) -> String {
    let mut requests = requests.to_vec();
    requests.sort_by_key(|request| request.end);
    let line = |Request { key, start, end }: &Request| {
        let (time, length) = (EPOCH + end, end - start);
        let seconds = |millis: u64| format!("{}.{:03}", millis / 1000, millis % 1000);
        format!("key-{key} {} {}\n", seconds(time), seconds(length))
    };
    requests.iter().map(line).collect()
}

/// Which starts are allowed, and the report.
fn simulate(policy: &str, log: &str) -> (Vec<bool>, Report) {
    let policy: Policy = policy.parse().unwrap();
    let (format, key) =
        ("$remote_addr $msec $request_time".parse().unwrap(), "{ip}".parse().unwrap());
    let disorder = Duration::from_secs(1);
    let mut reader =
        LogReader::new(log.as_bytes(), &format, &key, None, DurationField::Detected, disorder)
            .unwrap();
    let (mut simulation, mut report) = (Simulation::new(Some(policy)), Report::new(&[]));
    let mut allowed = Vec::new();
    loop {
        let batch = reader.next_batch().unwrap();
        if batch.is_empty() {
            return (allowed, report);
        }
        let decided = simulation.decide_batch(batch, |event, decision| {
            if event.kind == Kind::Start {
                allowed.push(decision.allowed());
            }
            report.add(event, decision);
            Ok::<_, TraceError>(())
        });
        decided.unwrap();
    }
}

proptest! {
    #[test]
    fn log_of_requests_is_denied_where_too_many_are_in_flight(requests in requests()) {
        let (found, report) = simulate(&format!("concurrency:{LIMIT}/{PERIOD}ms"), &log(&requests));
        // Those that begin at one time do so in the order of their lines.
        let mut in_order = requests;
        in_order.sort_by_key(|request| request.end);
        in_order.sort_by_key(|request| request.start);
        let mut admitted: Vec<Request> = Vec::new();
        let (mut expected, mut most) = (Vec::new(), 0);
        for request in &in_order {
            let held = admitted.iter().filter(|it| {
                it.key == request.key && it.end.min(it.start + PERIOD) > request.start
            });
            let is_allowed = held.count() < LIMIT;
            expected.push(is_allowed);
            if is_allowed {
                admitted.push(*request);
                most = most.max(admitted.iter().filter(|it| it.end > request.start).count());
            }
        }
        prop_assert_eq!(found, expected);
        let outlived = admitted.iter().filter(|it| it.end - it.start > PERIOD).count();
        let totals = report.totals();
        prop_assert_eq!(totals.allowed, u64::try_from(admitted.len()).unwrap());
        prop_assert_eq!(totals.max_in_flight, most);
        prop_assert_eq!(totals.expired, u64::try_from(outlived).unwrap());
        prop_assert_eq!(totals.others, 0);
    }
}

/// Beside `concurrency`, a rate is charged as by takes.
#[test]
fn log_of_requests_under_a_rate_is_decided_at_their_starts() {
    let requests = [(0, 501), (100, 901), (200, 301), (600, 701), (1100, 1101)];
    let requests = requests.map(|(start, end)| Request { key: 1, start, end });
    let (allowed, report) = simulate("sliding-log:2/1s", &log(&requests));
    assert_eq!(allowed, [true, true, false, false, true]);
    assert_eq!((report.totals().max_in_flight, report.totals().expired), (2, 0));
}
