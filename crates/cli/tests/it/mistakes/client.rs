//! Mistakes with `take`, `reset` and `redis`.

use std::fs;

use sluicegate_testing::{Engine, Server as Redis};

use super::{check, check_message};
use crate::{
    run::{run, sluicegate},
    server::Server,
};

#[test]
fn take_mistakes_are_named() {
    for (line, expected) in [
        ("take", "missing KEY and POLICY\nusage: sluicegate take"),
        ("take a", "missing POLICY\nusage: "),
        ("take a gcra:1/1s x", "unexpected argument `x`"),
        (
            "take a gcra:1/1s --cost -1",
            "invalid --cost `-1`: expected a whole number from 0 to 4294967295",
        ),
        (
            "take a gcra:1/1s --cost many",
            "invalid --cost `many`: expected a whole number from 0 to 4294967295",
        ),
        ("take a gcra:1/1s --cots 2", "unknown option `--cots`: did you mean `--cost`?"),
        ("tak a gcra:1/1s", "unknown command `tak`: did you mean `take`?"),
        ("server", "unknown command `server`: did you mean `serve`?"),
        ("test x.yaml", "unknown command `test`: did you mean `rules test`?"),
        ("validate x.yaml", "unknown command `validate`: did you mean `rules check`?"),
        ("install redis://x", "unknown command `install`: did you mean `redis install`?"),
        ("del a", "unknown command `del`: did you mean `reset`?"),
        // Never towards deletion by a misspelling.
        ("rest a", "unknown command `rest`: see `sluicegate --help`"),
        ("simul x", "unknown command `simul`: did you mean `simulate`?"),
        ("take a gcra:1/1s --host x", "unknown option `--host`: did you mean `--server`?"),
        (
            "take a gcra:1/1s --requirepass x",
            "unknown option `--requirepass`: did you mean `--password`?",
        ),
        ("redis stat", "unknown command `stat`: did you mean `status`?"),
        ("frobnicate", "unknown command `frobnicate`: see `sluicegate --help`"),
        (
            "take a gcra:1/1s --server redis://127.0.0.1:6380",
            "invalid --server `redis://127.0.0.1:6380`: expected resp://HOST:PORT, the address of a Sluicegate server",
        ),
        (
            "take a gcra:1/1s --server localhost",
            "invalid --server `localhost`: expected resp://HOST:PORT, such as",
        ),
        (
            "take a gcra:1/1s --server 127.0.0.1:1",
            "the server at 127.0.0.1:1 is unavailable: connection refused; start one with `sluicegate serve`",
        ),
        (
            "take a gcra:1/1s --password EMPTY",
            "invalid --password: expected at least one character",
        ),
        ("reset", "missing KEY\nusage: sluicegate reset"),
        ("redis", "unknown"),
        ("redis install", "missing URL\nusage: sluicegate redis install"),
        ("redis statsu redis://x", "unknown command `statsu`: did you mean `status`?"),
        ("redis status 127.0.0.1:6379", "invalid store URL: missing `://`: expected redis://HOST"),
        (
            "redis status http://x",
            "invalid store URL: unknown scheme `http`: expected redis://HOST, rediss://HOST,",
        ),
        (
            "redis status redis://127.0.0.1:1",
            "the store is unavailable: 127.0.0.1:1: connection refused",
        ),
    ] {
        if line == "redis" {
            // It prints the help.
            assert_eq!(run(&["redis"], "").code, Some(2));
            continue;
        }
        check(line, "", expected);
    }
    let server = Server::start(&[]);
    let named = run(&["take", "a", "@nope", "--server", &server.address], "");
    assert!(named.err.contains("`@nope`") && !named.err.contains("SGPOLICY"), "{}", named.err);
    check(
        &format!("take a gcra:1/1s --password x --server {}", server.address),
        "",
        &format!(
            "invalid password: the server at {} has none; remove --password or SLUICEGATE_PASSWORD\n",
            server.address.trim_start_matches("resp://")
        ),
    );
    let http = run(&["take", "a", "gcra:1/1s", "--server", &server.http], "");
    check_message(
        "http",
        &http.err,
        &format!("the server at {} does not speak RESP: ", server.http),
    );
    let ended = run(&["redis", "status", &format!("redis://{}", server.http)], "");
    let expected = "it does not speak the Redis protocol: expected Redis, Valkey, or the Redis protocol of a Sluicegate server";
    assert!(ended.err.contains(expected) || ended.out.contains(expected), "{ended:?}");
    let url = server.address.replace("resp://", "redis://");
    let ended = run(&["redis", "install", &url], "");
    let place = server.address.trim_start_matches("resp://");
    check_message(
        "install",
        &ended.err,
        &format!("{place} has no functions: expected Redis 7.0 or later"),
    );
}

#[cfg(unix)]
#[test]
fn mistakes_with_a_closed_standard_error_have_their_exit_status() {
    for line in ["policy nope", "simulate /nowhere.csv", "take a gcra:1/1s --server 127.0.0.1:1"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = sluicegate().args(line.split(' ')).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(2), "{line}");
    }
}

#[test]
fn redis_mistakes_are_not_called_unavailable() {
    let redis = Redis::start(Engine::Redis70);
    let place = format!("127.0.0.1:{}", redis.port());
    let ended = run(&["take", "a", "gcra:1/1s", "--server", &place], "");
    check_message(
        "take",
        &ended.err,
        &format!("the server at {place} is not a Sluicegate server, and has no Sluicegate module"),
    );
    let ended = run(&["redis", "status", &format!("redis://user:pw@{place}")], "");
    check_message("status", &ended.err, "invalid user or password of the store: ");
    redis.query::<()>("ACL SETUSER weak on >pw ~* +@connection +ping");
    let ended = run(&["redis", "install", &format!("redis://weak:pw@{place}")], "");
    check_message("install", &ended.err, "missing permission in the store: ");
}

#[test]
fn redis_status_works_with_the_permissions_of_the_documentation() {
    let redis = Redis::start(Engine::Redis70);
    let document = fs::read_to_string("../../docs/redis.md").unwrap();
    let line = document.lines().find(|line| line.starts_with("ACL SETUSER limiter on >PASSWORD"));
    redis.query::<()>(line.expect("docs/redis.md has the user"));
    let url = format!("redis://limiter:PASSWORD@127.0.0.1:{}", redis.port());
    run(&["redis", "install", &redis.url()], "");

    let ended = run(&["redis", "status", "--prefix", "limits:", &url], "");
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert!(
        ended.out.contains(": Redis 7.0.") && ended.out.ends_with("no problems found\n"),
        "{}",
        ended.out
    );
    assert!(
        ended.out.contains("(`+info`)") && ended.out.contains("functions unknown"),
        "{}",
        ended.out
    );
    // Outside of the prefix, the error names the key, and not the commands.
    let ended = run(&["redis", "status", &url], "");
    assert_eq!(ended.code, Some(2), "{}", ended.out);
    assert!(
        ended.out.contains("use a prefix that the user may access (`redis status --prefix`"),
        "{}",
        ended.out
    );
    // A user that may call functions sees that they exist.
    redis.query::<()>("ACL SETUSER limiter +fcall_ro");
    let ended = run(&["redis", "status", "--prefix", "limits:", &url], "");
    assert!(ended.out.contains("functions of an unknown version"), "{}", ended.out);
    redis.query::<()>("ACL SETUSER limiter +function|list");
    let ended = run(&["redis", "status", "--prefix", "limits:", &url], "");
    let version = format!("functions {}", env!("CARGO_PKG_VERSION"));
    assert!(ended.out.contains(&version), "{}", ended.out);
}
