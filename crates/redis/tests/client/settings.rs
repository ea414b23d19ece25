//! URL, user and password of the store, and errors in them.

use std::time::Duration;

use sluicegate_core::{Operation, PreparedPolicy, Request, Source, Store, StoreError};
use sluicegate_redis::{Options, RedisStore};

use sluicegate_testing::{Engine, Server, TempDir};

use crate::servers::{patient, store_of};

/// The permissions in `docs/redis.md`.
const LEAST: &str = "+@connection +evalsha +eval +get +set +del +pttl +pexpire +pexpireat +time";

#[tokio::test]
async fn permissions_least_are_enough() {
    for engine in [Engine::Redis70, Engine::Valkey91] {
        let server = Server::start(engine);
        server.query::<()>(&format!("ACL SETUSER limiter on >p@ss ~limits:* ~sg:test:* {LEAST}"));
        let url = format!("redis://limiter:p%40ss@127.0.0.1:{}/3", server.port());
        let mut options = patient();
        options.prefix = b"limits:".to_vec();
        if engine == Engine::Valkey91 {
            // Valkey's users may be kept to databases.
            let _ = server.try_query::<()>("ACL SETUSER limiter alldbs");
        }
        let store = RedisStore::connect_with(&url, options.clone()).await.unwrap();
        for text in [
            "gcra:30/1m",
            "leaky-queue:3/1s,gcra:1/1s",
            "token-bucket:5/1m:refill=interval",
            "fixed-window:5/day",
            "sliding-log:5/1m",
            "sliding-counter:5/1m",
        ] {
            let policy: PreparedPolicy = text.parse().unwrap();
            for operation in [
                Operation::Take(1),
                Operation::Take(9),
                Operation::Peek(1),
                Operation::Charge(1),
                Operation::Refund(1),
                Operation::Reset,
            ] {
                let answer = store.apply(Request::one(b"k", &policy, operation)).await.unwrap();
                assert_eq!(answer.source, Source::Store, "{engine:?} {text} {operation:?}");
            }
        }
        let _ = store.take(b"k", &"gcra:1/1h".parse().unwrap(), 1).await.unwrap();
        let mut connection = server.connect();
        redis::cmd("SELECT").arg(3).query::<()>(&mut connection).unwrap();
        assert!(redis::cmd("EXISTS").arg("limits:k").query::<bool>(&mut connection).unwrap());

        // A user with the permissions of docs/redis.md has no problem, only notes.
        let status = store.inspect().await.unwrap();
        let actual: Vec<_> = status.problems().map(ToString::to_string).collect();
        assert!(actual.is_empty(), "{actual:?}");
        let node = &status.servers[0];
        assert!(node.engine.starts_with(if engine == Engine::Valkey91 {
            "Valkey"
        } else {
            "Redis"
        }));
        assert!(node.notes.iter().any(|note| note.contains("`+info`")), "{:?}", node.notes);
        server.query::<()>("ACL SETUSER limiter -set");
        let status = store.inspect().await.unwrap();
        let actual = status.problems().find(|it| it.what.contains("a take fails")).unwrap();
        assert!(
            actual.remedy.contains("ACL SETUSER") && actual.remedy.contains("+set"),
            "{actual}"
        );
        let wrong = format!("redis://limiter:wrong@127.0.0.1:{}/", server.port());
        let error = RedisStore::connect_with(&wrong, options).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unavailable(_)), "{error:?}");
    }
}

#[tokio::test]
async fn status_eviction_policy_that_forgets_limits_is_a_problem() {
    for (policy, actual) in [("noeviction", false), ("allkeys-lru", true), ("volatile-ttl", true)] {
        let arguments = ["--maxmemory", "50mb", "--maxmemory-policy", policy];
        let server = Server::with(Engine::Redis70, &arguments);
        let store = store_of(&server).await;
        let status = store.inspect().await.unwrap();
        let problems: Vec<_> = status.problems().map(ToString::to_string).collect();
        assert_eq!(problems.iter().any(|it| it.contains(policy)), actual, "{problems:?}");
        assert!(status.servers[0].engine.starts_with("Redis 7.0"));
        assert_eq!(status.servers[0].library, None);
    }
}

