//! One limit for a fleet: eight servers on one Redis that lease units, beside servers that ask each time, and beside servers
//! that have an eighth of the limit each. Also a decision from a lease, in this process.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    process::Command as Program,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use sluicegate_core::{Clock as _, PreparedPolicy, Source, Store, as_micros};
use sluicegate_memory::MemoryStore;
use sluicegate_redis::{Options, RedisStore};
use sluicegate_resp::{Value, encode_command};
use sluicegate_server::{Config, StoreConfig};
use sluicegate_testing::Engine;

use crate::{
    clock::{TscClock, instant, per_call},
    module::servers,
    others::Others,
    ours,
    redis::wire::Connection,
    report::{Bar, Peer, Table, median, time},
    resp::{
        peers,
        servers::{Server, free_address},
    },
};

/// Units per second, and at once.
const LIMIT: u64 = 10_000;
const BURST: u64 = 1_000;
const SERVERS: u64 = 8;
/// Units of a lease, and its lifetime in seconds.
const LEASE: u64 = 200;
const LIFETIME: u64 = 1;
/// Requests per second of all clients: more than the limit, and less.
const OVER: u64 = 15_000;
const UNDER: u64 = 8_000;
/// How often a client sends what is due.
const TICK: Duration = Duration::from_millis(4);

/// Requests of a batch at most: all of them count at the time of the reply.
const AT_ONCE: u64 = 32;

struct Sizes {
    rounds: usize,
    warm_up: Duration,
    measured: Duration,
    calls: u64,
}

/// How servers come to their decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lease,
    Ask,
    /// Each has an eighth of the limit.
    Part,
}

/// How the requests are distributed over the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Even,
    /// 90 % are at one server.
    AtOne,
    /// The same, but at another one each second.
    Moving,
    /// Even, and less than the limit.
    Below,
}

impl Way {
    const ALL: [Self; 3] = [Self::Lease, Self::Ask, Self::Part];

    const fn name(self) -> &'static str {
        match self {
            Self::Lease => "leases of 200",
            Self::Ask => "asking each time",
            Self::Part => "an eighth each",
        }
    }

    fn policy(self) -> String {
        let part = if self == Self::Part { SERVERS } else { 1 };
        format!("gcra:{}/1s:burst={}", LIMIT / part, BURST / part)
    }

    /// Starts a server: the `program`, or one in this process.
    fn start(self, redis: SocketAddr, program: Option<&Path>) -> io::Result<Server> {
        let url = format!("redis://{redis}");
        let lease = if self == Self::Lease { LEASE } else { 0 };
        let Some(program) = program else {
            let mut config = Config::default();
            let mut store = StoreConfig::new(url);
            store.lease = u32::try_from(lease).unwrap_or_default();
            config.store = (self != Self::Part).then_some(store);
            return Ok(Server::in_process(ours::serve_with(config)?.resp));
        };
        let address = free_address()?;
        let mut serve = Program::new(program);
        serve.env_remove("SLUICEGATE_CONFIG");
        serve.args(["serve", "--grpc", "off", "--http", "off", "--workers", "1"]);
        serve.args(["--listen", &address.to_string()]);
        if self != Self::Part {
            serve.args(["--store", &url]);
        }
        if self == Self::Lease {
            serve.args(["--lease", &lease.to_string()]);
        }
        let log = peers::folder()?.join(format!("fleet-{}.log", address.port()));
        Server::start_anywhere(serve, address, &log)
    }
}

impl Demand {
    const ALL: [Self; 4] = [Self::Even, Self::AtOne, Self::Moving, Self::Below];

    const fn name(self) -> &'static str {
        match self {
            Self::Even => "15 000/s, even",
            Self::AtOne => "15 000/s, 90 % at one",
            Self::Moving => "15 000/s, moving each second",
            Self::Below => "8 000/s, even",
        }
    }

    /// Requests per second at a server, so many seconds after the start.
    fn at(self, server: u64, seconds: u64) -> u64 {
        let busy = match self {
            Self::Even => return OVER / SERVERS,
            Self::Below => return UNDER / SERVERS,
            Self::AtOne => 0,
            Self::Moving => seconds % SERVERS,
        };
        if server == busy { OVER * 9 / 10 } else { OVER / 10 / (SERVERS - 1) }
    }
}

