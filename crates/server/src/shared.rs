//! What all connections have in common.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustls::ServerConfig;
use sluicegate_core::{Clock, Timestamp};
use sluicegate_memory::SystemClock;
use sluicegate_resp::Version;
use tokio::sync::{Notify, watch};

use crate::{
    Config,
    blocks::Blocks,
    buffers::BufferBudget,
    dashboard::Hub,
    face::Face,
    home::Home,
    http::HostNames,
    incidents::Incidents,
    listen::Addresses,
    ruleset::Live,
    secret::Secret,
    state::Snapshots,
    stats::{Accepting, Stats},
    wait::WaitQueues,
};

/// How long a client may occupy its worker before others go first.
const TURN: Duration = Duration::from_micros(500);

/// What all connections have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) home: Home,
    /// The keys that an operator has blocked.
    pub(crate) blocks: Blocks,
    /// The rules in force.
    pub(crate) rules: Live,
    pub(crate) clock: SystemClock,
    pub(crate) lines: WaitQueues,
    pub(crate) clients: Clients,
    /// What hostile clients do.
    pub(crate) incidents: Incidents,
    /// What may be buffered for all clients together.
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) config: Config,
    pub(crate) addresses: Addresses,
    /// What each worker counts.
    pub(crate) workers: Box<[Arc<Stats>]>,
    pub(crate) accepting: Accepting,
    pub(crate) snapshots: Snapshots,
    pub(crate) dashboard: Hub,
    /// In the order of [`Face::ALL`].
    tls: [Option<Arc<ServerConfig>>; 3],
    password: Option<Secret>,
    /// What clients of HTTP may call the server.
    pub(crate) http_hosts: HostNames,
    /// What clients of HTTP must give.
    pub(crate) http_token: Option<Secret>,
}

impl Shared {
    pub(crate) fn new(
        mut config: Config,
        addresses: Addresses,
        home: Home,
        rules: Live,
        clock: SystemClock,
        tls: [Option<Arc<ServerConfig>>; 3],
    ) -> Self {
        let workers = config.workers.unwrap_or(1);
        Self {
            home,
            blocks: Blocks::default(),
            rules,
            clock,
            lines: WaitQueues::default(),
            clients: Clients::default(),
            incidents: Incidents::default(),
            buffers: Arc::new(BufferBudget::new(config.max_buffer_memory)),
            workers: (0..workers).map(|_| Arc::default()).collect(),
            accepting: Accepting::default(),
            snapshots: Snapshots::default(),
            dashboard: Hub::new(config.dashboard),
            tls,
            password: config.requirepass.take().as_deref().map(Secret::new),
            http_hosts: HostNames::new(&config, addresses.http),
            http_token: config.http_token.take().as_deref().map(Secret::new),
            config,
            addresses,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether a turn that began at `start` has taken so long that others should go first.
    #[inline]
    pub(crate) fn is_late(&self, start: Timestamp) -> bool {
        self.now() >= start + TURN
    }

    /// What `count` tells of all workers.
    pub(crate) fn sum(&self, count: impl Fn(&Stats) -> u64) -> u64 {
        self.workers.iter().map(|stats| count(stats)).sum()
    }

    /// What a client of `face` agrees on first, where it speaks TLS.
    pub(crate) fn tls(&self, face: Face) -> Option<&Arc<ServerConfig>> {
        self.tls[face.index()].as_ref()
    }

    /// Whether clients must give a password.
    pub(crate) const fn asks_for_password(&self) -> bool {
        self.password.is_some()
    }

    /// Whether `password` is the one. What it takes to tell does not depend on how much is right.
    pub(crate) fn knows(&self, password: &[u8]) -> bool {
        self.password.as_ref().is_none_or(|expected| expected.is(password))
    }
}

/// Who is connected.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    last_id: AtomicU64,
    connected: Mutex<Connected>,
}

/// How many clients of HTTP are taken in besides `--max-clients`, to ask about the health of the server.
pub(crate) const RESERVED_CLIENTS: usize = 16;

#[derive(Debug, Default)]
struct Connected {
    clients: HashMap<u64, Arc<Client>>,
    /// Those among them that are beyond `--max-clients`, the oldest first.
    reserved: VecDeque<Arc<Client>>,
    /// How many each worker has.
    of_worker: Vec<usize>,
    /// Which worker was the last to get one.
    last: usize,
}

/// The place of a client among all, until dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Arc<Client>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.clients.leave(&self.client);
    }
}

/// A client, as others see it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) face: Face,
    /// Whether it may only ask about the health of the server, since there are too many others.
    pub(crate) reserved: bool,
    /// Where it comes from, in words.
    pub(crate) address: String,
    /// The worker that serves it.
    pub(crate) worker: usize,
    pub(crate) since: Timestamp,
    pub(crate) details: Mutex<Details>,
    /// Its last command, as a place in the table of commands.
    pub(crate) command: AtomicUsize,
    killed: AtomicBool,
    kill: Notify,
}

