//! The module instead of scripts, where a server has it: also while it is loaded and unloaded.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use sluicegate_core::{
    Entry, KeyedOperation, Operation, PreparedPolicy, Request, Retry, Source, Store,
};
use sluicegate_redis::{Options, RedisStore};
use sluicegate_testing::{Engine, Server, module, size};

use crate::servers::{eventually_true, patient};

const ENGINES: [Engine; 2] = [Engine::Redis70, Engine::Valkey91];

fn with_module(engine: Engine) -> Server {
    Server::with(engine, &["--loadmodule", module()])
}

/// A store that uses no module, or soon sees that there is one.
async fn store(server: &Server, modules: bool) -> RedisStore {
    let mut options: Options = patient();
    options.max_denial_cache = Duration::ZERO;
    options.look_for_module = modules.then_some(Duration::from_millis(5));
    RedisStore::connect_with(&server.url(), options).await.unwrap()
}

/// A user who may run no scripts holds, and takes from several keys, by the module.
#[tokio::test]
async fn module_without_scripts_has_holds_and_several_keys() {
    for engine in ENGINES {
        let server = with_module(engine);
        server.query::<()>(
            "ACL SETUSER limiter on >pw ~* +@connection +command|info +@all -@scripting",
        );
        let url = format!("redis://limiter:pw@127.0.0.1:{}/", server.port());
        let store = RedisStore::connect_with(&url, patient()).await.unwrap();
        let before = store.counters().module;
        let policy: PreparedPolicy = "concurrency:2/1h".parse().unwrap();
        let hold = |id| Operation::Hold { id, cost: 1, ttl: None };
        let settle = Operation::Settle { id: b"a", used: None };
        for (operation, expected) in [(hold(b"a"), true), (settle, true), (settle, false)] {
            let answer = store.apply(Request::one(b"k", &policy, operation)).await.unwrap();
            assert_eq!((answer.allowed(), answer.source), (expected, Source::Store));
        }
        let both =
            |operation| [b"k", b"l"].map(|key| KeyedOperation { key, policy: &policy, operation });
        let holds = both(hold(b"b"));
        let answer = store.apply(Request::all(&holds).unwrap()).await.unwrap();
        assert_eq!((answer.allowed(), answer.source), (true, Source::Store));
        let answer = store.apply(Request::one(b"l", &policy, hold(b"c"))).await.unwrap();
        assert_eq!(answer.remaining, 0);
        let peeks = both(Operation::Peek(1));
        let answer = store.apply(Request::all(&peeks).unwrap()).await.unwrap();
        assert_eq!((answer.key, answer.source), (1, Source::Store));
        assert_eq!(store.counters().module - before, 7);
        assert_eq!(store.counters().unavailable, 0);
    }
}

/// Module and scripts read each other's state, in any order, for every operation.
#[tokio::test]
async fn module_and_scripts_alternate_on_the_same_bytes() {
    for engine in ENGINES {
        let server = with_module(engine);
        let stores = [store(&server, true).await, store(&server, false).await];
        let policies: Vec<PreparedPolicy> = [
            "gcra:7/1h:burst=40",
            "leaky-queue:9/1h:capacity=40",
            "token-bucket:5/1h:burst=40:refill=interval",
            "fixed-window:40/day:tz=Asia/Tokyo",
            "sliding-log:40/1h:keep=2h",
            "sliding-counter:40/1d:count=all",
            "sliding-log:40/1h,fixed-window:41/1h,gcra:3/1h:burst=42",
        ]
        .iter()
        .map(|text| text.parse().unwrap())
        .collect();
        for policy in &policies {
            let key = policy.policy().to_string().into_bytes();
            let mut remaining = 40;
            for turn in 0..60_u32 {
                let store = &stores[usize::from(turn % 3 == 0)];
                let operation = match turn % 10 {
                    3 => Operation::Peek(3),
                    5 => Operation::Charge(2),
                    7 => Operation::Refund(1),
                    _ => Operation::Take(1),
                };
                let answer = store.apply(Request::one(&key, policy, operation)).await.unwrap();
                // Units that recover between the calls take an hour.
                remaining = match operation {
                    Operation::Charge(cost) => remaining - i64::from(cost),
                    Operation::Refund(cost) => remaining + i64::from(cost),
                    Operation::Take(_) if answer.allowed() => remaining - 1,
                    _ => remaining,
                };
                let actual = i64::from(answer.remaining);
                assert_eq!(
                    actual,
                    remaining.max(0),
                    "{engine:?} {policy:?} turn {turn} {answer:?}"
                );
                let mut get = redis::cmd("GET");
                let bytes: Vec<u8> = get.arg(&key).query(&mut server.connect()).unwrap();
                assert_eq!(Entry::decode(&bytes).unwrap().policy(), policy.policy());
                if remaining <= 0 {
                    break;
                }
            }
            let refused = stores.each_ref().map(async |store| {
                let answer = store.take(&key, policy, 1000).await.unwrap();
                answer.retry() == Some(Retry::Never)
            });
            assert_eq!(join_all(refused).await, [true, true]);
        }
        // Two policies: usage carries over.
        let answers = [
            stores[0].take(b"c", &policies[0], 4).await.unwrap().remaining,
            stores[1].take(b"c", &policies[3], 4).await.unwrap().remaining,
            stores[0].take(b"c", &policies[4], 4).await.unwrap().remaining,
        ];
        assert_eq!(answers, [36, 32, 28]);
        let fresh = stores.each_ref().map(async |store| {
            store
                .apply(Request::one(b"c", &policies[6], Operation::Reset))
                .await
                .unwrap()
                .to_integers()
        });
        assert_eq!(join_all(fresh).await, [[1, 40, 40, 0, 0, 0, 0]; 2]);
        let [by_module, by_script] = stores.each_ref().map(|store| store.counters());
        // A new connection takes and resets once, to see whether it may.
        let expected = by_module.store + 2;
        assert_eq!((by_module.module, by_script.module), (expected, 0), "{engine:?}");
    }
}