/// Requests that were sent together and allowed in part: when the reply came, how many passed, and how long the first one took.
#[derive(Clone, Copy, Debug)]
struct Batch {
    at: Duration,
    allowed: u64,
    took: Duration,
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Units that passed, of those of the limit.
    used: f64,
    /// Most units over the policy in any interval.
    over: f64,
    /// Requests to Redis for each decision.
    asked: f64,
    /// 99th percentile of the time of a request, in nanoseconds.
    p99: f64,
}

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick {
        let (warm_up, measured) = (Duration::from_millis(20), Duration::from_millis(60));
        Sizes { rounds: 1, warm_up, measured, calls: 1000 }
    } else {
        let (warm_up, measured) = (Duration::from_secs(1), Duration::from_secs(2));
        Sizes { rounds: 5, warm_up, measured, calls: 500_000 }
    };
    let bound = (SERVERS * LEASE).min(LIMIT * LIFETIME);
    println!("fleet: {} rounds, {SERVERS} servers, limit {LIMIT}/s, burst {BURST}", sizes.rounds);
    let program = if quick { None } else { Some(peers::ours()?) };
    let others = Others::start();
    let redis = servers::start(Engine::Redis70, &[])?;
    let mut all = vec![Vec::new(); Demand::ALL.len() * Way::ALL.len()];
    for _ in 0..sizes.rounds {
        for (index, (demand, way)) in pairs().enumerate() {
            all[index].push(measure((demand, way), redis.address, &sizes, program.as_deref())?);
        }
    }
    let mut table =
        Table::new(&["demand", "way", "used", "most over", "bound", "requests/decision", "p99"]);
    let mut bars = Table::comparison();
    for ((demand, way), figures) in pairs().zip(&all) {
        let of = |figure: fn(&Figures) -> f64| figures.iter().map(figure).collect::<Vec<_>>();
        let used = median(&of(|it| it.used));
        let over = of(|it| it.over).into_iter().fold(0.0, f64::max);
        let asked = median(&of(|it| it.asked));
        let p99 = median(&of(|it| it.p99));
        table.row(vec![
            demand.name().to_owned(),
            way.name().to_owned(),
            format!("{:.1} %", used * 100.0),
            format!("{over:.0}"),
            if way == Way::Lease { bound.to_string() } else { "0".to_owned() },
            format!("{asked:.4}"),
            time(p99),
        ]);
        if way != Way::Lease {
            continue;
        }
        let mut bar = |work: &str, ours: String, figure: f64, unit: &str, bar: Bar| {
            let work = format!("{}, {work}", demand.name());
            bars.compare(&work, ours, Peer::none(), figure, unit, bar);
        };
        bar("most over", format!("{over:.0}"), over, "units", Bar::AtMost(bound as f64));
        if demand == Demand::Below {
            bar("requests to Redis", format!("{asked:.4}"), asked, "a decision", Bar::AtMost(0.01));
        } else {
            bar("used", format!("{:.1} %", used * 100.0), used, "x", Bar::AtLeast(0.97));
        }
    }
    one_decision(redis.address, &sizes, &mut bars)?;
    println!("{table}\n{bars}");
    println!("{}", others.summary(redis.cpu()?.unwrap_or_default()));
    Ok(())
}

fn pairs() -> impl Iterator<Item = (Demand, Way)> {
    Demand::ALL.into_iter().flat_map(|demand| Way::ALL.map(|way| (demand, way)))
}