#[tokio::test]
async fn functions_are_installed_and_removed() {
    for engine in [Engine::Redis70, Engine::Valkey91] {
        let server = Server::start(engine);
        let store = store_of(&server).await;
        store.install().await.unwrap();
        store.install().await.unwrap();
        let status = store.inspect().await.unwrap();
        assert_eq!(status.servers[0].library.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert_eq!(status.problems().count(), 0, "{status:?}");
        let actual: Vec<i64> = server.query("FCALL sg_take 1 user gcra:30/60s:burst=16 1");
        assert_eq!(actual[..3], [1, 16, 15]);
        // The same key, by either way.
        let policy = "gcra:30/60s:burst=16".parse().unwrap();
        assert_eq!(store.take(b"user", &policy, 1).await.unwrap().remaining, 14);
        store.uninstall().await.unwrap();
        assert_eq!(store.inspect().await.unwrap().servers[0].library, None);
        let text = format!(
            "127.0.0.1:{} has no library `sluicegate`: it is not installed, nothing to remove",
            server.port()
        );
        assert_eq!(store.uninstall().await, Err(StoreError::Arguments(text)));
    }
    let server = Server::start(Engine::Redis62);
    let error = store_of(&server).await.install().await.unwrap_err();
    assert!(error.to_string().contains("has no functions: expected Redis 7.0"), "{error}");
}

#[tokio::test]
async fn connect_missing_server_is_an_error_that_names_it() {
    let port = sluicegate_testing::free_port();
    let error = RedisStore::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("127.0.0.1"), "{error}");
    assert!(matches!(RedisStore::connect("http://x").await, Err(StoreError::Settings(_))));
}

/// Schemes that do not fit the server, with their whole errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_scheme_that_does_not_fit_the_server_names_the_one_to_use() {
    let server = Server::start(Engine::Redis70);
    let port = server.port();
    // A port without TLS that waits for more bytes, as servers in other languages do.
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let connect = async |url: String| {
        let mut options = Options::default();
        options.connect_timeout = Duration::from_millis(300);
        let error = RedisStore::connect_with(&url, options).await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
        error.to_string()
    };
    let error = connect(format!("redis+cluster://127.0.0.1:{port}")).await;
    let expected = format!(
        "the store is unavailable: 127.0.0.1:{port}: This instance has cluster support disabled; the server is not \
         a node of a cluster: use `redis://`"
    );
    assert_eq!(error, expected);
    let error = connect(format!("rediss://127.0.0.1:{silent_port}")).await;
    let advice =
        "; the server does not answer the TLS handshake: if the port has no TLS, use `redis://`";
    let begin = format!("the store is unavailable: 127.0.0.1:{silent_port}: ");
    assert!(error.starts_with(&begin) && error.ends_with(advice), "{error}");
    let error = connect(format!("rediss://127.0.0.1:{port}")).await;
    assert!(error.contains("use `redis://`"), "{error}");
}

#[tokio::test]
async fn connect_longest_time_limits_decide() {
    let server = Server::start(Engine::Redis70);
    let mut options = Options::default();
    options.deadline = Duration::MAX;
    options.connect_timeout = Duration::MAX;
    options.max_denial_cache = Duration::MAX;
    options.lease_lifetime = Duration::MAX;
    options.look_for_module = Some(Duration::MAX);
    let store = RedisStore::connect_with(&server.url(), options).await.unwrap();
    let policy: PreparedPolicy = "gcra:4/1h".parse().unwrap();
    let leased = policy.lease(2).unwrap();
    for (policy, cost, allowed) in
        [(&policy, 1, true), (&policy, 4, false), (&policy, 4, false), (&leased, 1, true)]
    {
        assert_eq!(store.take(b"k", policy, cost).await.unwrap().allowed(), allowed);
    }
}

#[tokio::test]
async fn unix_socket_decides_with_password_and_database() {
    let folder = TempDir::new();
    let path = folder.path().join("a socket");
    let (path, mode) = (path.to_str().unwrap(), ["--unixsocketperm", "700"]);
    let arguments = [&["--unixsocket", path, "--requirepass", "p@ss"], &mode[..]].concat();
    let server = Server::with(Engine::Redis70, &arguments);
    let url = format!("unix://:p%40ss@{}?db=3", path.replace(' ', "%20"));
    let store = RedisStore::connect_with(&url, patient()).await.unwrap();
    let policy: PreparedPolicy = "gcra:1/1h".parse().unwrap();
    assert!(store.take(b"k", &policy, 1).await.unwrap().allowed());
    assert!(!store.take(b"k", &policy, 1).await.unwrap().allowed());
    let mut connection =
        redis::Client::open(format!("redis://:p%40ss@127.0.0.1:{}/3", server.port()));
    let connection = connection.as_mut().unwrap();
    assert!(redis::cmd("EXISTS").arg("k").query::<bool>(connection).unwrap());
    drop(server);

    let url = format!("unix://{}/none", folder.path().display());
    let error = RedisStore::connect_with(&url, patient()).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("/none: "), "{error}");
}