#[tokio::test]
async fn module_reservation_is_that_of_the_policy() {
    let server = with_module(Engine::Redis70);
    let store = store(&server, true).await;
    let policy: PreparedPolicy = "gcra:1/1h:burst=1".parse().unwrap();
    let wait =
        |hours: u64| Operation::Reserve { cost: 1, max_wait: Duration::from_secs(3600 * hours) };
    assert!(store.apply(Request::one(b"r", &policy, wait(0))).await.unwrap().delay().is_zero());
    assert!(
        store.apply(Request::one(b"r", &policy, wait(1))).await.unwrap().delay().as_secs() > 3590
    );
    assert!(!store.apply(Request::one(b"r", &policy, wait(1))).await.unwrap().allowed());
    let longest = Operation::Reserve { cost: 1, max_wait: Duration::MAX };
    assert!(store.apply(Request::one(b"r", &policy, longest)).await.unwrap().allowed());
    let window: PreparedPolicy = "fixed-window:1/1h".parse().unwrap();
    let error = store.apply(Request::one(b"w", &window, wait(1))).await.unwrap_err();
    assert!(error.to_string().starts_with("reserve needs every limit"), "{error}");
    let _: i64 = server.query("RPUSH list x");
    let error = store.take(b"list", &policy, 1).await.unwrap_err();
    assert!(error.to_string().contains("does not hold a string"), "{error}");
}

/// No request fails, and no unit is lost or given twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn module_loaded_and_unloaded_under_load_causes_no_error() {
    const UNITS: u32 = 3_000;
    let rounds = size("SLUICEGATE_MODULE_ROUNDS", 6);
    // It is built before there are deadlines.
    let module = module();
    for engine in ENGINES {
        let server = Server::with(engine, &["--enable-module-command", "yes"]);
        let store = store(&server, true).await;
        let policy: PreparedPolicy = "fixed-window:3000/1h".parse().unwrap();
        let others: [PreparedPolicy; 2] =
            ["gcra:9/1h".parse().unwrap(), "sliding-log:9/1h".parse().unwrap()];
        let stop = AtomicBool::new(false);
        let takers = (0..8_u32).map(async |taker| {
            let mut admitted = 0;
            while !stop.load(Ordering::Relaxed) {
                if taker % 2 == 0 {
                    let answer = store.take(b"all", &policy, 1).await.unwrap();
                    assert_eq!(answer.limit, 3000, "no answer is another's");
                    admitted += u32::from(answer.allowed());
                    continue;
                }
                let keys: Vec<_> = (0..9_u8).map(|key| [key, 0]).collect();
                let questions = keys.iter().zip(others.iter().cycle());
                let mut questions: Vec<_> = questions
                    .map(|(key, policy)| KeyedOperation {
                        key,
                        policy,
                        operation: Operation::Take(1),
                    })
                    .collect();
                questions[4] =
                    KeyedOperation { key: b"all", policy: &policy, operation: Operation::Take(2) };
                let answers = store.apply_many(&questions).await;
                let limits = answers.iter().map(|answer| answer.as_ref().unwrap().limit);
                assert_eq!(limits.collect::<Vec<_>>(), [9, 9, 9, 9, 3000, 9, 9, 9, 9]);
                admitted += 2 * u32::from(answers[4].as_ref().unwrap().allowed());
            }
            admitted
        });
        let changes = async {
            for _ in 0..rounds {
                let before = store.counters().module;
                let _: () = server.query(&format!("MODULE LOAD {module}"));
                eventually_true("it is used", async || store.counters().module > before + 50).await;
                let _: () = server.query("MODULE UNLOAD sluicegate");
                let (store_before, before) = (store.counters().store, store.counters().module);
                eventually_true("scripts are", async || store.counters().store > store_before + 50)
                    .await;
                // One may have been under way.
                assert!(store.counters().module < before + 50);
            }
            stop.store(true, Ordering::Relaxed);
        };
        let (admitted, ()) = futures_util::future::join(join_all(takers), changes).await;
        let mut admitted: u32 = admitted.iter().sum();
        // The remaining units, to the last one.
        while store.take(b"all", &policy, 1).await.unwrap().allowed() {
            admitted += 1;
        }
        let counters = store.counters();
        println!(
            "figure: {engine:?}: the module came and went {rounds} times: {admitted} of {UNITS} admitted, \
             {} of {} decisions by the module, {} errors",
            counters.module,
            counters.store,
            counters.unavailable + counters.timeouts
        );
        assert_eq!((admitted, counters.unavailable, counters.timeouts), (UNITS, 0, 0));
    }
}

#[tokio::test]
async fn module_user_without_permission_uses_scripts() {
    let server = with_module(Engine::Redis70);
    let _: () = server.query(
        "ACL SETUSER limiter on >pw ~* +@connection +evalsha +eval +get +set +del +pttl +pexpire \
         +pexpireat +time",
    );
    let url = format!("redis://limiter:pw@127.0.0.1:{}/", server.port());
    let mut options = patient();
    options.look_for_module = Some(Duration::from_millis(1));
    let store = RedisStore::new(&url, options).unwrap();
    let policy: PreparedPolicy = "gcra:9/1h".parse().unwrap();
    for left in (0..9).rev() {
        assert_eq!(store.take(b"k", &policy, 1).await.unwrap().remaining, left);
    }
    assert_eq!((store.counters().module, store.counters().unavailable), (0, 0));
}