impl Client {
    /// Has the client closed.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.kill.notify_one();
    }

    /// Whether somebody has.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Ready once somebody has.
    pub(crate) async fn killed(&self) {
        self.kill.notified().await;
    }
}

/// What a client has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) version: Version,
}

impl Clients {
    /// Takes in a client for the worker that has the fewest, unless there are too many already. A few
    /// clients of HTTP are taken in even then, to ask about health: the newest, so that none can keep
    /// others out.
    pub(crate) fn enter(shared: &Arc<Shared>, face: Face, address: String) -> Option<Seat> {
        let mut connected = shared.clients.connected.lock();
        let others = connected.clients.len() - connected.reserved.len();
        let reserved = others >= shared.config.max_clients;
        if reserved && face != Face::Http {
            return None;
        }
        if reserved
            && connected.reserved.len() >= RESERVED_CLIENTS
            && let Some(oldest) = connected.reserved.pop_front()
        {
            oldest.kill();
        }
        let workers = shared.workers.len();
        connected.of_worker.resize(workers, 0);
        // Of those that have as few, the next one in turn.
        let turns = (1..=workers).map(|turn| (connected.last + turn) % workers);
        let worker = turns.min_by_key(|&worker| connected.of_worker[worker]).unwrap_or(0);
        connected.of_worker[worker] += 1;
        connected.last = worker;
        let id = shared.clients.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Client {
            id,
            face,
            reserved,
            address,
            worker,
            since: shared.now(),
            details: Mutex::default(),
            command: AtomicUsize::new(usize::MAX),
            killed: AtomicBool::new(false),
            kill: Notify::new(),
        };
        let client = Arc::new(client);
        connected.clients.insert(id, Arc::clone(&client));
        if reserved {
            connected.reserved.push_back(Arc::clone(&client));
        }
        Some(Seat { shared: Arc::clone(shared), client })
    }

    fn leave(&self, client: &Client) {
        let mut connected = self.connected.lock();
        if connected.clients.remove(&client.id).is_some() {
            connected.of_worker[client.worker] -= 1;
            if client.reserved {
                connected.reserved.retain(|it| it.id != client.id);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.connected.lock().clients.len()
    }

    /// How many the worker at `index` has.
    pub(crate) fn of_worker(&self, index: usize) -> usize {
        self.connected.lock().of_worker.get(index).copied().unwrap_or(0)
    }

    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        let mut clients: Vec<_> = self.connected.lock().clients.values().cloned().collect();
        clients.sort_unstable_by_key(|client| client.id);
        clients
    }
}

/// Ready once the server is to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender is gone when the server was dropped instead.
    let _ = stopping.wait_for(|&stop| stop).await;
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, time::Instant};

    use sluicegate_memory::MemoryStore;

    use super::*;

    /// How long telling takes must not say how much was right: what is compared are digests, all of
    /// them. The times are printed; the machine is too noisy for more.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "what an operation costs is measured")]
    fn what_a_wrong_password_takes_does_not_tell_how_wrong_it_is() {
        let password = "correct horse battery staple";
        let mut config = Config { requirepass: Some(password.to_owned()), ..Config::default() };
        config.workers = Some(1);
        let addresses = Addresses { resp: config.listen, http: None, grpc: None };
        let (home, clock) = (Home::Memory(MemoryStore::new()), SystemClock::new());
        let shared =
            Shared::new(config, addresses, home, Live::default(), clock, [None, None, None]);
        let tries = [
            ("right", password.to_owned(), true),
            ("wrong in its first byte", format!("X{}", &password[1..]), false),
            ("wrong in its last byte", format!("{}X", &password[..password.len() - 1]), false),
            ("a byte short", password[1..].to_owned(), false),
            ("a byte long", format!("{password}X"), false),
        ];
        let mut times = [const { Vec::new() }; 5];
        for _ in 0..2_000 {
            // In turns, so that whatever else the machine does hits all alike.
            for ((_, given, right), times) in tries.iter().zip(&mut times) {
                let start = Instant::now();
                let known = shared.knows(black_box(given.as_bytes()));
                times.push(start.elapsed().as_nanos());
                assert_eq!(known, *right, "{given}");
            }
        }
        for ((name, ..), mut times) in tries.iter().zip(times) {
            let mean = times.iter().sum::<u128>() / times.len() as u128;
            times.sort_unstable();
            let median = times[times.len() / 2];
            println!("figure: a password {name}: median {median} ns, mean {mean} ns");
        }
    }
}
