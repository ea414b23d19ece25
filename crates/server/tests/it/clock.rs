//! A wall clock that steps, by libfaketime: of the server, and of its store. RELIABILITY 22.

use std::time::Duration;

use sluicegate_resp::Value;
use sluicegate_server::StoreConfig;
use sluicegate_testing::{Engine, FakeClock, Server, eventually, now, pause, size};

use crate::{
    child_process::{Process, process_with},
    harness::{RawClient, Running, TEST_TIMEOUT},
};

/// Policies with a burst of 20, units that refill per hour, and the longest denial of a used up key.
const POLICIES: [(&str, usize, i64); 4] = [
    ("gcra:10/1h:burst=20", 10, HOUR / 10),
    ("token-bucket:10/1h:burst=20:refill=interval", 10, HOUR),
    ("sliding-log:20/1h", 20, HOUR),
    ("fixed-window:20/1h", 20, HOUR),
];
const HOUR: i64 = 3_600_000_000;

fn take(peer: &mut RawClient, policy: &str) -> Vec<i64> {
    peer.integers(&format!("SG.TAKE {policy} {policy}"))
}

/// Units that pass immediately.
fn passes(peer: &mut RawClient, policy: &str) -> usize {
    (0..).find(|_| take(peer, policy)[0] == 0).unwrap()
}

/// The server's time in seconds, by `TIME`.
fn seconds(peer: &mut RawClient) -> i64 {
    let Value::Array(actual) = peer.call("TIME") else { panic!("no time") };
    let Value::Bulk(seconds) = &actual[0] else { panic!("{actual:?}") };
    str::from_utf8(seconds).unwrap().parse().unwrap()
}

/// A server with a state file, whose wall clock is `clock`.
fn clocked(name: &'static str) -> Option<(Process, FakeClock)> {
    let mut clock = None;
    let environment = |folder: &crate::harness::TempDir| {
        let new = FakeClock::new(&folder.file(""));
        let environment = new.environment().into();
        clock = Some(new);
        environment
    };
    let process = process_with(name, 1024, environment, |config, folder| {
        config.memory.state_file = Some(folder.join("state"));
        config.memory.snapshot_every = Duration::from_millis(10);
    })?;
    Some((process, clock.unwrap()))
}

/// State in the server uses a clock that does not step with the wall clock.
#[test]
fn wall_clock_step_while_running_changes_nothing() {
    let name = "clock::wall_clock_step_while_running_changes_nothing";
    let Some((process, clock)) = clocked(name) else { return };
    let mut peer = process.server.connect();
    let (began, start) = (seconds(&mut peer), now());
    for (policy, _, longest) in POLICIES {
        assert_eq!(passes(&mut peer, policy), 20, "{policy}");
        for offset in [3600, -7200, 0] {
            clock.set(offset);
            let actual = take(&mut peer, policy);
            assert_eq!(actual[0], 0, "{policy} by a clock that is {offset} s wrong");
            assert!((1..=longest).contains(&actual[3]), "{policy}: {actual:?}");
            let elapsed = i64::try_from(start.elapsed().as_secs()).unwrap();
            let actual = seconds(&mut peer) - began;
            assert!((actual - elapsed).abs() <= 1, "TIME is {actual} s later after {elapsed} s");
        }
    }
    // Back and forth by a second, ten times a second: no step adds units, and none takes any away.
    let policy = "gcra:50/1s:burst=10";
    let span = Duration::from_millis(size("SLUICEGATE_FLAPS_MS", 1000));
    let (begin, mut admitted, mut steps) = (now(), 0, 0);
    while begin.elapsed() < span {
        clock.set(if steps % 2 == 0 { -1 } else { 1 });
        steps += 1;
        let half = now();
        while half.elapsed() < Duration::from_millis(50) {
            let actual = take(&mut peer, policy);
            if actual[0] == 0 {
                assert!((1..=20_000).contains(&actual[3]), "a unit takes 20 ms: {actual:?}");
            }
            admitted += actual[0];
            pause(Duration::from_micros(200));
        }
    }
    let millis = i64::try_from(begin.elapsed().as_millis()).unwrap() + 1;
    let bound = 10 + 50 * millis / 1000;
    println!(
        "figure: server, {steps} steps of its wall clock: {admitted} admitted (bound {bound})"
    );
    assert!((10..=bound).contains(&admitted), "{admitted} of {bound}");
}

