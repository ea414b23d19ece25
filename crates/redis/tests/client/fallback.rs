//! Admissions by `on_error: local` over several outages (RELIABILITY 46).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::{
    KeyedOperation, OnError, Operation, Policy, PreparedPolicy, Request, Share, Source, Store,
};
use sluicegate_redis::{Options, RedisStore};

use sluicegate_testing::{Engine, Server, now, size};

use crate::{
    proxy::{Fault, Proxy},
    servers::{eventually_true, patient, store_of},
};

/// Every algorithm, 100 units in a time in which next to nothing recovers.
const POLICIES: [&str; 8] = [
    "gcra:100/1h",
    "token-bucket:100/1h",
    "leaky-bucket:100/1h",
    "token-bucket:100/1h:refill=interval",
    "fixed-window:100/1h",
    "sliding-log:100/1h",
    "sliding-counter:100/1h",
    "fixed-window:1000/1h,sliding-log:100/1h",
];

/// How a request reaches a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Take,
    Costs3,
    Batch,
    MultiKey,
    Leased,
    Hold,
    MultiKeyHold,
}

struct Subject {
    key: Vec<u8>,
    policy: PreparedPolicy,
    way: Way,
    /// The share of the 100 units.
    most: u64,
    /// Units admitted in fallback.
    admitted: u64,
}

fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for text in POLICIES {
        let policy: Policy = text.parse().unwrap();
        for (share, most) in [(Share::ALL, 100), (Share::of(1, 2).unwrap(), 50)] {
            for way in [
                Way::Take,
                Way::Costs3,
                Way::Batch,
                Way::MultiKey,
                Way::Leased,
                Way::Hold,
                Way::MultiKeyHold,
            ] {
                let prepared = PreparedPolicy::new(&policy).on_error(OnError::Local(share));
                let policy = match way {
                    Way::Leased => match prepared.lease(8) {
                        Ok(leased) => leased,
                        Err(_) => continue,
                    },
                    _ => prepared,
                };
                let key = format!("k{}", subjects.len()).into_bytes();
                subjects.push(Subject { key, policy, way, most, admitted: 0 });
            }
        }
    }
    subjects
}

/// How long holds are open: longer than a test.
const TTL: Duration = Duration::from_hours(1);

/// The id of a hold.
fn next_id() -> [u8; 8] {
    static IDS: AtomicU64 = AtomicU64::new(0);
    IDS.fetch_add(1, Ordering::Relaxed).to_le_bytes()
}

/// Settles a hold for what was held. While the store is unavailable, this is an error.
async fn settle(store: &RedisStore, key: &[u8], policy: &PreparedPolicy, id: &[u8]) {
    let settle = Operation::Settle { id, used: None };
    match store.apply(Request::one(key, policy, settle)).await {
        Ok(_) => {}
        Err(error) => assert!(error.is_unavailable(), "{error}"),
    }
}

impl Subject {
    /// Sends one request: returns the units admitted, and the source of the decision.
    async fn send(&self, store: &RedisStore) -> (u64, Source) {
        let Self { key, policy, .. } = self;
        let cost = if self.way == Way::Costs3 { 3 } else { 1 };
        let (allowed, source) = match self.way {
            Way::Take | Way::Costs3 | Way::Leased => {
                let answer = store.take(key, policy, cost).await.unwrap();
                (answer.allowed(), answer.source)
            }
            Way::Batch => {
                let question = KeyedOperation { key, policy, operation: Operation::Take(1) };
                let answer = store.apply_many(&[question]).await.remove(0).unwrap();
                (answer.allowed(), answer.source)
            }
            Way::MultiKey => {
                let other = [key, &b":other"[..]].concat();
                let take = |key| KeyedOperation { key, policy, operation: Operation::Take(cost) };
                let answer =
                    store.apply(Request::all(&[take(key), take(&other)]).unwrap()).await.unwrap();
                (answer.allowed(), answer.source)
            }
            Way::Hold => {
                let id = &next_id();
                let hold = Operation::Hold { id, cost, ttl: Some(TTL) };
                let answer = store.apply(Request::one(key, policy, hold)).await.unwrap();
                if answer.allowed() {
                    settle(store, key, policy, id).await;
                }
                (answer.allowed(), answer.source)
            }
            Way::MultiKeyHold => {
                let id = &next_id();
                let other = [key, &b":other"[..]].concat();
                let operation = Operation::Hold { id, cost, ttl: Some(TTL) };
                let hold = |key| KeyedOperation { key, policy, operation };
                let holds = [hold(key), hold(&other)];
                let answer = store.apply(Request::all(&holds).unwrap()).await.unwrap();
                (answer.allowed(), answer.source)
            }
        };
        (if allowed { cost.into() } else { 0 }, source)
    }
}

