//! A primary that is cut off from its replica and the sentinels, with some of its clients, and the healing of
//! that (RELIABILITY 18).

use sluicegate_core::{PreparedPolicy, Source, Store};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, now, size};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use crate::{
    sentinel::{FAILOVER_TIMEOUT, sentinels, settled, url},
    servers::{eventually_true, eventually_within, pass},
};

const RATE: u64 = 200;
const BURST: u64 = 50;

/// A link to a server that can be cut: then nothing passes either way, and no connection is closed. Bytes that were
/// sent during the cut arrive after it, as TCP sends them again.
struct Wire {
    port: u16,
    open: watch::Sender<bool>,
}

impl Wire {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (open, watch) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut watch = watch.clone();
                tokio::spawn(async move {
                    if watch.wait_for(|open| *open).await.is_err() {
                        return;
                    }
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = carry(from_client, to_server, watch.clone()) => {}
                        () = carry(from_server, to_client, watch) => {}
                    }
                });
            }
        });
        Self { port: own, open }
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut watch: watch::Receiver<bool>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if watch.wait_for(|open| *open).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}

/// The units that the store admitted for one client, and when the last one was.
#[derive(Clone, Default)]
struct Admitted(Arc<Mutex<(u64, Option<Instant>)>>);

impl Admitted {
    fn get(&self) -> (u64, Option<Instant>) {
        *self.0.lock().unwrap()
    }

    /// Takes all available units, until it is stopped.
    fn load(&self, store: RedisStore, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<()> {
        let (admitted, policy) = (self.clone(), policy());
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = store.take(b"k", &policy, 1).await.unwrap();
                if answer.source == Source::Store && answer.allowed() {
                    let mut admitted = admitted.0.lock().unwrap();
                    *admitted = (admitted.0 + 1, Some(now()));
                }
                pass(Duration::from_millis(1)).await;
            }
        })
    }
}

fn policy() -> PreparedPolicy {
    format!("gcra:{RATE}/1s:burst={BURST}").parse().unwrap()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap()
}

async fn partition(needs_replica: bool) {
    let span = Duration::from_millis(size("SLUICEGATE_PARTITION_MS", 3000));
    let arguments: &[&str] = if needs_replica {
        &["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]
    } else {
        &[]
    };
    let primary = Server::with(Engine::Redis70, arguments);
    // All that is on the other side reaches the primary by this way.
    let wire = Wire::to(primary.port()).await;
    let replica =
        Server::with(Engine::Redis70, &["--replicaof", "127.0.0.1", &wire.port.to_string()]);
    eventually_true("the replica follows", async || {
        replica.query::<String>("INFO replication").contains("master_link_status:up")
    })
    .await;
    let sentinels = sentinels(wire.port, 500);
    settled(&sentinels).await;
    let mut options = Options::default();
    options.deadline = Duration::from_millis(100);
    // One client is on the side of the primary, another on that of the replica and the sentinels.
    let minority = RedisStore::connect_with(&primary.url(), options.clone()).await.unwrap();
    let majority = RedisStore::connect_with(&url(&sentinels), options).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (near, far) = (Admitted::default(), Admitted::default());
    let begin = now();
    let load = [
        near.load(minority.clone(), Arc::clone(&stop)),
        far.load(majority.clone(), Arc::clone(&stop)),
    ];
    eventually_true("both are admitted", async || near.get().0 > 20 && far.get().0 > 20).await;
    let cut = now();
    wire.open.send_replace(false);
    let promoted = eventually_within(FAILOVER_TIMEOUT, "the replica takes over", async || {
        let info = replica.try_query::<String>("INFO replication");
        info.is_ok_and(|info| info.contains("role:master"))
            && far.get().1.is_some_and(|at| at > cut + Duration::from_millis(500))
    })
    .await;
    pass(span.saturating_sub(cut.elapsed())).await;
    wire.open.send_replace(true);
    if span < Duration::from_secs(5) {
        // The commands of sentinels ten seconds after the partition has healed.
        primary.query::<()>(&format!("REPLICAOF 127.0.0.1 {}", replica.port()));
    }
    eventually_within(FAILOVER_TIMEOUT, "the old primary is demoted", async || {
        // Sentinels close its connections then.
        let info = primary.try_query::<String>("INFO replication");
        info.is_ok_and(|info| info.contains("role:slave"))
    })
    .await;
    eventually_true("its clients see that", async || minority.unavailable().is_some()).await;
    let healed = far.get().0;
    eventually_true("the other side is admitted", async || far.get().0 > healed + 5).await;
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    let elapsed = begin.elapsed();
    let ((near, last), (far, _)) = (near.get(), far.get());
    let both = millis(last.unwrap().saturating_duration_since(cut));
    let one = BURST + RATE * millis(elapsed) / 1000;
    // Two primaries admit at a time, the second of which may have lost writes that were not replicated.
    let bound = one + BURST + RATE * both / 1000;
    println!(
        "figure: partition of {} ms{}: the replica admits after {} ms, the old primary for {both} ms; {near} + \
         {far} admitted, {} beyond what one primary admits (bound {})",
        millis(span),
        if needs_replica { " with min-replicas-to-write 1" } else { "" },
        millis(promoted),
        (near + far).saturating_sub(one),
        bound - one,
    );
    assert!(near + far <= bound, "{near} + {far} admitted, bound {bound}");
    if needs_replica {
        // It counts replicas once a second, and ignores one that is a second late.
        assert!(both <= 3500, "{both} ms");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_admits_at_most_two_primaries() {
    partition(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_with_required_replicas_ends_with_the_lag() {
    partition(true).await;
}
