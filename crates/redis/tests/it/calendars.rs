//! Windows of the calendar: the script knows none, and says which it must be told.

use sluicegate_core::{Operation, Policy, Timestamp};
use sluicegate_redis::script::{Plan, Reply};
use sluicegate_testing::{Engine, Server};

use crate::store::{Store, read, test_key};

const DAY: u64 = 86_400_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Asks `policy` on the server's own clock, with windows around `guess`.
fn ask(server: &Server, policy: &str, guess: impl Fn(u64) -> u64) -> (Reply, Reply) {
    let connection = &mut server.connect();
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    let guess = at(guess(seconds * 1_000_000 + micros));
    let plan = Plan::new(&policy.parse::<Policy>().unwrap());
    let operation = Operation::Take(1);
    let arguments = plan.arguments(operation, guess).unwrap();
    let first =
        read(&Store::run(connection, &plan, policy.as_bytes(), &arguments).unwrap()).unwrap();
    let Reply::Calendars { now, calendars } = &first else { return (first.clone(), first) };
    let kept: bool = redis::cmd("EXISTS").arg(policy).query(connection).unwrap();
    assert!(!kept, "nothing is stored before it is decided");
    let again = plan.arguments_again(operation, None, *now, calendars).unwrap();
    let second = read(&Store::run(connection, &plan, policy.as_bytes(), &again).unwrap()).unwrap();
    (first, second)
}

#[test]
fn a_clock_that_is_days_off_costs_a_second_question_and_nothing_else() {
    for engine in [Engine::Redis70, Engine::Valkey91, Engine::Redis62] {
        let server = Server::start(engine);
        let policy = "fixed-window:9/day:tz=Asia/Shanghai,fixed-window:9/month";
        let (first, _) = ask(&server, policy, |now| now);
        assert!(matches!(first, Reply::Decision(decision) if decision.remaining == 8), "{first:?}");
        let (first, _) = ask(&server, policy, |now| now + DAY / 2);
        assert!(matches!(first, Reply::Decision(decision) if decision.remaining == 7), "{first:?}");

        let policy = "fixed-window:9/day:tz=Europe/Berlin";
        let (first, second) = ask(&server, policy, |now| now - 9 * DAY);
        assert!(matches!(first, Reply::Calendars { .. }), "{first:?}");
        assert!(
            matches!(second, Reply::Decision(decision) if decision.remaining == 8),
            "{second:?}"
        );
    }
}

#[test]
fn a_calendar_of_an_old_rule_is_asked_for_once() {
    let server = Server::start(Engine::Redis70);
    let connection = &mut server.connect();
    let run = |policy: &str, connection: &mut redis::Connection| {
        let plan = Plan::new(&policy.parse().unwrap());
        let arguments = plan.arguments_at(Operation::Take(1), at(1_700_000_000_000_000)).unwrap();
        read(&Store::run(connection, &plan, &test_key(b"it"), &arguments).unwrap()).unwrap()
    };
    let first = run("fixed-window:9/day:tz=Asia/Tokyo", connection);
    assert!(matches!(first, Reply::Decision(_)));
    // The same word is the same period, in any zone: nothing need be known of Tokyo.
    let other = run("fixed-window:5/day:tz=Asia/Shanghai", connection);
    assert!(matches!(other, Reply::Decision(_)));
    // Whether a day is as long as 24 hours must be known.
    let Reply::Calendars { calendars, .. } = run("fixed-window:5/1d", connection) else {
        panic!("it was decided without a calendar");
    };
    assert_eq!(calendars.len(), 1);
}