/// A restart reads the wall clock: a step forward admits the refilled units, a step back
/// admits nothing and denies a key for longer.
#[test]
fn wall_clock_step_before_a_restart_keeps_the_bound() {
    let name = "clock::wall_clock_step_before_a_restart_keeps_the_bound";
    let Some((mut process, clock)) = clocked(name) else { return };
    let restart = |process: &mut Process, offset| {
        // One that began after all takes so far.
        process.server.until_at_least("snapshots", process.server.info_value("snapshots") + 2);
        process.kill();
        clock.set(offset);
        process.start_again();
    };
    let mut peer = process.server.connect();
    POLICIES.iter().for_each(|(policy, ..)| assert_eq!(passes(&mut peer, policy), 20, "{policy}"));
    restart(&mut process, -7200);
    let mut peer = process.server.connect();
    for (policy, _, longest) in POLICIES {
        let actual = take(&mut peer, policy);
        assert_eq!(actual[0], 0, "{policy}, two hours back");
        // Windows and logs take future times for now, and deny no longer.
        assert!((1..=longest + 2 * HOUR).contains(&actual[3]), "{policy}: {actual:?}");
        println!("figure: server, {policy}: held for {} s two hours back", actual[3] / 1_000_000);
    }
    restart(&mut process, 3600);
    let mut peer = process.server.connect();
    for (policy, refilled, _) in POLICIES {
        let passed = passes(&mut peer, policy);
        println!("figure: server, {policy}: {passed} admitted an hour on (bound {refilled})");
        assert!(passed <= refilled, "{policy}: {passed}");
    }
    let mut fresh = process.server.connect();
    assert_eq!(fresh.integers("SG.TAKE new gcra:1/1h")[0], 1);
}

/// Sets the store's clock to `offset` seconds from the real one, which was `real` at the start. For a few commands
/// the store may still use the previous time.
fn set_store_clock(clock: &FakeClock, store: &Server, real: i64, offset: i64) {
    clock.set(offset);
    eventually("the store has the time that is set", || {
        let ahead = || store.query::<(i64, i64)>("TIME").0 - real - offset;
        let ahead = [(); 3].map(|()| ahead());
        if ahead.iter().all(|it| (0..600).contains(it)) { Ok(()) } else { Err(ahead) }
    });
}

/// State in a store follows the clock of the store: the same bounds, with any caches in the server.
#[test]
fn wall_clock_step_of_a_store_keeps_the_bound() {
    let folder = sluicegate_testing::TempDir::new();
    let clock = FakeClock::new(folder.path());
    let environment = clock.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, &**value));
    // Redis 7.0 of Debian does not start with libfaketime, because its allocator reads the time.
    let store = Server::within(Engine::Valkey91, folder, &[], &environment).unwrap();
    let serve = || {
        Running::with(|config| {
            let mut at = StoreConfig::new(store.url());
            // A deadline that a busy machine meets: otherwise a fallback denial could pass for one of the store.
            (at.redis.deadline, at.redis.connect_timeout) = (TEST_TIMEOUT, TEST_TIMEOUT);
            config.store = Some(at);
        })
    };
    let server = serve();
    let mut peer = server.connect();
    let real = store.query::<(i64, i64)>("TIME").0;
    for (policy, refilled, longest) in POLICIES {
        set_store_clock(&clock, &store, real, 0);
        assert_eq!(passes(&mut peer, policy), 20, "{policy}");
        set_store_clock(&clock, &store, real, 3600);
        // This server caches denials, and repeats them until they end by its own clock.
        assert_eq!(take(&mut peer, policy)[0], 0, "{policy}: a denial that is remembered");
        // A server without a cache calls the store.
        let fresh = serve();
        let forward = passes(&mut fresh.connect(), policy);
        assert_eq!(forward, refilled, "{policy} an hour on");
        set_store_clock(&clock, &store, real, -3600);
        let actual = take(&mut serve().connect(), policy);
        assert_eq!(actual[0], 0, "{policy}, two hours back");
        assert!((1..=longest + 2 * HOUR).contains(&actual[3]), "{policy}: {actual:?}");
        println!(
            "figure: server on a store, {policy}: {forward} admitted an hour on (bound {refilled}), \
             held for {} s two hours back",
            actual[3] / 1_000_000
        );
    }
    assert_eq!(server.info_value("store_errors"), 0);
}
