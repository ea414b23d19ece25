//! The length of a key is checked before anything is sent, and an invalid key is never decided by the fallback.

use std::time::Duration;

use sluicegate_core::{
    KeyedOperation, MAX_KEY, OnError, Operation, PreparedPolicy, Request, Source, Store, StoreError,
};
use sluicegate_redis::RedisStore;
use sluicegate_testing::{Engine, Server, module};

use crate::servers::patient;

const PREFIX: &[u8] = b"limits:";

/// The error of each way to use a key.
async fn errors(store: &RedisStore, key: &[u8]) -> Vec<(&'static str, Option<StoreError>)> {
    let parse = |text: &str| text.parse::<PreparedPolicy>().unwrap().on_error(OnError::Allow);
    let (policy, leased) = (parse("gcra:5/1h"), parse("gcra:5/1h").lease(4).unwrap());
    let mut errors = Vec::new();
    let reserve = Operation::Reserve { cost: 1, max_wait: Duration::MAX };
    for (name, operation) in [
        ("take", Operation::Take(1)),
        ("peek", Operation::Peek(1)),
        ("charge", Operation::Charge(1)),
        ("refund", Operation::Refund(1)),
        ("reserve", reserve),
    ] {
        errors.push((name, store.apply(Request::one(key, &policy, operation)).await.err()));
        let of = |key| KeyedOperation { key, policy: &policy, operation };
        let operations = [of(b"before"), of(key), of(b"after")];
        let mut answers = store.apply_many(&operations).await;
        let after = answers.pop().unwrap().unwrap();
        assert_eq!(after.source, Source::Store);
        errors.push(("one of many", answers.pop().unwrap().err()));
    }
    errors.push(("leased take", store.take(key, &leased, 1).await.err()));
    let ttl = Some(Duration::from_secs(60));
    for (name, hold) in [
        ("hold", Operation::Hold { id: b"a", cost: 1, ttl }),
        ("renew", Operation::Renew { id: b"a", ttl }),
        ("settle", Operation::Settle { id: b"a", used: None }),
    ] {
        errors.push((name, store.apply(Request::one(key, &policy, hold)).await.err()));
    }
    for (name, operation) in [
        ("take of several keys", Operation::Take(1)),
        ("peek of several keys", Operation::Peek(1)),
        ("hold of several keys", Operation::Hold { id: b"a", cost: 1, ttl }),
    ] {
        let both = [b"other", key].map(|key| KeyedOperation { key, policy: &policy, operation });
        errors.push((name, store.apply(Request::all(&both).unwrap()).await.err()));
    }
    errors.push(("check", store.check_key(key).err()));
    errors
}

#[tokio::test]
async fn key_of_invalid_length_is_an_error_of_the_caller() {
    let plain: &[&str] = &[];
    for arguments in [plain, &["--loadmodule", module()]] {
        let server = Server::with(Engine::Redis70, arguments);
        for prefix in [&b""[..], PREFIX] {
            let mut options = patient();
            options.prefix = prefix.to_vec();
            let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
            let with = if prefix.is_empty() { "" } else { " with the prefix of the store" };
            let length = MAX_KEY + 1;
            let long = vec![b'k'; length - prefix.len()];
            let too_long = format!("invalid key: expected 1 to 65536 bytes, found {length}{with}");
            let empty = "invalid key: expected 1 to 65536 bytes, found 0";
            for (key, text) in [(&long[..], &*too_long), (b"", empty)] {
                for (name, error) in errors(&store, key).await {
                    assert_eq!(error, Some(StoreError::Key(text.to_owned())), "{name}");
                }
            }
            let read = store.read(&long, &mut |_, _| ()).await;
            assert_eq!(read, Err(StoreError::Key(too_long.clone())));
            assert_eq!(store.reset(&long).await, Err(StoreError::Key(too_long)));
            // An empty key of redis-cell can be read and reset.
            assert_eq!(store.read(b"", &mut |_, _| ()).await, Ok(()));
            assert_eq!(store.reset(b"").await, Ok(false));
            assert_eq!(errors(&store, &long[1..]).await.iter().find(|(_, it)| it.is_some()), None);
            assert_eq!(store.unavailable(), None);
        }
        let keys: Vec<Vec<u8>> = server.query("KEYS *");
        assert!(keys.iter().all(|key| (1..=MAX_KEY).contains(&key.len())));
    }
}
