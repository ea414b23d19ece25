//! A server whose clock jumps, by libfaketime (RELIABILITY 22). Only Valkey: Redis 7.0 of Debian does not start with
//! libfaketime, because its allocator reads the time.

use std::time::{Duration, Instant};

use redis::Value;
use sluicegate_testing::{
    Engine, FakeClock, RawClient, Server, TempDir, eventually_true, now, pause, size,
};

use crate::server::module;

/// A server and its clock.
struct Clocked {
    server: Server,
    clock: FakeClock,
    /// Its time when it was right, in seconds, and the time of that.
    began: (i64, Instant),
}

impl Clocked {
    fn start() -> Self {
        let folder = TempDir::new();
        let clock = FakeClock::new(folder.path());
        let environment = clock.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, &**value));
        let load = ["--loadmodule", module()];
        let server = Server::within(Engine::Valkey91, folder, &load, &environment);
        let server = server.expect("it begins to serve");
        let began = (time(&mut server.raw_client()), now());
        Self { server, clock, began }
    }

    /// Sets the clock to an offset from the true time in seconds, and waits until the server has noticed.
    fn jump(&self, peer: &mut RawClient, seconds: i64) {
        self.clock.set(seconds);
        let (actual, at) = self.began;
        eventually_true("the clock has jumped", || {
            let elapsed = i64::try_from(at.elapsed().as_secs()).unwrap();
            (time(peer) - actual - elapsed).abs_diff(seconds) <= 2
        });
    }
}

/// The server's clock, in seconds.
fn time(peer: &mut RawClient) -> i64 {
    match peer.call("TIME") {
        Ok(Value::Array(actual)) => match &actual[0] {
            Value::BulkString(seconds) => str::from_utf8(seconds).unwrap().parse().unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn take(peer: &mut RawClient, policy: &str) -> Vec<i64> {
    peer.integers(&format!("SG.TAKE {policy} {policy}"))
}

/// Number of takes that are allowed at once.
fn passes(peer: &mut RawClient, policy: &str) -> usize {
    (0..).find(|_| take(peer, policy)[0] == 0).unwrap()
}

/// A jump forward by `J` admits at most the refill of `J`; one back admits nothing, and delays recovery by at most `J`.
#[test]
fn clock_jump_admits_at_most_its_refill() {
    let clocked = Clocked::start();
    let mut peer = clocked.server.raw_client();
    for (policy, refilled) in [
        ("gcra:10/1h:burst=20", 10),
        ("token-bucket:10/1h:burst=20:refill=interval", 10),
        ("sliding-log:20/1h", 20),
    ] {
        clocked.jump(&mut peer, 0);
        assert_eq!(passes(&mut peer, policy), 20, "{policy}");
        clocked.jump(&mut peer, 3600);
        assert_eq!(passes(&mut peer, policy), refilled, "{policy}, an hour on");
        clocked.jump(&mut peer, -3600);
        let actual = take(&mut peer, policy);
        assert_eq!(actual[0], 0, "{policy}, two hours back");
        // From empty, the first unit returns within an hour and the two jumps.
        assert!(actual[3] <= 3 * 3_600_000_000, "{policy}: {actual:?}");
        println!("figure: {policy}: held for {} s two hours back", actual[3] / 1_000_000);
        clocked.jump(&mut peer, 3600);
        assert_eq!(passes(&mut peer, policy), 0, "{policy}, as before");
        peer.call(&format!("SG.RESET {policy}")).unwrap();
    }
}

/// A clock that jumps by a second to either side, ten times per second.
#[test]
fn clock_flapping_admits_at_most_its_refill() {
    let clocked = Clocked::start();
    let mut peer = clocked.server.raw_client();
    let policy = "gcra:50/1s:burst=10";
    let span = Duration::from_millis(size("SLUICEGATE_FLAPS_MS", 1000));
    let (begin, mut admitted, mut jumps) = (now(), 0, 0);
    while begin.elapsed() < span {
        jumps += 1;
        for offset in [-1, 1] {
            clocked.clock.set(offset);
            let half = now();
            while half.elapsed() < Duration::from_millis(50) {
                admitted += take(&mut peer, policy)[0];
                pause(Duration::from_micros(200));
            }
        }
    }
    let bound = 10 + 50 * i64::try_from(begin.elapsed().as_millis()).unwrap() / 1000 + 10 * jumps;
    clocked.clock.set(-1);
    let ending = now();
    eventually_true("it passes again", || take(&mut peer, policy)[0] == 1);
    println!(
        "figure: {admitted} admitted by a clock that flaps by 2 s, {jumps} times forward (bound \
         {bound}); then held for {} ms",
        ending.elapsed().as_millis()
    );
    assert!(admitted <= bound && admitted >= 10, "{admitted} of {bound}");
}
