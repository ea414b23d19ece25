//! `redis`, and `simulate` over a Redis.

use sluicegate_testing::{Engine, Server};

use crate::{
    run::{output, run, scenarios, sluicegate},
    server,
};

#[test]
fn redis_status_of_a_sluicegate_server_names_it() {
    let server = server::Server::start(&[]);
    let ended = run(&["redis", "status", &server.address.replace("resp://", "redis://")], "");
    let expected = concat!("a Sluicegate server ", env!("CARGO_PKG_VERSION"));
    assert!(ended.out.contains(expected), "{}{}", ended.out, ended.err);
}

#[test]
fn redis_functions_are_installed_shown_and_removed() {
    let redis = Server::start(Engine::Redis70);
    let version = env!("CARGO_PKG_VERSION");
    let ended = run(&["redis", "status", &redis.url()], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("Redis 7.0") && ended.out.contains("no functions"), "{}", ended.out);
    assert!(ended.out.ends_with("no problems found\n"), "{}", ended.out);

    let ended = run(&["redis", "install", &redis.url()], "");
    assert!(ended.out.contains(&format!("installed functions {version}")));
    let hint = format!(
        "try: redis-cli -u {} FCALL sg_take 1 user123 gcra:30/60s:burst=16 1\n",
        redis.url()
    );
    assert!(ended.out.ends_with(&hint), "{}", ended.out);
    redis.query::<()>("ACL SETUSER owner on >hunter2 ~* +@all");
    let url = redis.url().replace("://", "://owner:hunter2@");
    let ended = run(&["redis", "install", &url], "");
    let masked = url.replace("hunter2", "********");
    assert!(ended.out.contains(&format!("try: redis-cli -u {masked} FCALL ")), "{}", ended.out);
    assert!(
        run(&["redis", "status", &redis.url()], "").out.contains(&format!("functions {version}"))
    );
    assert_eq!(run(&["redis", "uninstall", &redis.url()], "").code, Some(0));
    let ended = run(&["redis", "uninstall", &redis.url()], "");
    assert_eq!(ended.code, Some(2));
    let text = "has no library `sluicegate`: it is not installed, nothing to remove\n";
    assert!(ended.err.ends_with(text), "{}", ended.err);

    let ended = run(&["redis", "status", "redis://127.0.0.1:1"], "");
    assert_eq!((ended.code, &*ended.out), (Some(2), ""));
    assert!(ended.err.contains("127.0.0.1:1"), "{}", ended.err);
}

#[test]
fn simulate_store_decides_every_scenario_as_memory() {
    let redis = Server::start(Engine::Redis70);
    for scenario in ["boundary-burst", "late-rush", "across-minutes"] {
        let path = scenarios().join(format!("{scenario}.csv"));
        let path = path.to_str().unwrap();
        for policy in [
            "gcra:30/1m:burst=16",
            "fixed-window:100/60s:align=clock",
            "sliding-log:30/1m,fixed-window:9/day",
        ] {
            let simulate = ["simulate", "--format", "csv", "--policy", policy, path];
            let here = output(&simulate, "");
            let there = output(&[&simulate[..], &["--store", &redis.url()]].concat(), "");
            assert_eq!(here, there, "{scenario} {policy}");
        }
    }
}

#[test]
fn serve_servers_on_one_store_share_its_state() {
    let redis = Server::start(Engine::Redis70);
    let serve = ["--store", &redis.url(), "--store-prefix", "limits:", "--store-deadline", "5s"];
    let servers = [server::Server::start(&serve), server::Server::start(&serve)];
    let take = |server: usize| {
        let at = &*servers[server].address;
        run(&["take", "k", "gcra:1/1d:burst=2", "--server", at], "").code
    };
    assert_eq!([take(0), take(1), take(0), take(1)], [Some(0), Some(0), Some(1), Some(1)]);
    // A later server with a test clock has separate keys.
    let clocked = server::Server::start(&["--test-clock", "--store", &redis.url()]);
    let trace = "t_us,key,cost\n0,k,1\n0,k,1\n0,k,1\n";
    let simulate = ["simulate", "--format", "csv", "--policy", "gcra:1/1d:burst=2", "-"];
    let there = output(&[&simulate[..], &["--store", &clocked.address]].concat(), trace);
    assert_eq!(there, output(&simulate, trace));
}

#[test]
fn serve_store_options_without_a_store_are_an_error() {
    let refused = |more: &[&str]| {
        let ended = run(
            &[&["serve", "--listen", "127.0.0.1:0", "--http", "off", "--grpc", "off"], more]
                .concat(),
            "",
        );
        assert_eq!(ended.code, Some(2), "{more:?}");
        ended.err
    };
    for given in [["--state-file", "x"], ["--max-memory", "1gb"], ["--when-full", "allow"]] {
        let error = refused(&[&["--store", "redis://127.0.0.1:1"][..], &given].concat());
        let expected = format!("error: invalid {} together with --store: ", given[0]);
        assert!(error.starts_with(&expected), "{error}");
    }
    let error = refused(&["--on-error", "local"]);
    assert!(error == "error: missing --store: --on-error needs it\n", "{error}");
    let error = refused(&["--store", "redis://127.0.0.1:1", "--on-error", "local=2"]);
    assert!(
        error.contains("invalid --on-error `local=2`: expected deny, allow, local or a share"),
        "{error}"
    );
    let error = refused(&["--store", "memcached://x"]);
    assert!(error.contains("unknown scheme `memcached`"), "{error}");
    let help = sluicegate()
        .args(["serve", "--help"])
        .env("SLUICEGATE_STORE", "redis://:hunter2@127.0.0.1")
        .output()
        .unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("hunter2"));
}
