//! Leases in virtual time: eight clients on one key, the network between them and the server, partitions and
//! crashes, all from a seed (RELIABILITY 42). Only the clock and the server are virtual.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::{Entry, Operation, PreparedPolicy, Source, Store, Timestamp, apply};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    Options, RedisStore,
    net::virtual_server::{VirtualServer, now},
};

const CLIENTS: u64 = 8;
/// How long each run takes, in virtual time.
const SPAN: Duration = Duration::from_secs(6);

/// Numbers from a seed.
#[derive(Clone)]
struct Random(Arc<AtomicU64>);

impl Random {
    fn below(&self, most: u64) -> u64 {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }

    fn micros(&self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least + self.below(most - least))
    }
}

/// One run.
#[derive(Clone)]
struct World {
    random: Random,
    rule: PreparedPolicy,
    entry: Arc<Mutex<Option<Entry>>>,
    /// Until when each client is cut off.
    cut_until: Arc<[Mutex<Instant>]>,
    /// When what each client asked last was done.
    done_at: Arc<[Mutex<Timestamp>]>,
    /// Units that were taken and not given back.
    charged: Arc<AtomicU64>,
    /// What was admitted: when, and how much.
    admitted: Arc<Mutex<Vec<(Timestamp, u64)>>>,
    weather: Weather,
    /// How many times fewer requests come than at the most.
    calm: u32,
}

impl World {
    /// A store whose questions go to this world.
    fn store(&self, client: usize) -> RedisStore {
        let store = RedisStore::new("redis://127.0.0.1:1/", Options::default()).unwrap();
        let world = self.clone();
        let server: VirtualServer = Box::new(move |operation| {
            let (world, (answer, heard)) = (world.clone(), oneshot::channel());
            // The server applies it even if the client no longer waits for the reply.
            tokio::spawn(async move {
                sleep(world.random.micros(50, 2000)).await;
                let cut_until = *world.cut_until[client].lock();
                if Instant::now() < cut_until {
                    if world.weather != Weather::Late {
                        return;
                    }
                    sleep_until(cut_until).await;
                }
                let now = now();
                let decision =
                    apply(world.rule.policy(), &mut world.entry.lock(), now, operation).unwrap();
                match operation {
                    Operation::Take(cost) if decision.allowed() => {
                        world.charged.fetch_add(cost.into(), Ordering::Relaxed);
                    }
                    Operation::Refund(cost) => {
                        world.charged.fetch_sub(cost.into(), Ordering::Relaxed);
                    }
                    _ => {}
                }
                *world.done_at[client].lock() = now;
                sleep(world.random.micros(50, 2000)).await;
                if Instant::now() >= *world.cut_until[client].lock() {
                    let _ = answer.send(decision);
                }
            });
            Box::pin(async move {
                match heard.await {
                    Ok(decision) => Ok(decision),
                    Err(_) => std::future::pending().await,
                }
            })
        });
        assert!(store.inner().context.virtual_server.set(server).is_ok());
        store
    }

    /// Takes again and again.
    async fn client(self, client: usize) {
        let store = self.store(client);
        loop {
            let gap = self.random.micros(500, 6000) * self.calm;
            // A client that rests holds a lease that ends unused.
            let rests = self.weather != Weather::Healthy && self.random.below(60) == 0;
            let rest = if rests { self.random.micros(1000, 2_500_000) } else { Duration::ZERO };
            sleep(gap + rest).await;
            let cost = 1 + u32::from(self.random.below(8) == 0);
            let answer = store.take(b"k", &self.rule, cost).await.unwrap();
            if !answer.allowed() {
                continue;
            }
            let at = match answer.source {
                Source::Store => *self.done_at[client].lock(),
                Source::Lease => now(),
                other => panic!("{other:?} admits"),
            };
            self.admitted.lock().push((at, cost.into()));
        }
    }
}

/// What a run is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Healthy,
    /// Clients are cut off for a while, and crash; what they sent since then never arrives.
    Lossy,
    /// The same, but it arrives in the end.
    Late,
}

