//! A miniature gateway for a language model: its processes share the requests and tokens per minute, and the streams in
//! progress, that a provider allows. Clients disconnect, and processes are killed. The provider refuses nothing, and
//! at least 95 % of its limit is used.
//!
//! Time is virtual, so 10 000 requests take seconds: `cargo run --example token_budget`

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use parking_lot::Mutex;
use sluicegate::{Limiter, LocalLimiter, RuntimeClock};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use self::{gateway::Gateway, provider::Provider};

mod gateway;
mod network;
mod process;
mod provider;

/// Processes of the gateway.
const GATEWAYS: usize = 4;
const CLIENTS: usize = 40;
/// One of this many clients disconnects.
const DISCONNECTS: u64 = 30;
/// One process is killed in this time.
const KILL_TIME: Duration = Duration::from_secs(20);

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), sluicegate::Error> {
    for limits in [MANY_TOKENS, MANY_REQUESTS] {
        println!("{}\n", run(limits, 10_000).await?);
    }
    Ok(())
}

/// The limits of the provider.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Requests a minute.
    pub(crate) requests: u32,
    /// Tokens a minute.
    pub(crate) tokens: u32,
    /// Streams in progress.
    pub(crate) streams: u32,
}

/// Limits of which the tokens are used up first.
pub(crate) const MANY_TOKENS: Limits = Limits { requests: 1000, tokens: 100_000, streams: 20 };
/// Limits of which the requests are used up first.
pub(crate) const MANY_REQUESTS: Limits = Limits { requests: 600, tokens: 150_000, streams: 20 };

/// Sends `requests` through the gateway.
pub(crate) async fn run(limits: Limits, requests: u32) -> Result<Account, sluicegate::Error> {
    let provider = Provider::new(limits);
    let store = Limiter::from(LocalLimiter::with_clock(RuntimeClock::new()));
    let start = || Gateway::new(limits, &provider, &store);
    let gateways: Result<Vec<_>, _> = (0..GATEWAYS).map(|_| start().map(Mutex::new)).collect();
    let crowd = Arc::new(Crowd {
        gateways: gateways?,
        left: AtomicU32::new(requests),
        completed: AtomicU32::new(0),
        disconnected: AtomicU32::new(0),
        random: Random::new(3),
    });
    let began = Instant::now();
    let mut clients: JoinSet<()> =
        (0..CLIENTS).map(|_| Arc::clone(&crowd).send_until_none_is_left()).collect();
    let mut kills = 0;
    while timeout(KILL_TIME, clients.join_next()).await.is_err() {
        let mut gateway = crowd.gateways[kills as usize % GATEWAYS].lock();
        gateway.kill();
        *gateway = start()?;
        kills += 1;
    }
    let time = began.elapsed();
    let account = provider.records(|records| Account {
        time,
        completed: crowd.completed.load(Ordering::Relaxed),
        disconnected: crowd.disconnected.load(Ordering::Relaxed),
        kills,
        refused: records.refused,
        requests: Usage::of_window(&records.requests),
        tokens: Usage::of_window(&records.tokens),
        most_streams: records.streams.peak,
        max_streams: records.streams.limit,
        requests_sent: requests,
    });
    clients.join_all().await;
    Ok(account)
}

/// The clients.
struct Crowd {
    gateways: Vec<Mutex<Arc<Gateway>>>,
    left: AtomicU32,
    completed: AtomicU32,
    disconnected: AtomicU32,
    random: Random,
}

impl Crowd {
    async fn send_until_none_is_left(self: Arc<Self>) {
        let one_less = |left: u32| left.checked_sub(1);
        while let Ok(left) = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
        {
            let gateway = self.gateways[left as usize % GATEWAYS].lock().connect();
            let words = self.random.between(10, 40) as usize;
            let prompt = Bytes::from("word ".repeat(words));
            let max_tokens = self.random.between(50, 200);
            let request = Request::post("/v1/chat")
                .header("max-tokens", max_tokens)
                .body(Full::new(prompt))
                .expect("a valid request");
            let exchange = async {
                let response = network::send(gateway, request).await.ok()?;
                let success = response.status().is_success();
                response.into_body().collect().await.ok().filter(|_| success)
            };
            let disconnects = self.random.next().is_multiple_of(DISCONNECTS);
            let patience = if disconnects {
                Duration::from_millis(self.random.between(1, 3000).into())
            } else {
                Duration::from_hours(1)
            };
            match timeout(patience, exchange).await {
                Ok(Some(_)) => self.completed.fetch_add(1, Ordering::Relaxed),
                // Its gateway was killed.
                Ok(None) => 0,
                Err(_) => self.disconnected.fetch_add(1, Ordering::Relaxed),
            };
        }
    }
}

/// The results, counted by the provider and the clients.
pub(crate) struct Account {
    pub(crate) time: Duration,
    pub(crate) requests_sent: u32,
    pub(crate) completed: u32,
    pub(crate) disconnected: u32,
    pub(crate) kills: u32,
    pub(crate) refused: u32,
    pub(crate) requests: Usage,
    pub(crate) tokens: Usage,
    pub(crate) most_streams: u32,
    pub(crate) max_streams: u32,
}

/// The used part of a limit per minute.
pub(crate) struct Usage {
    pub(crate) limit: u32,
    pub(crate) peak: u32,
    /// The part of the limit that was used: 0 to 1.
    pub(crate) utilization: f64,
}

impl Usage {
    fn of_window(window: &provider::Window) -> Self {
        Self { limit: window.limit, peak: window.peak, utilization: window.utilization() }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { completed, disconnected, kills, refused, requests_sent, .. } = self;
        let broken = requests_sent - completed - disconnected;
        let minutes = self.time.as_secs_f64() / 60.0;
        writeln!(formatter, "{requests_sent} requests in {minutes:.1} minutes")?;
        writeln!(formatter, "  completed {completed:>22}")?;
        writeln!(formatter, "  disconnected {disconnected:>19}")?;
        writeln!(formatter, "  broken by {kills:>2} kills {broken:>13}")?;
        writeln!(formatter, "  refused by the provider {refused:>8}")?;
        writeln!(formatter, "                      allowed   at most    used")?;
        for (name, usage) in [("requests", &self.requests), ("tokens", &self.tokens)] {
            let Usage { limit, peak, utilization } = usage;
            let percent = utilization * 100.0;
            writeln!(formatter, "  {name:>8} a minute {limit:>10} {peak:>9} {percent:>6.1}%")?;
        }
        write!(formatter, "  streams at a time {:>9} {:>9}", self.max_streams, self.most_streams)
    }
}

/// A header with a number; 0 if it is missing or invalid.
fn header(headers: &HeaderMap, name: &str) -> u32 {
    headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Random numbers, the same in each run (the generator SplitMix64).
pub(crate) struct Random(AtomicU64);

impl Random {
    const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    fn next(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from `min` to `max`.
    fn between(&self, min: u32, max: u32) -> u32 {
        let width = u64::from(max - min) + 1;
        min + u32::try_from(self.next() % width).expect("it is less than the width")
    }

    /// A time from 1 ms to `max`.
    fn up_to(&self, max: Duration) -> Duration {
        Duration::from_millis(
            self.between(1, u32::try_from(max.as_millis()).expect("short")).into(),
        )
    }
}
