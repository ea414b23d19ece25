//! Limits in this process, with and without async.

use std::time::Duration;

use sluicegate::{
    Answer, Limiter, LocalLimiter, ManualClock, PreparedPolicy, SingleLimiter, Source, Store,
};

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

#[tokio::test]
async fn local_limiter_answers_as_limiter_and_single_limiter() {
    let policy = policy("gcra:10/1h:burst=5");
    let clock = ManualClock::default();
    let local = LocalLimiter::with_clock(clock.clone());
    let shared = Limiter::from(LocalLimiter::with_clock(clock.clone()));
    let single = SingleLimiter::with_clock(policy.clone(), clock);
    let hours = Duration::from_secs(7200);
    let check = |answers: [Answer; 3]| {
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0], answers[2]);
        assert_eq!(answers[0].source, Source::Store);
        answers[0].remaining
    };
    let answers =
        [local.take("k", &policy, 1), shared.take("k", &policy, 1).await.unwrap(), single.check()];
    assert_eq!(check(answers), 4);
    let answers =
        [local.take("k", &policy, 2), shared.take("k", &policy, 2).await.unwrap(), single.take(2)];
    assert_eq!(check(answers), 2);
    let answers =
        [local.peek("k", &policy, 3), shared.peek("k", &policy, 3).await.unwrap(), single.peek(3)];
    assert_eq!(check(answers), 2);
    let answers = [
        local.charge("k", &policy, 4),
        shared.charge("k", &policy, 4).await.unwrap(),
        single.charge(4),
    ];
    assert_eq!(check(answers), 0);
    let answers = [
        local.refund("k", &policy, 3),
        shared.refund("k", &policy, 3).await.unwrap(),
        single.refund(3),
    ];
    assert_eq!(check(answers), 1);
    let answers = [
        local.reserve("k", &policy, 2, hours).unwrap(),
        shared.reserve("k", &policy, 2, hours).await.unwrap(),
        single.reserve(2, hours).unwrap(),
    ];
    assert_eq!(check(answers), 0);
    for had_units in [true, false] {
        assert_eq!(local.reset("k"), had_units);
        assert_eq!(shared.reset("k").await.unwrap(), had_units);
        assert_eq!(single.reset(), had_units);
    }
    let takes = || [("a", &policy, 5), ("a", &policy, 1), ("b", &policy, 1)];
    let many: Vec<_> = shared.take_many(takes()).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(local.take_many(takes()), many);
    assert_eq!(many.iter().map(|it| it.allowed()).collect::<Vec<_>>(), [true, false, true]);
}

#[tokio::test]
async fn local_limiter_clones_share_keys_and_others_do_not() {
    let (one, two) = (LocalLimiter::new(), LocalLimiter::bounded(4 << 20));
    let policy = policy("gcra:2/1h");
    for limiter in [&one, &one.clone(), &two, &two] {
        assert!(limiter.take("k", &policy, 1).allowed());
    }
    assert!(!one.take("k", &policy, 1).allowed() && !two.take("k", &policy, 1).allowed());
    let shared = Limiter::from(one.clone());
    let answer = shared.take("k", &policy, 1).await.unwrap();
    assert!(!answer.allowed() && answer.source == Source::Store);
    assert!(one.reset("k"));
    assert!(shared.take("k", &policy, 1).await.unwrap().allowed());
    assert!(Store::take(&one, b"k", &policy, 1).await.unwrap().allowed());
    assert!(!one.is_empty());
}