/// How the store fails.
#[derive(Clone, Copy, Debug)]
enum Outage {
    Closed,
    Stopped,
    ReadOnly,
    Slow,
}

impl Outage {
    fn begin(self, server: &Server, proxy: &Proxy) {
        match self {
            Self::Closed => proxy.set(Fault::Closed),
            Self::Stopped => server.signal("-STOP"),
            Self::ReadOnly => server.query("REPLICAOF 127.0.0.1 1"),
            Self::Slow => proxy.set(Fault::Delay),
        }
    }

    fn end(self, server: &Server, proxy: &Proxy) {
        match self {
            Self::Stopped => server.signal("-CONT"),
            Self::ReadOnly => server.query("REPLICAOF NO ONE"),
            Self::Closed | Self::Slow => proxy.set(Fault::None),
        }
    }
}

/// The store fails repeatedly, and answers once in between: the fallback admits the share of the policy once, and not
/// once per failure.
async fn flap(outage: Outage) {
    let server = Server::start(Engine::Redis70);
    let proxy = Proxy::to(server.port()).await;
    let outages = size("SLUICEGATE_FLAPPING_OUTAGES", 4);
    let mut options = Options::default();
    options.deadline = Duration::from_millis(50);
    let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
    let probe = PreparedPolicy::new(&"gcra:1000000/1h".parse().unwrap());
    let back = async || {
        eventually_true("the store answers", async || {
            store.take(b"probe", &probe, 1).await.unwrap().source == Source::Store
        })
        .await;
    };
    let mut subjects = subjects();
    let begin = now();
    let mut answered = 0;
    for _ in 0..outages {
        back().await;
        for subject in &subjects {
            // At least one answer with the usage in the store.
            answered += u64::from(subject.send(&store).await.1 == Source::Store);
        }
        outage.begin(&server, &proxy);
        eventually_true("the store is unavailable", async || {
            store.take(b"probe", &probe, 1).await.unwrap().source == Source::Fallback
        })
        .await;
        for subject in &mut subjects {
            for _ in 0..110 {
                let (units, source) = subject.send(&store).await;
                subject.admitted += if source == Source::Fallback { units } else { 0 };
            }
        }
        outage.end(&server, &proxy);
    }
    back().await;
    let (mut worst, mut least) = (0.0_f64, f64::MAX);
    for Subject { policy, way, most, admitted, .. } in &subjects {
        // The recovery during the test, rounded up.
        let bound = most + begin.elapsed().as_secs() * most / 3600 + 1;
        assert!(*admitted <= bound, "{policy:?} {way:?}: {admitted} admitted, bound {bound}");
        let part = *admitted as f64 * 100.0 / *most as f64;
        (worst, least) = (worst.max(part), least.min(part));
    }
    println!(
        "figure: {outages} outages ({outage:?}) with {answered} answers in between: local fallback admits \
         {least:.0} to {worst:.0} % of its share in all, under {} policies (bound 100 % and what recovers)",
        subjects.len()
    );
    assert!(answered > 0 && worst > 50.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_fallback_flapping_connections_admits_its_share_once() {
    flap(Outage::Closed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_fallback_flapping_stops_admits_its_share_once() {
    flap(Outage::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_fallback_flapping_demotions_admits_its_share_once() {
    flap(Outage::ReadOnly).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_fallback_slow_store_admits_its_share_once() {
    flap(Outage::Slow).await;
}

/// A flood of keys during an outage fills the table of local states: no key that is in use leaves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_fallback_key_flood_forgets_no_key_in_use() {
    let mut server = Server::start(Engine::Redis70);
    let mut options = patient();
    options.max_local_memory = 2 << 20;
    options.max_known_keys = 64;
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    let policy: PreparedPolicy = "fixed-window:5/1h".parse().unwrap();
    let policy = policy.on_error(OnError::Local(Share::ALL));
    assert_eq!(store.take(b"early0", &policy, 5).await.unwrap().source, Source::Store);
    server.kill();
    let mut admitted = [0; 20];
    let mut decide = async || {
        for (index, admitted) in admitted.iter_mut().enumerate() {
            for _ in 0..10 {
                let answer = store.take(format!("early{index}").as_bytes(), &policy, 1).await;
                *admitted += u32::from(answer.unwrap().allowed());
            }
        }
        admitted
    };
    decide().await;
    let flood = size("SLUICEGATE_FALLBACK_FLOOD", 150_000);
    let mut passed = 0_u64;
    for key in 0..flood {
        let answer = store.take(&key.to_le_bytes(), &policy, 1).await.unwrap();
        passed += u64::from(answer.allowed());
    }
    let admitted = decide().await;
    println!(
        "figure: local fallback, 2 MiB of states and {flood} other keys, of which {passed} are admitted: 20 \
         keys that were in use before admit {admitted:?} of 5"
    );
    assert!(passed < flood, "the table is full");
    assert_eq!((admitted[0], &admitted[1..]), (0, &[5; 19][..]));
}

/// A policy change between two outages: units admitted in fallback stay counted. A reset clears them.
#[tokio::test]
async fn local_fallback_after_policy_change_keeps_usage() {
    let mut server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy =
        |text: &str| text.parse::<PreparedPolicy>().unwrap().on_error(OnError::Local(Share::ALL));
    let (old, new) = (policy("fixed-window:60/1h"), policy("fixed-window:100/1h"));
    let decide = async |policy: &PreparedPolicy| {
        let mut admitted = 0;
        for _ in 0..110 {
            let answer = store.take(b"k", policy, 1).await.unwrap();
            admitted += u32::from(answer.allowed() && answer.source == Source::Fallback);
        }
        admitted
    };
    assert_eq!(store.take(b"k", &old, 20).await.unwrap().source, Source::Store);
    server.kill();
    // 20 of 60 are in use, by the last answer of the store under the policy of that time.
    assert_eq!(decide(&new).await, 80);
    server.restart();
    let back = async || {
        eventually_true("the store answers", async || {
            store.take(b"j", &old, 1).await.unwrap().source == Source::Store
        })
        .await;
    };
    back().await;
    let _ = store.take(b"k", &old, 1).await.unwrap();
    server.kill();
    assert_eq!(decide(&policy("fixed-window:120/1h")).await, 20);
    // A reset that fails changes nothing.
    assert!(store.apply(Request::one(b"k", &old, Operation::Reset)).await.is_err());
    assert_eq!(decide(&old).await, 0);
    server.restart();
    back().await;
    assert!(store.apply(Request::one(b"k", &old, Operation::Reset)).await.is_ok());
    server.kill();
    assert_eq!(decide(&old).await, 60);
    println!("figure: local fallback over policy changes admits 80, 20 and, after a reset, 60");
}

/// Under a limit of holds, a hold in fallback keeps its units until it is settled, and a renewed one until it then expires.
#[tokio::test]
async fn local_fallback_hold_keeps_its_units_until_it_is_settled() {
    let mut server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let half = OnError::Local(Share::of(1, 2).unwrap());
    let policy = "concurrency:4/1h".parse::<PreparedPolicy>().unwrap().on_error(half);
    server.kill();
    let hold = async |id: &[u8]| {
        let hold = Operation::Hold { id, cost: 1, ttl: None };
        let answer = store.apply(Request::one(b"k", &policy, hold)).await.unwrap();
        assert_eq!(answer.source, Source::Fallback);
        answer.allowed()
    };
    assert!(hold(b"a").await && hold(b"a").await, "it is open");
    assert!(hold(b"b").await && !hold(b"c").await);
    let renew = Operation::Renew { id: b"b", ttl: Some(Duration::from_millis(1)) };
    assert!(
        store.apply(Request::one(b"k", &policy, renew)).await.is_err_and(|it| it.is_unavailable())
    );
    eventually_true("it expires", async || hold(b"b2").await).await;
    let all = async |id| {
        let operation = Operation::Hold { id, cost: 1, ttl: None };
        let hold = |key| KeyedOperation { key, policy: &policy, operation };
        let holds = [hold(&b"other"[..]), hold(b"k")];
        store.apply(Request::all(&holds).unwrap()).await.unwrap().allowed()
    };
    assert!(!hold(b"c").await && !all(b"c").await);
    settle(&store, b"k", &policy, b"a").await;
    assert!(all(b"c").await && !hold(b"d").await);
    assert!(all(b"c").await, "it is open");
    settle(&store, b"other", &policy, b"c").await;
    assert!(!hold(b"d").await);
    settle(&store, b"k", &policy, b"c").await;
    assert!(hold(b"d").await && !hold(b"e").await);
}

/// A settle in a batch ends a hold in fallback, also if the store is available again and has no such hold.
#[tokio::test]
async fn local_fallback_hold_ends_by_a_settle_in_a_batch() {
    let mut server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy = "concurrency:1/1h".parse::<PreparedPolicy>().unwrap();
    let policy = policy.on_error(OnError::Local(Share::ALL));
    let hold = async |id| {
        let hold = Operation::Hold { id, cost: 1, ttl: None };
        let answer = store.apply(Request::one(b"k", &policy, hold)).await.unwrap();
        (answer.source, answer.allowed())
    };
    let settle = async |id| {
        let operation = Operation::Settle { id, used: None };
        let settle = KeyedOperation { key: b"k", policy: &policy, operation };
        store.apply_many(&[settle]).await.remove(0)
    };
    server.kill();
    assert_eq!(hold(b"a").await, (Source::Fallback, true));
    assert_eq!(hold(b"b").await, (Source::Fallback, false));
    assert!(settle(b"a").await.is_err_and(|it| it.is_unavailable()));
    assert_eq!(hold(b"b").await, (Source::Fallback, true));
    server.restart();
    let peek = Request::one(b"k", &policy, Operation::Peek(1));
    eventually_true("the store is available", async || {
        store.apply(peek).await.unwrap().source == Source::Store
    })
    .await;
    assert!(!settle(b"b").await.unwrap().allowed());
    server.kill();
    assert_eq!(hold(b"c").await, (Source::Fallback, true));
}

/// What the store last said about holds counts in fallback.
#[tokio::test]
async fn local_fallback_after_holds_admits_what_the_store_had_left() {
    for text in ["concurrency:10/1h", "token-bucket:10/1h", "fixed-window:10/1d"] {
        for several in [false, true] {
            let mut server = Server::start(Engine::Redis70);
            let store = store_of(&server).await;
            let policy = text.parse::<PreparedPolicy>().unwrap();
            let policy = policy.on_error(OnError::Local(Share::ALL));
            let hold = async |id: u8| {
                let (id, ttl) = ([id], Some(Duration::from_secs(600)));
                let operation = Operation::Hold { id: &id, cost: 1, ttl };
                let hold = |key| KeyedOperation { key, policy: &policy, operation };
                let both = [hold(&b"k"[..]), hold(b"l")];
                let request = if several { Request::all(&both).unwrap() } else { both[0].into() };
                let answer = store.apply(request).await.unwrap();
                (answer.source, answer.allowed())
            };
            for id in 1..=6 {
                assert_eq!(hold(id).await, (Source::Store, true), "{text}");
            }
            server.kill();
            for id in 7..=16 {
                assert_eq!(hold(id).await, (Source::Fallback, id <= 10), "{text}, {several}");
            }
        }
    }
}