/// Runs one seed: what was admitted of what could be, and how much of the bound was reached, in percent.
async fn run(seed: u64, weather: Weather) -> (f64, f64) {
    let random = Random(Arc::new(AtomicU64::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) + 1)));
    // With a large burst, units are still owed when a lease ends, and go back.
    let (rate, burst) = (200 + 100 * random.below(10), 20 << random.below(8));
    let chunk = [4, 16, 64][usize::try_from(random.below(3)).unwrap()];
    let policy = format!("gcra:{rate}/1s:burst={burst}");
    let rule = policy.parse::<PreparedPolicy>().unwrap().lease(chunk).unwrap();
    let world = World {
        rule,
        entry: Arc::default(),
        cut_until: (0..CLIENTS).map(|_| Mutex::new(Instant::now())).collect(),
        done_at: (0..CLIENTS).map(|_| Mutex::new(now())).collect(),
        charged: Arc::default(),
        admitted: Arc::default(),
        weather,
        calm: match weather {
            Weather::Healthy => 1,
            Weather::Lossy | Weather::Late => 1 << random.below(4),
        },
        random,
    };
    let random = world.random.clone();
    let start = |client: usize| tokio::spawn(world.clone().client(client));
    let count = usize::try_from(CLIENTS).unwrap();
    let mut clients: Vec<_> = (0..count).map(start).collect();
    let begin = Instant::now();
    while begin.elapsed() < SPAN {
        sleep(random.micros(50_000, 400_000)).await;
        let client = usize::try_from(random.below(CLIENTS)).unwrap();
        match (weather, random.below(3)) {
            (Weather::Healthy, _) => {}
            (_, 0) => {
                clients[client].abort();
                clients[client] = start(client);
            }
            _ => {
                let until = Instant::now() + random.micros(10_000, 1_500_000);
                *world.cut_until[client].lock() = until;
            }
        }
    }
    let elapsed = begin.elapsed();
    clients.iter().for_each(tokio::task::JoinHandle::abort);

    let mut admitted = world.admitted.lock().clone();
    admitted.sort_unstable();
    let holders = CLIENTS * u64::from(chunk);
    // A unit that is given back late was taken longer ago than a lease lasts, so only the size of chunks
    // bounds what is given back.
    let beyond = if weather == Weather::Late { holders } else { holders.min(rate) };
    let bound = (burst + beyond) as f64;
    // The most of what any interval admits beyond its rate: over all of them, by their ends.
    let (mut most, mut until_now, mut last) = (0.0_f64, 0.0_f64, None);
    for (at, cost) in &admitted {
        let since: Duration = last.map_or(Duration::ZERO, |last: Timestamp| {
            Duration::from_micros(at.as_micros() - last.as_micros())
        });
        until_now = (until_now - since.as_secs_f64() * rate as f64).max(0.0) + *cost as f64;
        most = most.max(until_now);
        last = Some(*at);
    }
    assert!(
        most <= bound + 1e-6,
        "seed {seed}, {weather:?}: {policy} in chunks of {chunk} admits {most} beyond its rate, bound {bound}"
    );
    let units: u64 = admitted.iter().map(|it| it.1).sum();
    let charged = world.charged.load(Ordering::Relaxed);
    assert!(units <= charged, "seed {seed}, {weather:?}: {units} units used, {charged} charged");
    let could = burst as f64 + rate as f64 * elapsed.as_secs_f64();
    (units as f64 * 100.0 / could, most * 100.0 / bound)
}

fn seeds() -> u64 {
    sluicegate_testing::size("SLUICEGATE_LEASE_SEEDS", 10)
}

fn simulate(weather: Weather) {
    let (mut least, mut sum, mut closest) = (f64::MAX, 0.0, 0.0_f64);
    for seed in 0..seeds() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (used, reached) = runtime.block_on(run(seed, weather));
        (least, sum, closest) = (least.min(used), sum + used, closest.max(reached));
    }
    let mean = sum / seeds() as f64;
    println!(
        "figure: leases of {CLIENTS} clients, {} seeds of {} s ({weather:?}): 0 violations of the bound, of \
         which {closest:.0} % is reached; {mean:.1} % of the rate is used, {least:.1} % at the least",
        seeds(),
        SPAN.as_secs()
    );
    assert!(weather != Weather::Healthy || mean >= 95.0, "{mean}");
}

#[test]
fn lease_healthy_clients_stay_in_bounds_and_use_the_rate() {
    simulate(Weather::Healthy);
}

#[test]
fn lease_partitions_and_crashes_stay_in_bounds() {
    simulate(Weather::Lossy);
}

#[test]
fn lease_commands_that_arrive_late_stay_in_bounds() {
    simulate(Weather::Late);
}
