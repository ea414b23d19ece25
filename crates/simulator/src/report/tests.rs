use proptest::prelude::*;
use sluicegate_core::Timestamp;

use super::*;
use crate::{heavy_hitters::MAX_BUSY_KEYS, kind::Kind};

fn event(kind: Kind) -> Event<'static> {
    let (time, cost, id, ttl) = (Timestamp::EPOCH, Some(1), b"id", Some(Duration::from_secs(1)));
    Event { line: 0, time, key: b"k", cost, policy: b"", kind, id, ttl }
}

fn add(report: &mut Report, time: u64, key: &[u8], outcome: Outcome) {
    let time = Timestamp::from_micros(time).unwrap();
    let event = Event { time, key, ..event(Kind::Take) };
    let (limit, remaining, reset_after, binding) = (0, 0, Duration::ZERO, 0);
    report.add(&event, &Decision { outcome, limit, remaining, reset_after, binding });
}

fn allow(micros: u64) -> Outcome {
    Outcome::Allow { delay: Duration::from_micros(micros) }
}

const DENY: Outcome = Outcome::Deny { retry: sluicegate_core::Retry::Never };

#[test]
fn busiest_keys_are_exact_up_to_the_bound_and_have_an_error_bound_beyond() {
    let mut report = Report::new(&[]);
    for index in 0..MAX_BUSY_KEYS {
        add(&mut report, 0, &index.to_le_bytes(), DENY);
        add(&mut report, 0, b"busy", allow(0));
    }
    add(&mut report, 0, b"busy", DENY);
    let (keys, missed) = report.keys().unwrap().busiest(2);
    let busy = keys[0];
    assert_eq!(busy.key, b"busy");
    assert_eq!((keys.len(), missed), (2, 1));
    let most = u64::try_from(MAX_BUSY_KEYS).unwrap() + 1;
    assert!((most - missed..=most).contains(&busy.requests));
    assert_eq!(busy.denied, 1);
}

#[test]
fn report_only_takes_and_holds_are_requests() {
    let mut report = Report::new(&[Duration::from_secs(1)]);
    let policy: Policy = "gcra:1/1s".parse().unwrap();
    let mut add = |kind| {
        let event = event(kind);
        report.add(&event, &event.apply(&policy, &mut None).unwrap());
        (report.totals().requests, report.totals().others)
    };
    let others = [Kind::Charge, Kind::Refund, Kind::Peek, Kind::Reset, Kind::Settle, Kind::Renew]
        .map(&mut add);
    assert_eq!(others, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]);
    assert_eq!([Kind::Hold, Kind::Take].map(add), [(1, 6), (2, 6)]);
    assert_eq!(report.totals().allowed, 2);
    assert_eq!(report.keys().unwrap().busiest(1).0[0].requests, 2);
}

#[test]
fn report_requests_in_flight_end_once() {
    let mut report = Report::new(&[]);
    let mut add = |line, kind, outcome| {
        let (limit, remaining, reset_after, binding) = (0, 0, Duration::ZERO, 0);
        let decision = Decision { outcome, limit, remaining, reset_after, binding };
        report.add(&Event { line, ..event(kind) }, &decision);
    };
    for line in 1..=3 {
        add(line, Kind::Start, allow(0));
    }
    add(4, Kind::Start, DENY);
    // The hold of line 2 has expired; line 4 never had one.
    add(1, Kind::End, allow(0));
    add(2, Kind::End, DENY);
    add(4, Kind::End, DENY);
    add(5, Kind::Start, allow(0));
    let totals = report.totals();
    assert_eq!((totals.requests, totals.allowed, totals.others), (5, 4, 0));
    assert_eq!((totals.max_in_flight, totals.expired), (3, 1));
}

#[test]
fn periods_of_policy_are_distinct() {
    let periods = |text: &str| periods(&text.parse().unwrap());
    let days = |days: u64| Duration::from_secs(days * 86_400);
    assert_eq!(
        periods("sliding-log:1/1m,gcra:1/60s,sliding-counter:1/1s"),
        [Duration::from_secs(1), Duration::from_secs(60)]
    );
    assert_eq!(
        periods("fixed-window:9/month,token-bucket:1/1d:refill=interval,fixed-window:9/year"),
        [days(1), days(31), days(366)]
    );
}

proptest! {
    #[test]
    fn report_delayed_requests_are_counted_when_they_are_sent(
        mut arrivals in proptest::collection::vec((0..300_u64, 0..100_u64, any::<bool>()), 0..60),
        span in 1..80_u64,
    ) {
        arrivals.sort_by_key(|(time, ..)| *time);
        let mut report = Report::new(&[Duration::from_micros(span)]);
        for (time, delay, passes) in &arrivals {
            add(&mut report, *time, b"k", if *passes { allow(*delay) } else { DENY });
        }
        report.finish();
        let sent: Vec<u64> = arrivals
            .iter()
            .filter(|(_, _, passes)| *passes)
            .map(|(time, delay, _)| time + delay)
            .collect();
        let within = |from: &u64| {
            sent.iter().filter(|time| (*from..from + span).contains(time)).count()
        };
        let most = sent.iter().map(within).max().unwrap_or(0);
        prop_assert_eq!(report.peak_sent().next().unwrap().count, u64::try_from(most).unwrap());
        prop_assert_eq!(report.totals().allowed + report.totals().denied(), report.totals().requests);
    }
}