/// Starts the servers, and sends them the requests of their clients.
fn measure(
    (demand, way): (Demand, Way),
    redis: SocketAddr,
    sizes: &Sizes,
    program: Option<&Path>,
) -> io::Result<Figures> {
    let mut control = Connection::new(redis)?;
    control.call(&[b"FLUSHALL"])?;
    let started = (0..SERVERS).map(|_| way.start(redis, program));
    let servers: Vec<Server> = started.collect::<Result<_, _>>()?;
    let before = scripts(&mut control)?;
    let decided = Arc::new(AtomicU64::new(0));
    let (begin, length) = (instant(), sizes.warm_up + sizes.measured);
    let clients = servers.iter().zip(0..).map(|(server, number)| {
        let (address, decided) = (server.address, Arc::clone(&decided));
        let policy = way.policy();
        thread::spawn(move || -> io::Result<Vec<Batch>> {
            let mut connection = Connection::new(address)?;
            // Millionths of requests that are due.
            let (mut due, mut last, mut batches) = (0, Duration::ZERO, Vec::new());
            loop {
                let now = begin.elapsed();
                if now >= length {
                    return Ok(batches);
                }
                due += demand.at(number, now.as_secs()) * as_micros(now - last);
                last = now;
                while due >= 1_000_000 {
                    let count = (due / 1_000_000).min(AT_ONCE);
                    due -= count * 1_000_000;
                    let allowed = take(&mut connection, &policy, count)?;
                    let at = begin.elapsed();
                    decided.fetch_add(count, Ordering::Relaxed);
                    batches.push(Batch { at, allowed, took: at - now });
                }
                thread::sleep(TICK.saturating_sub(begin.elapsed() - now));
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut batches = Vec::new();
    for client in clients {
        let sent = client.join().map_err(|_| io::Error::other("a client has panicked"))?;
        batches.extend(sent?);
    }
    let asked = scripts(&mut control)?.saturating_sub(before);
    batches.sort_unstable_by_key(|it| it.at);
    let measured = batches.iter().filter(|it| it.at >= sizes.warm_up);
    let passed: u64 = measured.clone().map(|it| it.allowed).sum();
    let took: Vec<_> = measured.map(|it| it.took.as_nanos() as f64).collect();
    Ok(Figures {
        used: passed as f64 / (LIMIT as f64 * sizes.measured.as_secs_f64()),
        over: over(&batches),
        asked: asked as f64 / decided.load(Ordering::Relaxed).max(1) as f64,
        p99: p99(took),
    })
}

/// Sends so many takes at once. Returns how many are allowed.
fn take(connection: &mut Connection, policy: &str, count: u64) -> io::Result<u64> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        encode_command(&[b"SG.TAKE", b"fleet", policy.as_bytes()], &mut bytes);
    }
    connection.send(&bytes)?;
    let mut allowed = 0;
    for _ in 0..count {
        let Value::Array(values) = connection.receive()? else {
            return Err(io::Error::other("a take has no decision"));
        };
        allowed += u64::from(values.first() == Some(&Value::Integer(1)));
    }
    Ok(allowed)
}

/// The most units over the policy in any interval: a bucket of the same rate, from which the units that passed are taken.
fn over(batches: &[Batch]) -> f64 {
    let (mut level, mut last, mut most) = (0.0_f64, Duration::ZERO, 0.0_f64);
    for batch in batches {
        level = (level - LIMIT as f64 * (batch.at - last).as_secs_f64()).max(0.0);
        level += batch.allowed as f64;
        last = batch.at;
        most = most.max(level - BURST as f64);
    }
    most
}

/// The 99th percentile.
fn p99(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let place = figures.len() * 99 / 100;
    figures.get(place).copied().unwrap_or(f64::NAN)
}

/// Scripts that Redis has run.
fn scripts(connection: &mut Connection) -> io::Result<u64> {
    let Value::Bulk(text) = connection.call(&[b"INFO", b"commandstats"])? else {
        return Err(io::Error::other("INFO has no text"));
    };
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|it| it.strip_prefix("cmdstat_evalsha:calls="));
    let count = line.and_then(|it| it.split(',').next()?.parse().ok());
    Ok(count.unwrap_or(0))
}

/// A decision from a lease, beside one of a store in this process.
fn one_decision(redis: SocketAddr, sizes: &Sizes, table: &mut Table) -> io::Result<()> {
    let policy = |text: &str| text.parse::<PreparedPolicy>().map_err(io::Error::other);
    let leased = policy("gcra:1000000000/1s:burst=1000000000")?;
    let leased = leased.lease(1_000_000_000).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut options = Options::default();
    options.deadline = Duration::from_secs(5);
    options.lease_lifetime = Duration::from_hours(1);
    let store = runtime
        .block_on(RedisStore::connect_with(&format!("redis://{redis}"), options))
        .map_err(io::Error::other)?;
    let ask = async || store.take(b"hot", &leased, 1).await.map_err(io::Error::other);
    // Chunks double until one is enough for all calls, and was just taken.
    let (needed, mut taken) = (sizes.calls * sizes.rounds as u64, 0);
    runtime.block_on(async {
        while ask().await?.source == Source::Lease || taken <= needed {
            taken += 1;
        }
        io::Result::Ok(())
    })?;
    let (memory, clock) = (MemoryStore::new(), TscClock::new());
    let numbered = memory.prepare(leased.policy(), clock.now());
    let (mut ours, mut theirs, mut from_lease) = (Vec::new(), Vec::new(), 0_u64);
    for _ in 0..sizes.rounds {
        ours.push(per_call(sizes.calls, || {
            let answer = store.take(b"hot", &leased, 1).now();
            from_lease += u64::from(answer.is_some_and(|it| it.is_ok()));
        }));
        theirs.push(per_call(sizes.calls, || {
            let take = sluicegate_core::Operation::Take(1);
            let _ = memory.apply_numbered(b"hot", &numbered, clock.now(), take);
        }));
    }
    if from_lease < needed {
        return Err(io::Error::other(format!("{from_lease} decisions came from the lease")));
    }
    let peer = Peer::new("a store in memory", time(median(&theirs)));
    let (work, ours) = ("a decision from a lease, Rust", median(&ours));
    table.compare(work, time(ours), peer, ours, "ns", Bar::AtMost(60.0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(millis: u64, allowed: u64) -> Batch {
        Batch { at: Duration::from_millis(millis), allowed, took: Duration::ZERO }
    }

    #[test]
    fn over_is_the_excess_of_the_worst_interval() {
        // The burst, and then what is refilled: nothing is over.
        assert_eq!(over(&[batch(0, 1000), batch(10, 100), batch(510, 5000)]), 4000.0);
        assert_eq!(over(&[batch(0, 1000), batch(10, 100), batch(20, 100)]), 0.0);
        assert_eq!(over(&[batch(0, 1000), batch(10, 150)]), 50.0);
    }

    #[test]
    fn demand_of_all_servers_is_the_whole() {
        for demand in Demand::ALL {
            for second in 0..3 {
                let all: u64 = (0..SERVERS).map(|it| demand.at(it, second)).sum();
                let whole = if demand == Demand::Below { UNDER } else { OVER };
                assert!(all.abs_diff(whole) < SERVERS, "{demand:?}: {all}");
            }
        }
    }
}
