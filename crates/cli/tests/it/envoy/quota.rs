//! Three real Envoys divide one limit by the quota service, with the files of `examples/envoy`.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use sluicegate_testing::{Engine, Server as Redis, eventually_within, now, pause};

use super::{
    File,
    proxy::{Client, Envoy, Upstream, example},
};
use crate::server::Server;

/// The limit of the example.
const RATE: f64 = 1000.0;
const BURST: f64 = 100.0;
/// Tokens of the bucket of one of eight Envoys.
const SHARE: f64 = 12.0;

/// The most that any interval has beyond the rate. `passed` is sorted.
fn excess(passed: &[Instant]) -> f64 {
    let (mut most, mut excess, mut last) = (0.0_f64, 0.0_f64, None);
    for at in passed {
        let elapsed = last.map_or(0.0, |last| at.duration_since(last).as_secs_f64());
        excess = (excess - elapsed * RATE).max(0.0) + 1.0;
        most = most.max(excess);
        last = Some(*at);
    }
    most
}

/// Sends requests to an Envoy until `ends`, `rate` per second at most, and notes those that pass.
fn load(address: &str, rate: f64, ends: Instant, passed: &Mutex<Vec<Instant>>) {
    let mut client = Client::connect(address);
    let (start, mut sent) = (now(), 0.0);
    while now() < ends {
        let due = start.elapsed().as_secs_f64() * rate;
        if sent >= due {
            pause(Duration::from_secs_f64((sent - due + 1.0) / rate));
            continue;
        }
        sent += 1.0;
        match client.get("/", &[]).code {
            200 => passed.lock().unwrap().push(now()),
            429 => {}
            code => panic!("{code}"),
        }
    }
}

#[test]
fn quota_three_envoys_divide_one_limit() {
    let redis = Redis::start(Engine::Redis70);
    let rules = File::new("quota", &example("quota-rules.yaml"));
    let url = redis.url();
    let server = Server::start(&["--rules", rules.0.to_str().unwrap(), "--store", &url]);
    let upstream = Upstream::start();
    let envoys: Vec<_> = (0..3)
        .map(|at| {
            let name = format!("quota-{at}");
            Envoy::start_with("quota.yaml", &name, &server.grpc, &upstream, str::to_owned)
        })
        .collect();
    // Each has a slot after its first request, which does not pass: nothing is assigned yet.
    for envoy in &envoys {
        let mut client = Client::connect(&envoy.address);
        assert_eq!(client.get("/", &[]).code, 429);
        eventually_within(Duration::from_secs(20), "a share is assigned", || {
            match client.get("/", &[]).code {
                200 => Ok(()),
                code => Err(code),
            }
        });
    }
    let passed = Mutex::new(Vec::new());
    let (start, seconds) = (now(), 25);
    let ends = start + Duration::from_secs(seconds);
    thread::scope(|scope| {
        // Nearly all of the demand is at one Envoy.
        for (envoy, rate) in envoys.iter().zip([450.0, 45.0, 5.0]) {
            for _ in 0..3 {
                let passed = &passed;
                scope.spawn(move || load(&envoy.address, rate, ends, passed));
            }
        }
    });
    let mut passed = passed.into_inner().unwrap();
    passed.sort();
    let measured = ends - Duration::from_secs(10);
    let late = passed.iter().filter(|at| **at >= measured).count();
    let excess = excess(&passed);
    println!(
        "figure: three Envoys with 90 % of the demand at one passed {late} of {} in 10 s, and at most {excess:.0} above the \
         rate in any interval",
        RATE * 10.0
    );
    // A busy machine may see requests later than Envoy passed them.
    assert!(excess <= BURST + 3.0 * SHARE + RATE, "{excess}");
    assert!(late as f64 > RATE * 10.0 / 2.0, "{late}");
}
