//! Several keys at once: one script where one server has them, one after the other elsewhere.

use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_conformance::{
    Answer, Invocation, JointSubject, JointTake, Shape, Subject, check_together,
};
use sluicegate_core::{Joint, Operation, Retry, Timestamp};
use sluicegate_redis::{KeyedTake, OnError, Options, PreparedPolicy, RedisStore, Source};
use tokio::runtime::Runtime;

use sluicegate_testing::{Cluster, Engine, Server};

use crate::{
    cluster::url,
    servers::{patient, store_of},
};

const ENGINES: [Engine; 2] = [Engine::Redis70, Engine::Valkey91];

struct AtItsTime(Runtime, RedisStore);

impl Subject for AtItsTime {
    fn apply(&mut self, question: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = question;
        let rule = self.1.prepare(policy, OnError::default());
        let asked = self.1.ask_at(key, &rule, operation, now);
        self.0.block_on(asked).map_err(|error| error.to_string())
    }
}

impl JointSubject for AtItsTime {
    fn take_together(&mut self, takes: &[JointTake], now: Timestamp) -> Result<Joint, String> {
        let rule = |it: &JointTake| self.1.prepare(&it.1, OnError::default());
        let rules: Vec<PreparedPolicy> = takes.iter().map(rule).collect();
        let takes: Vec<_> = takes
            .iter()
            .zip(&rules)
            .map(|((key, _, cost), rule)| KeyedTake { key, policy: rule, cost: *cost })
            .collect();
        let asked = self.1.take_together_at(&takes, now);
        self.0.block_on(asked).map_err(|error| error.to_string())
    }
}

#[test]
fn it_answers_random_histories_as_the_core_does() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(store_of(&server));
        check_together(&mut AtItsTime(runtime, store), 300, 250, Shape::default());
    }
}

fn takes<'a>(keys: &[&'a [u8]], rules: &[&'a PreparedPolicy]) -> Vec<KeyedTake<'a>> {
    keys.iter().zip(rules).map(|(key, rule)| KeyedTake { key, policy: rule, cost: 1 }).collect()
}

#[tokio::test]
async fn one_server_decides_all_at_once_and_its_denials_are_known() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let user: PreparedPolicy = "fixed-window:3/1h".parse().unwrap();
    let all: PreparedPolicy = "fixed-window:5/1h".parse().unwrap();
    let ask = async |name: &'static [u8]| {
        store.take_together(&takes(&[name, b"all"], &[&user, &all])).await.unwrap()
    };
    for left in [2, 1, 0] {
        let answer = ask(b"anna").await;
        assert_eq!(
            (answer.decision.remaining, answer.key, answer.source),
            (left, 0, Source::Store)
        );
    }
    let denied = ask(b"anna").await;
    assert_eq!((denied.decision.allowed(), denied.key, denied.source), (false, 0, Source::Store));
    assert!(denied.each[1].allowed() && denied.each[1].remaining == 2);
    // It stands, also for who asks about her alone; nobody else has paid for it.
    assert_eq!(ask(b"anna").await.source, Source::Cache);
    assert_eq!(store.take(b"anna", &user, 1).await.unwrap().source, Source::Cache);
    assert_eq!(ask(b"ben").await.decision.remaining, 1);
    assert_eq!(ask(b"ben").await.key, 1);
    let denied = ask(b"carl").await;
    assert_eq!((denied.decision.allowed(), denied.key), (false, 1));
    assert_eq!(store.ask(b"carl", &user, Operation::Peek(0)).await.unwrap().remaining, 3);
    let peek = store.peek_together(&takes(&[b"dora", b"all"], &[&user, &all])).await.unwrap();
    assert!(!peek.decision.allowed());
    assert!(store.take_together(&[]).await.unwrap_err().to_string().starts_with("missing key"));
}

#[tokio::test]
async fn while_the_store_is_away_each_rule_says_how_its_key_stands() {
    let mut server = Server::start(Engine::Redis70);
    let mut options: Options = patient();
    options.deadline = Duration::from_millis(300);
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    let rule = |on_error| "fixed-window:2/1h".parse::<PreparedPolicy>().unwrap().on_error(on_error);
    let (deny, allow) = (rule(OnError::Deny), rule(OnError::Allow));
    let local = rule(OnError::Local(sluicegate_redis::Share::ALL));
    server.kill();
    let ask = async |rules: [&PreparedPolicy; 2]| {
        let answer = store.take_together(&takes(&[b"a", b"b"], &rules)).await.unwrap();
        assert_eq!(answer.source, Source::Fallback);
        answer.joint
    };
    assert!(ask([&allow, &allow]).await.decision.allowed());
    let denied = ask([&local, &deny]).await;
    assert_eq!((denied.decision.allowed(), denied.key), (false, 1));
    // What was denied has cost nothing here either.
    let passed =
        [ask([&local, &allow]).await, ask([&local, &allow]).await, ask([&local, &allow]).await];
    assert_eq!(passed.map(|it| it.decision.allowed()), [true, true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_several_nodes_are_asked_in_order_and_refunded() {
    let cluster = Cluster::start(Engine::Redis70, &[]);
    let store = RedisStore::connect_with(&url(&cluster), patient()).await.unwrap();
    let user: PreparedPolicy = "fixed-window:100/1h".parse().unwrap();
    let tenant: PreparedPolicy = "gcra:20/1d".parse().unwrap();
    let recorded: PreparedPolicy = "fixed-window:9/1h:count=all".parse().unwrap();
    // Many users of one tenant at a time: the tenant's limit is exact, and none has paid for a denial.
    let names: Vec<Vec<u8>> = (0..8_u8).map(|name| vec![b'u', name]).collect();
    let asked = names.iter().map(async |name| {
        let mut passed = 0;
        for _ in 0..6 {
            let takes = takes(&[name, b"tenant"], &[&user, &tenant]);
            let answer = store.take_together(&takes).await.unwrap();
            passed += u32::from(answer.decision.allowed());
            if let Some(Retry::After(wait)) = answer.decision.retry() {
                assert_eq!(answer.key, 1);
                assert!(wait > Duration::from_secs(60));
            }
        }
        (name, passed)
    });
    let passed = join_all(asked).await;
    assert_eq!(passed.iter().map(|it| it.1).sum::<u32>(), 20);
    for (name, passed) in passed {
        let used = 100 - store.ask(name, &user, Operation::Peek(0)).await.unwrap().remaining;
        assert_eq!(used, passed, "{name:?}");
    }
    // One slot: one script.
    let keys: [&[u8]; 2] = [b"{acme}:anna", b"{acme}"];
    let before = store.counters().store;
    let answer = store.take_together(&takes(&keys, &[&user, &tenant])).await.unwrap();
    assert_eq!((answer.decision.remaining, store.counters().store - before), (19, 1));
    // A denial that counts is recorded behind the one that denies, and before it.
    let keys: [&[u8]; 3] = [b"r1", b"tenant", b"r2"];
    let answer =
        store.take_together(&takes(&keys, &[&recorded, &tenant, &recorded])).await.unwrap();
    assert_eq!((answer.decision.allowed(), answer.key), (false, 1));
    for key in [&b"r1"[..], b"r2"] {
        let left = store.ask(key, &recorded, Operation::Peek(0)).await.unwrap().remaining;
        assert_eq!(left, 8, "{key:?}");
    }
}
