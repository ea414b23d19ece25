//! Windows of the calendar: the script has none, and requests those that it needs.

use sluicegate_core::{Operation, Policy, Timestamp};
use sluicegate_redis::script::{Plan, Reply};
use sluicegate_testing::{Engine, Server};

use crate::store::{Store, parse_reply, test_key};

const DAY: u64 = 86_400_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Asks `policy` on the server's own clock, with windows around `guess`.
fn take(server: &Server, policy: &str, guess: impl Fn(u64) -> u64) -> (Reply, Reply) {
    let connection = &mut server.connect();
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    let guess = at(guess(seconds * 1_000_000 + micros));
    let plan = Plan::new(&policy.parse::<Policy>().unwrap());
    let operation = Operation::Take(1);
    let arguments = plan.arguments(operation, guess, None, &[]).unwrap();
    let first = Store::run(connection, &plan, policy.as_bytes(), &arguments).unwrap();
    let first = parse_reply(&plan, operation, &first).unwrap();
    let Reply::Calendars { now, calendars } = &first else { return (first.clone(), first) };
    let kept: bool = redis::cmd("EXISTS").arg(policy).query(connection).unwrap();
    assert!(!kept, "nothing is stored before it is decided");
    let again = plan.arguments(operation, *now, None, calendars).unwrap();
    let second = Store::run(connection, &plan, policy.as_bytes(), &again).unwrap();
    let second = parse_reply(&plan, operation, &second).unwrap();
    (first, second)
}

#[test]
fn script_client_clock_days_off_takes_a_second_call() {
    for engine in [Engine::Redis70, Engine::Valkey91, Engine::Redis62] {
        let server = Server::start(engine);
        let policy = "fixed-window:9/day:tz=Asia/Shanghai,fixed-window:9/month";
        let (first, _) = take(&server, policy, |now| now);
        assert!(matches!(first, Reply::Decision(decision) if decision.remaining == 8), "{first:?}");
        let (first, _) = take(&server, policy, |now| now + DAY / 2);
        assert!(matches!(first, Reply::Decision(decision) if decision.remaining == 7), "{first:?}");

        let policy = "fixed-window:9/day:tz=Europe/Berlin";
        let (first, second) = take(&server, policy, |now| now - 9 * DAY);
        assert!(matches!(first, Reply::Calendars { .. }), "{first:?}");
        assert!(
            matches!(second, Reply::Decision(decision) if decision.remaining == 8),
            "{second:?}"
        );
    }
}

#[test]
fn script_calendar_of_old_policy_is_requested_once() {
    let server = Server::start(Engine::Redis70);
    let connection = &mut server.connect();
    let run = |policy: &str, connection: &mut redis::Connection| {
        let plan = Plan::new(&policy.parse().unwrap());
        let operation = Operation::Take(1);
        let now = at(1_700_000_000_000_000);
        let arguments = plan.arguments(operation, now, Some(now), &[]).unwrap();
        let reply = Store::run(connection, &plan, &test_key(b"it"), &arguments).unwrap();
        parse_reply(&plan, operation, &reply).unwrap()
    };
    let first = run("fixed-window:9/day:tz=Asia/Tokyo", connection);
    assert!(matches!(first, Reply::Decision(_)));
    // The same word is the same period, in any zone: the windows of Tokyo are not needed.
    let other = run("fixed-window:5/day:tz=Asia/Shanghai", connection);
    assert!(matches!(other, Reply::Decision(_)));
    // Whether a day is as long as 24 hours depends on its window.
    let Reply::Calendars { calendars, .. } = run("fixed-window:5/1d", connection) else {
        panic!("it was decided without a calendar");
    };
    assert_eq!(calendars.len(), 1);
}

/// The client's clock decides nothing: the server's clock does.
#[test]
fn script_client_clock_an_hour_off_decides_the_same() {
    const HOUR: u64 = 3_600_000_000;
    let server = Server::start(Engine::Redis70);
    let guesses: [fn(u64) -> u64; 3] = [|now| now, |now| now + HOUR, |now| now - HOUR];
    for policy in [
        "gcra:9/1d",
        "leaky-queue:9/1d",
        "token-bucket:9/1d:refill=interval",
        "fixed-window:9/1d:align=clock",
        "fixed-window:9/year:tz=America/New_York",
        "sliding-log:9/1d",
        "sliding-counter:9/1d",
        "gcra:9/1d,fixed-window:9/month,sliding-log:9/1h:count=all",
    ] {
        let plan = Plan::new(&policy.parse::<Policy>().unwrap());
        let now = 1_700_000_000_000_000;
        let sent = guesses
            .map(|guess| plan.arguments(Operation::Take(1), at(guess(now)), None, &[]).unwrap());
        let calendars = policy.contains("year") || policy.contains("month");
        assert!(calendars || (sent[0] == sent[1] && sent[1] == sent[2]), "{policy}");
        for (turn, guess) in (0..9).zip(guesses.into_iter().cycle()) {
            let (_, last) = take(&server, policy, guess);
            let Reply::Decision(decision) = last else { panic!("{policy}: {last:?}") };
            assert_eq!((decision.allowed(), decision.remaining), (true, 8 - turn), "{policy}");
        }
    }
}
