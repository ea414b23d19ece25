//! Three real Envoys divide one limit by the quota service, with the files of `examples/envoy`.

use std::{
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
/// The part of the limit that passes at least, once the shares fit the demand. On a busy machine, the demand varies with
/// the speed of the clients, and shares follow it.
const USED: f64 = 0.85;

/// A request that an Envoy has let pass: when it was sent, and when it was answered.
type Passed = (Instant, Instant);

/// The most that any interval has beyond the rate, in steps of 10 ms. A request is in an interval if it was sent and
/// answered in it: Envoy has decided it in between. An answer that a busy machine reads late is therefore never counted in
/// an interval after the decision.
fn excess(passed: &[Passed], start: Instant) -> f64 {
    const STEP: Duration = Duration::from_millis(10);
    let step_of = |at: Instant| {
        usize::try_from(at.duration_since(start).as_millis() / STEP.as_millis()).unwrap()
    };
    let steps = passed.iter().map(|&(_, answered)| step_of(answered) + 1).max().unwrap_or(0);
    let mut sent_in = vec![Vec::new(); steps];
    for &(sent, answered) in passed {
        sent_in[step_of(sent)].push(step_of(answered));
    }
    // Requests that were sent in this step or later, by the step of their answers.
    let mut answered_in = vec![0_u32; steps];
    let mut most = 0.0_f64;
    for (first, answered) in sent_in.iter().enumerate().rev() {
        answered.iter().for_each(|step| answered_in[*step] += 1);
        let mut count = 0;
        for (last, more) in answered_in.iter().enumerate().skip(first) {
            count += more;
            let length = (last + 1 - first) as f64 * STEP.as_secs_f64();
            most = most.max(f64::from(count) - length * RATE);
        }
    }
    most
}

/// Sends requests to an Envoy until `ends`, `rate` per second at most. Returns when they were sent, and those that passed.
fn load(address: &str, rate: f64, ends: Instant) -> (Vec<Instant>, Vec<Passed>) {
    let mut client = Client::connect(address);
    let (start, mut all, mut passed) = (now(), Vec::new(), Vec::new());
    while now() < ends {
        let (due, count) = (start.elapsed().as_secs_f64() * rate, all.len() as f64);
        if count >= due {
            pause(Duration::from_secs_f64((count - due + 1.0) / rate));
            continue;
        }
        let sent = now();
        all.push(sent);
        match client.get("/", &[]).code {
            200 => passed.push((sent, now())),
            429 => {}
            code => panic!("{code}"),
        }
    }
    (all, passed)
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
    let (start, seconds) = (now(), 25);
    let ends = start + Duration::from_secs(seconds);
    let loads: Vec<_> = thread::scope(|scope| {
        // Nearly all of the demand is at one Envoy.
        let demands = envoys.iter().zip([450.0, 45.0, 5.0]);
        let clients: Vec<_> = demands
            .flat_map(|(envoy, rate)| {
                [(); 3].map(|()| scope.spawn(move || load(&envoy.address, rate, ends)))
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let (sent, passed): (Vec<_>, Vec<_>) = loads.into_iter().unzip();
    let (sent, passed) = (sent.concat(), passed.concat());
    // After the third report of each Envoy.
    let measured = Duration::from_secs(10);
    let is_late = |at: &Instant| *at >= ends - measured;
    let demand = sent.iter().filter(|at| is_late(at)).count() as f64;
    let late = passed.iter().filter(|(sent, _)| is_late(sent)).count() as f64;
    let can = demand.min(RATE * measured.as_secs_f64());
    let excess = excess(&passed, start);
    println!(
        "figure: three Envoys with 90 % of the demand at one passed {:.1} % of the limit, or of the demand, in 10 s, and at most \
         {excess:.0} above the rate in any interval",
        late / can * 100.0
    );
    // The bound of docs/fleet.md is `burst + rate t + (burst / proxies) b` in any interval `t`. All buckets were made
    // before `start`, and each is used more often than it is abandoned: `b` is 0.
    assert!(excess <= BURST, "{excess}");
    assert!(late >= can * USED, "{late} of {can}");
}
