//! Holds whose replies are lost, through a proxy: the store repeats them, and each counts once.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use sluicegate_conformance::{MAX_HOLDS_OF_SCRIPTS, full_ledger};
use sluicegate_core::{
    HoldError, KeyedOperation, OnError, Operation, PreparedPolicy, Request, Retry, Source, Store,
    StoreError, Timestamp,
};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, size};

use crate::{
    proxy::{Fault, Proxy},
    servers::{eventually_true, pass, patient, store_of},
};

const FAULTS: [Fault; 5] = [Fault::Delay, Fault::Hole, Fault::Cut, Fault::Garbage, Fault::Reset];

/// Nothing drains during a test.
const RATE: &str = "fixed-window:1000000/365d";
const TTL: Option<Duration> = Some(Duration::from_secs(600));

/// A store behind a proxy, and the number of replies that were lost.
struct Faulty {
    store: RedisStore,
    proxy: Proxy,
    policy: PreparedPolicy,
    lost: AtomicUsize,
}

impl Faulty {
    async fn new(server: &Server) -> Self {
        let proxy = Proxy::to(server.port()).await;
        let mut options = Options::default();
        options.deadline = Duration::from_millis(60);
        let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
        Self { store, proxy, policy: RATE.parse().unwrap(), lost: AtomicUsize::new(0) }
    }

    /// Applies an operation until the store has answered: a client repeats a request without a reply. Returns whether
    /// it was allowed, and the number of requests.
    async fn hold(&self, fault: Fault, operation: Operation<'_>) -> (Option<Retry>, usize) {
        self.proxy.set(fault);
        let (mut retry, mut attempts) = (None, 0);
        eventually_true("a hold is answered by the store", async || {
            attempts += 1;
            let answer = self.store.apply(Request::one(b"k", &self.policy, operation)).await;
            if attempts == 1 && answer.is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            // A fault of one reply is over; the others end now.
            self.proxy.set(Fault::None);
            let answer = answer.ok().filter(|answer| answer.source == Source::Store);
            retry = answer.as_ref().and_then(|answer| answer.retry());
            answer.is_some()
        })
        .await;
        (retry, attempts)
    }
}

/// The charge equals the usage, and the open holds are those of lost streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_with_lost_replies_charge_what_was_used() {
    let server = Server::start(Engine::Redis70);
    let direct = store_of(&server).await;
    let faulty = Faulty::new(&server).await;
    let streams = size("SLUICEGATE_LOST_REPLIES", 8);
    let (mut charged, mut held, mut operations, mut repeats) = (0, 0, 0, 0);
    for fault in FAULTS {
        for stream in 0..streams {
            let id = format!("{fault:?} {stream}").into_bytes();
            let id = &*id;
            let (cost, used) =
                (10 + u32::try_from(stream).unwrap(), 3 * u32::try_from(stream).unwrap());
            // Each operation of a stream meets the fault in turn.
            let fault_of =
                |place| if stream % 4 == place || stream % 4 == 3 { fault } else { Fault::None };
            let hold = Operation::Hold { id, cost, ttl: TTL };
            let renew = Operation::Renew { id, ttl: TTL };
            let settle = Operation::Settle { id, used: Some(used) };
            for (operation, fault) in [(hold, fault_of(0)), (renew, fault_of(1))] {
                let (retry, attempts) = faulty.hold(fault, operation).await;
                assert_eq!(retry, None, "{operation:?} under {fault:?}");
                (operations, repeats) = (operations + 1, repeats + attempts - 1);
            }
            if stream % 5 == 4 {
                // The stream is lost.
                held += cost;
                continue;
            }
            let (retry, attempts) = faulty.hold(fault_of(2), settle).await;
            // The lost reply allowed the hold.
            assert!(matches!(retry, None | Some(Retry::Never)), "{fault:?}");
            (operations, repeats) = (operations + 1, repeats + attempts - 1);
            charged += used;
        }
    }
    let peek = direct.apply(Request::one(b"k", &faulty.policy, Operation::Peek(0))).await.unwrap();
    println!(
        "figure: {operations} operations on holds under {FAULTS:?}: {} failed at first, {repeats} repeated by the client; \
         {charged} units charged and {held} held, as without faults",
        faulty.lost.load(Ordering::Relaxed)
    );
    assert_eq!(1_000_000 - peek.remaining, charged + held);
    assert!(repeats > 0, "no reply was lost");
    // Those that stay open are these, to the id.
    let mut open = Vec::new();
    let collect = &mut |entry: Option<&sluicegate_core::Entry>, now| {
        open = entry.unwrap().holds(now).map(|hold| (hold.id.to_vec(), hold.units)).collect();
    };
    direct.read(b"k", collect).await.unwrap();
    let lost = (0..streams).filter(|stream| stream % 5 == 4);
    let expected: Vec<_> = FAULTS
        .into_iter()
        .flat_map(|fault| lost.clone().map(move |stream| (fault, stream)))
        .map(|(fault, stream)| {
            (format!("{fault:?} {stream}").into_bytes(), 10 + u32::try_from(stream).unwrap())
        })
        .collect();
    assert_eq!(open, expected);
}

