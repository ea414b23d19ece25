//! The same answers in this process and over Redis.

use std::time::{Duration, Instant};

use sluicegate::{Error, Limiter, LocalLimiter, PreparedPolicy, Retry, Source, Store};

use sluicegate_testing::{Engine, Server};

use crate::server::limiter;

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

async fn answers(limiter: &Limiter) {
    let policy = policy("gcra:10/1h:burst=5");
    assert_eq!(limiter.take("k", &policy, 2).await.unwrap().remaining, 3);
    assert_eq!(limiter.peek("k", &policy, 4).await.unwrap().remaining, 3);
    assert!(!limiter.peek("k", &policy, 4).await.unwrap().allowed());
    assert_eq!(limiter.charge("k", &policy, 3).await.unwrap().remaining, 0);
    assert!(!limiter.take("k", &policy, 1).await.unwrap().allowed());
    assert_eq!(limiter.refund("k", &policy, 2).await.unwrap().remaining, 2);
    let hours = Duration::from_secs(7200);
    assert!(
        limiter.reserve("k", &policy, 4, hours).await.unwrap().delay() > Duration::from_secs(700)
    );
    assert_eq!(limiter.reset("k", &policy).await.unwrap().remaining, 5);
    assert_eq!(limiter.take("k", &policy, 6).await.unwrap().retry(), Some(Retry::Never));
    let window = "fixed-window:1/1h".parse().unwrap();
    assert!(matches!(limiter.reserve("w", &window, 1, hours).await, Err(Error::Reserve(_))));
    let many = limiter.take_many(&[("a", &policy, 5), ("a", &policy, 1), ("b", &policy, 1)]).await;
    let allowed: Vec<_> = many.iter().map(|it| it.as_ref().unwrap().allowed()).collect();
    assert_eq!(allowed, [true, false, true]);
}

#[tokio::test]
async fn both_answer_alike() {
    answers(&Limiter::in_memory()).await;
    let redis = Server::start(Engine::Redis70);
    answers(&limiter(&redis).await).await;
}

async fn waits(limiter: &Limiter) {
    let queue = policy("leaky-queue:50/1s:capacity=100");
    #[expect(clippy::disallowed_methods, reason = "how long it waited is what is tested")]
    let start = Instant::now();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let (limiter, queue) = (limiter.clone(), queue.clone());
            tokio::spawn(async move {
                let answer = limiter.until_ready("q", &queue, 1, Duration::from_secs(60)).await;
                assert!(answer.unwrap().allowed());
                start.elapsed()
            })
        })
        .collect();
    let mut departures = Vec::new();
    for task in tasks {
        departures.push(task.await.unwrap());
    }
    departures.sort_unstable();
    // The n-th is no earlier than n times 20 ms after the first.
    for (place, departure) in departures.iter().enumerate() {
        assert!(
            *departure >= Duration::from_millis(20) * u32::try_from(place).unwrap(),
            "{departures:?}"
        );
    }
    // Who cannot pass in time is told at once.
    let slow = policy("gcra:1/1h:burst=1");
    assert!(limiter.until_ready("s", &slow, 1, Duration::MAX).await.unwrap().allowed());
    assert!(!limiter.until_ready("s", &slow, 1, Duration::from_secs(60)).await.unwrap().allowed());
    // A window is asked again when it is told to.
    let window = policy("fixed-window:1/100ms");
    for _ in 0..3 {
        assert!(
            limiter.until_ready("w", &window, 1, Duration::from_secs(60)).await.unwrap().allowed()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_is_in_order_and_spaced() {
    waits(&Limiter::in_memory()).await;
    let redis = Server::start(Engine::Redis70);
    waits(&limiter(&redis).await).await;
}

#[tokio::test]
async fn clones_share_and_two_limiters_do_not() {
    let (one, two) = (LocalLimiter::new(), LocalLimiter::bounded(4 << 20));
    let policy = policy("gcra:2/1h");
    for limiter in [&one, &one.clone(), &two, &two] {
        assert!(limiter.take("k", &policy, 1).allowed());
    }
    assert!(!one.take("k", &policy, 1).allowed() && !two.take("k", &policy, 1).allowed());
    let shared = Limiter::from(one.clone());
    let answer = shared.take("k", &policy, 1).await.unwrap();
    assert!(!answer.allowed() && answer.source == Source::Store);
    one.reset("k");
    assert!(shared.take("k", &policy, 1).await.unwrap().allowed());
    assert!(Store::take(&one, b"k", &policy, 1).await.unwrap().allowed());
    assert!(!one.is_empty());
}
