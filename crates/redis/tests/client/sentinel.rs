//! A primary with a replica that three sentinels watch, and its failovers (RELIABILITY 16).

use sluicegate_core::{PreparedPolicy, Source, Store};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, now, size};

use crate::servers::{eventually_true, eventually_within, pass};

/// How long sentinels may take for a failover. One that did not run for two seconds, on a busy machine, takes part in none
/// for 30 seconds (its "tilt mode").
pub(crate) const FAILOVER_TIMEOUT: Duration = Duration::from_secs(90);

/// Three sentinels that watch the primary at this port, and agree by two.
pub(crate) fn sentinels(port: u16, down_after_ms: u64) -> Vec<Server> {
    let watch = format!(
        "sentinel monitor main 127.0.0.1 {port} 2\nsentinel down-after-milliseconds main \
         {down_after_ms}\nsentinel failover-timeout main 1000"
    );
    (0..3).map(|_| Server::sentinel(&watch)).collect()
}

/// Waits until each sentinel has found the others and the replica.
pub(crate) async fn settled(sentinels: &[Server]) {
    eventually_true("the sentinels have found each other and the replica", async || {
        sentinels.iter().all(|sentinel| {
            let info: String = sentinel.query("INFO sentinel");
            info.contains("status=ok") && info.contains("slaves=1") && info.contains("sentinels=3")
        })
    })
    .await;
}

pub(crate) fn url(sentinels: &[Server]) -> String {
    let hosts: Vec<_> = sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    format!("redis+sentinel://{}/main", hosts.join(","))
}

pub(crate) async fn follows(replica: &Server) {
    eventually_true("the replica follows", async || {
        replica.query::<String>("INFO replication").contains("master_link_status:up")
    })
    .await;
}

/// The primary is killed under load, and comes back as the replica of the one that took over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failovers_cost_a_burst_each() {
    let rounds = size("SLUICEGATE_SENTINEL_FAILOVERS", 1);
    let (rate, burst) = (500, 100);
    let first = Server::start(Engine::Redis70);
    let port = first.port();
    let second = Server::with(Engine::Redis70, &["--replicaof", "127.0.0.1", &port.to_string()]);
    let (mut primary, mut replica) = (first, second);
    follows(&replica).await;
    let sentinels = sentinels(port, 1000);
    settled(&sentinels).await;
    let mut options = Options::default();
    options.deadline = Duration::from_millis(100);
    let store = RedisStore::connect_with(&url(&sentinels), options).await.unwrap();
    let policy: PreparedPolicy = format!("gcra:{rate}/1s:burst={burst}").parse().unwrap();
    let (stop, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begin = now();
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (store, policy) = (store.clone(), policy.clone());
            let (stop, decided) = (Arc::clone(&stop), Arc::clone(&decided));
            tokio::spawn(async move {
                let (mut admitted, mut denied_without) = (0_u64, 0_u64);
                while !stop.load(Ordering::Relaxed) {
                    let answer = store.take(b"k", &policy, 1).await.unwrap();
                    match answer.source {
                        Source::Fallback => denied_without += u64::from(!answer.allowed()),
                        _ => {
                            admitted += u64::from(answer.allowed());
                            decided.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    pass(Duration::from_micros(500)).await;
                }
                (admitted, denied_without)
            })
        })
        .collect();
    let (mut outages, mut slowest) = (Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        let before = decided.load(Ordering::Relaxed);
        eventually_true("takes are decided", async || {
            decided.load(Ordering::Relaxed) > before + 200
        })
        .await;
        primary.kill();
        let before = decided.load(Ordering::Relaxed);
        let killed = now();
        // A sentinel may need a second to see that the replica has followed its command.
        eventually_within(FAILOVER_TIMEOUT, "a sentinel names the replica", async || {
            sentinels.iter().any(|sentinel| {
                let command = "SENTINEL GET-MASTER-ADDR-BY-NAME main";
                let named = sentinel.try_query::<(String, u16)>(command);
                named.is_ok_and(|(_, port)| port == replica.port())
            })
        })
        .await;
        let found = eventually_true("the replica decides", async || {
            decided.load(Ordering::Relaxed) > before && store.unavailable().is_none()
        });
        slowest = slowest.max(found.await);
        outages.push(killed.elapsed().as_millis());
        std::mem::swap(&mut primary, &mut replica);
        if round + 1 < rounds {
            tokio::task::block_in_place(|| replica.restart());
            replica.query::<()>(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
            follows(&replica).await;
            settled(&sentinels).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (mut admitted, mut denied_without) = (0, 0);
    for task in load {
        let its = task.await.unwrap();
        (admitted, denied_without) = (admitted + its.0, denied_without + its.1);
    }
    let elapsed = u64::try_from(begin.elapsed().as_millis()).unwrap();
    let bound = burst + rate * elapsed / 1000 + rounds * burst;
    println!(
        "figure: {rounds} failovers by 3 sentinels: {admitted} admitted in {elapsed} ms (bound {bound}); \
         unavailable for {outages:?} ms, at most {} ms of it after a sentinel names the replica; {denied_without} takes denied \
         without the store",
        slowest.as_millis()
    );
    assert!(slowest <= Duration::from_secs(1), "{slowest:?}");
    assert!(admitted <= bound && denied_without > 0);
    assert!(outages.iter().all(|span| *span <= 5000), "{outages:?}");
}