/// The store itself repeats an operation within its deadline, so that its caller notices nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_with_a_cut_connection_is_repeated_by_the_store() {
    let server = Server::start(Engine::Redis70);
    let direct = store_of(&server).await;
    let proxy = Proxy::to(server.port()).await;
    let mut options = Options::default();
    options.deadline = Duration::from_secs(5);
    let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
    let policy: PreparedPolicy = RATE.parse().unwrap();
    let (mut charged, mut at_once, mut repeated) = (0, 0, 0);
    for round in 0..12 {
        let fault = [Fault::Cut, Fault::Garbage, Fault::Reset][round % 3];
        let id = format!("{fault:?} {round}").into_bytes();
        let id = &*id;
        for operation in [
            Operation::Hold { id, cost: 100, ttl: TTL },
            Operation::Renew { id, ttl: TTL },
            Operation::Settle { id, used: Some(7) },
        ] {
            eventually_true("the store answers", async || {
                store.take(b"j", &policy, 0).await.unwrap().source == Source::Store
            })
            .await;
            // A connection that breaks within 5 ms is replaced only after a pause.
            pass(Duration::from_millis(10)).await;
            proxy.set(fault);
            // A probe may have met the fault, and opened the breaker: then the hold fails, or falls back.
            let answer = store.apply(Request::one(b"k", &policy, operation)).await.ok();
            let answer = answer.filter(|answer| answer.source == Source::Store);
            at_once += usize::from(answer.is_some());
            let allowed = answer.map(|answer| answer.allowed());
            // The first copy of a settle has ended the hold, as the reply to the second one says.
            let is_settle = matches!(operation, Operation::Settle { .. });
            assert!(is_settle || allowed != Some(false), "{operation:?}, {fault:?}");
            repeated += usize::from(allowed == Some(false));
            eventually_true("the hold is answered by the store", async || {
                let answer = store.apply(Request::one(b"k", &policy, operation)).await;
                answer.is_ok_and(|answer| answer.source == Source::Store)
            })
            .await;
        }
        charged += 7;
        let peek = direct.apply(Request::one(b"k", &policy, Operation::Peek(0))).await.unwrap();
        assert_eq!(1_000_000 - peek.remaining, charged, "{fault:?}");
    }
    println!(
        "figure: 36 operations on holds whose replies were lost: {at_once} repeated by the store without an error; \
         {repeated} of 12 settles were actual that they had been applied; {charged} units charged"
    );
    assert!(repeated > 0);
}

/// The server applies a settle whose future was dropped after it was sent: units are free again.
#[tokio::test]
async fn settle_future_dropped_after_it_was_sent_drops_the_cached_denial() {
    let server = Server::start(Engine::Redis70);
    let direct = store_of(&server).await;
    let proxy = Proxy::to(server.port()).await;
    let mut options = patient();
    options.max_denial_cache = Duration::from_hours(1);
    let store = RedisStore::connect_with(&proxy.url(), options).await.unwrap();
    let policy: PreparedPolicy = "fixed-window:10/365d".parse().unwrap();
    let hold = Operation::Hold { id: b"h", cost: 10, ttl: TTL };
    assert!(store.apply(Request::one(b"k", &policy, hold)).await.unwrap().allowed());
    assert!(!store.take(b"k", &policy, 1).await.unwrap().allowed());
    let is_cached = || store.take(b"k", &policy, 1).now().is_some();
    assert!(is_cached());
    proxy.set(Fault::Hole);
    let settle = Operation::Settle { id: b"h", used: Some(0) };
    tokio::select! {
        answer = store.apply(Request::one(b"k", &policy, settle)) => panic!("{answer:?}"),
        _ = eventually_true("the hold is settled", async || {
            direct.apply(Request::one(b"k", &policy, Operation::Peek(10))).await.unwrap().allowed()
        }) => {}
    }
    assert!(!is_cached());
}

