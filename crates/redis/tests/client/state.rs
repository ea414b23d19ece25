//! Keys that another program has written, and two versions of Sluicegate at once.

use redis::Connection;
use sluicegate_core::{
    OnError, Operation, PreparedPolicy, Request, Source, StateFault, Store, StoreError,
};

use sluicegate_testing::{Engine, Server};

use crate::servers::store_of;

#[tokio::test]
async fn state_unreadable_is_an_error_and_is_kept() {
    let server = Server::start(Engine::Redis70);
    let store = store_of(&server).await;
    let policy = "gcra:30/1m".parse::<PreparedPolicy>().unwrap().on_error(OnError::Allow);
    assert!(store.take(b"whole", &policy, 1).await.unwrap().allowed());
    let mut connection = server.connect();
    let whole: Vec<u8> = redis::cmd("GET").arg("whole").query(&mut connection).unwrap();
    let newer = [&[5][..], &whole[1..]].concat();
    let write = |connection: &mut Connection, key: &str, value: &[u8]| {
        redis::cmd("SET").arg(key).arg(value).query::<()>(connection).unwrap();
    };
    redis::cmd("RPUSH").arg("list").arg("a").query::<()>(&mut connection).unwrap();
    write(&mut connection, "garbage", b"\x02garbage");
    write(&mut connection, "newer", &newer);
    for (key, fault) in [
        ("list", StateFault::WrongType),
        ("garbage", StateFault::Damaged),
        ("newer", StateFault::Version),
    ] {
        for operation in [Operation::Take(1), Operation::Peek(1), Operation::Charge(1)] {
            // The store is available: the fallback does not apply.
            let error =
                store.apply(Request::one(key.as_bytes(), &policy, operation)).await.unwrap_err();
            assert!(matches!(error, StoreError::Corrupt(it, _) if it == fault), "{key}: {error:?}");
        }
    }
    assert_eq!(redis::cmd("GET").arg("newer").query::<Vec<u8>>(&mut connection).unwrap(), newer);
    assert_eq!(redis::cmd("LLEN").arg("list").query::<u64>(&mut connection).unwrap(), 1);
    assert_eq!(store.counters().corrupt, 9);
    // The error of one key does not affect others.
    assert_eq!(store.take(b"whole", &policy, 1).await.unwrap().source, Source::Store);
    assert!(store.apply(Request::one(b"garbage", &policy, Operation::Reset)).await.is_ok());
    assert!(store.take(b"garbage", &policy, 1).await.unwrap().allowed());
    // A reset removes a damaged state, and no value of another program.
    for value in ["{\"app\":1}", "", "hello", "12a"] {
        write(&mut connection, "foreign", value.as_bytes());
        let error = store.reset(b"foreign").await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(StateFault::Damaged, _)), "{error:?}");
        let kept: String = redis::cmd("GET").arg("foreign").query(&mut connection).unwrap();
        assert_eq!(kept, value);
    }
    write(&mut connection, "cell", b"1700000000000000000");
    assert!(store.apply(Request::one(b"cell", &policy, Operation::Reset)).await.is_ok());
}

/// While a policy change is rolled out, old and new processes use the same keys: usage carries over in both
/// directions, and together they admit no more than the larger policy does.
#[tokio::test]
async fn state_two_policies_at_once_admit_no_more_than_the_larger() {
    let server = Server::start(Engine::Redis70);
    let (old, new) = (store_of(&server).await, store_of(&server).await);
    for (first, second, most) in [
        ("fixed-window:60/1h", "fixed-window:100/1h", 100),
        ("gcra:60/1h", "gcra:100/1h", 100),
        ("sliding-log:60/1h", "fixed-window:100/1h", 100),
    ] {
        let (first, second): (PreparedPolicy, PreparedPolicy) =
            (first.parse().unwrap(), second.parse().unwrap());
        let mut admitted = 0;
        for _ in 0..150 {
            admitted += u32::from(old.take(b"k", &first, 1).await.unwrap().allowed());
            admitted += u32::from(new.take(b"k", &second, 1).await.unwrap().allowed());
        }
        println!("figure: {first:?} and {second:?} at once admit {admitted} (bound {most})");
        assert!((60..=most).contains(&admitted), "{admitted}");
        let _ = old.apply(Request::one(b"k", &first, Operation::Reset)).await.unwrap();
    }
}

#[tokio::test]
async fn script_killed_makes_the_store_unavailable() {
    let server = Server::with(Engine::Redis70, &["--busy-reply-threshold", "1"]);
    let store = store_of(&server).await;
    let policy = "gcra:30/1m".parse::<PreparedPolicy>().unwrap().on_error(OnError::Allow);
    assert_eq!(store.take(b"k", &policy, 1).await.unwrap().source, Source::Store);
    let mut connection = server.connect();
    let busy = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection).unwrap_err()
    });
    crate::servers::eventually_true("the server is busy", async || {
        server.try_query::<String>("PING").is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let answer = store.take(b"k", &policy, 1).await.unwrap();
    assert_eq!((answer.allowed(), answer.source), (true, Source::Fallback));
    server.query::<()>("SCRIPT KILL");
    assert!(busy.join().unwrap().to_string().contains("killed"));
    crate::servers::eventually_true("the store answers", async || {
        store.take(b"k", &policy, 1).await.unwrap().source == Source::Store
    })
    .await;
}