/// Requests and tokens of one provider, held together: repeated, and settled key by key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn take_all_with_an_id_and_lost_replies_holds_once() {
    let server = Server::start(Engine::Redis70);
    let direct = store_of(&server).await;
    let faulty = Faulty::new(&server).await;
    let requests: PreparedPolicy = "fixed-window:1000/365d".parse().unwrap();
    let keys = [b"{acme}:requests".as_slice(), b"{acme}:tokens"];
    let policies = [&requests, &faulty.policy];
    let mut used = 0;
    let rounds = u32::try_from(size("SLUICEGATE_LOST_REPLIES", 8)).unwrap() / 2;
    for (fault, round) in
        FAULTS.into_iter().flat_map(|it| (0..rounds).map(move |round| (it, round)))
    {
        let id = format!("{fault:?} {round}").into_bytes();
        let costs = [1, 4000];
        let holds = [0, 1].map(|side| KeyedOperation {
            key: keys[side],
            policy: policies[side],
            operation: Operation::Hold { id: &id, cost: costs[side], ttl: TTL },
        });
        faulty.proxy.set(fault);
        eventually_true("the hold is answered by the store", async || {
            let answer = faulty.store.apply(Request::all(&holds).unwrap()).await;
            faulty.proxy.set(Fault::None);
            answer.is_ok_and(|it| it.source == Source::Store && it.allowed())
        })
        .await;
        for (key, (policy, held)) in keys.into_iter().zip(policies.into_iter().zip(costs)) {
            let peek = direct.apply(Request::one(key, policy, Operation::Peek(0))).await.unwrap();
            let before = if held == 1 { used / 10 } else { used * 231 };
            assert_eq!(peek.limit - peek.remaining, before + held, "{fault:?}");
            let settle =
                Operation::Settle { id: &id, used: Some(if held == 1 { 1 } else { 2310 }) };
            faulty.proxy.set(fault);
            eventually_true("the settle is answered by the store", async || {
                let answer = faulty.store.apply(Request::one(key, policy, settle)).await;
                faulty.proxy.set(Fault::None);
                answer.is_ok_and(|it| it.source == Source::Store)
            })
            .await;
        }
        used += 10;
    }
    for (key, policy, expected) in
        [(keys[0], &requests, used / 10), (keys[1], &faulty.policy, used * 231)]
    {
        let peek = direct.apply(Request::one(key, policy, Operation::Peek(0))).await.unwrap();
        assert_eq!(peek.limit - peek.remaining, expected);
    }
    println!(
        "figure: {} holds of two keys whose replies were lost: {used} / 10 requests and {} tokens charged",
        used / 10,
        used * 231
    );
}

/// The store is available: no fallback allows a hold that does not fit in a ledger.
#[tokio::test]
async fn hold_of_a_full_ledger_is_an_error_and_no_fallback() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy: PreparedPolicy = "token-bucket:1000000/1h".parse().unwrap();
    let policy = policy.on_error(OnError::Allow);
    let (seconds, _): (u64, u64) = server.query("TIME");
    let now = Timestamp::from_micros(seconds * 1_000_000).unwrap();
    let mut set = redis::cmd("SET");
    set.arg("full").arg(full_ledger(policy.policy(), MAX_HOLDS_OF_SCRIPTS, 1, now));
    set.query::<()>(&mut server.connect()).unwrap();
    let hold = Operation::Hold { id: b"more", cost: 1, ttl: TTL };
    let full: Result<sluicegate_core::Answer, _> =
        Err(StoreError::Hold(HoldError::Full(MAX_HOLDS_OF_SCRIPTS)));
    for _ in 0..3 {
        assert_eq!(store.apply(Request::one(b"full", &policy, hold)).await, full);
        let both = [b"full".as_slice(), b"other"].map(|key| KeyedOperation {
            key,
            policy: &policy,
            operation: hold,
        });
        assert_eq!(store.apply(Request::all(&both).unwrap()).await, full);
        assert_eq!(store.apply_many(&both[..1]).await, std::slice::from_ref(&full));
    }
    let peek = store.apply(Request::one(b"full", &policy, Operation::Peek(0))).await.unwrap();
    assert_eq!(1_000_000 - peek.remaining, 4096);
    assert_eq!(server.query::<u64>("EXISTS other"), 0);
    assert_eq!(store.unavailable(), None);
}

/// An allowed operation does not look at each event for each hold: that would take minutes.
#[tokio::test]
async fn hold_of_a_full_ledger_under_a_log_is_decided_in_time() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy: PreparedPolicy = "sliding-log:1000000/1h".parse().unwrap();
    let (seconds, _): (u64, u64) = server.query("TIME");
    let now = Timestamp::from_micros(seconds * 1_000_000).unwrap();
    let mut set = redis::cmd("SET");
    set.arg("full").arg(full_ledger(policy.policy(), 65_536, 2, now));
    set.query::<()>(&mut server.connect()).unwrap();
    let taken = store.take(b"full", &policy, 1).await.unwrap();
    let left = 1_000_000 - 2 * 65_536 - 1;
    assert_eq!((taken.source, taken.decision.remaining), (Source::Store, left));
    let settle = Operation::Settle { id: &[0, 0, 0, 7], used: Some(1) };
    let settled = store.apply(Request::one(b"full", &policy, settle)).await.unwrap();
    assert_eq!((settled.source, settled.decision.remaining), (Source::Store, left + 1));
}
