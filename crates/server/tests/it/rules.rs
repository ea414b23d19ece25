//! Rules in files, while the server runs: when a change becomes active.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::{
    harness::{Running, TempDir, any_port, now},
    http::client::Client,
};

/// How many times the rules change under load; `cargo xtask soak` sets more.
const RELOADS: &str = "SLUICEGATE_RELOADS";

fn size(name: &str, few: usize) -> usize {
    std::env::var(name).map_or(few, |it| it.parse().unwrap())
}

/// A server by a file of these rules.
fn running(folder: &TempDir, text: &str) -> Running {
    let file = folder.file("rules.yaml");
    fs::write(&file, text).unwrap();
    Running::with(|config| {
        config.http.address = Some(any_port());
        config.rules = vec![file];
    })
}

/// Replaces the file by another, atomically.
fn replace(folder: &TempDir, text: &str) {
    let new = folder.file("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.file("rules.yaml")).unwrap();
}

fn policy(limit: usize) -> String {
    format!("policies: {{plan: 'fixed-window:{limit}/1h'}}\n")
}

#[test]
fn policy_by_name_is_applied() {
    let folder = TempDir::new();
    let server = running(&folder, &policy(3));
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE k @plan COST 2")[..3], [1, 3, 1]);
    assert_eq!(peer.integers("SG.PEEK k fixed-window:3/1h")[..3], [1, 3, 1]);
    assert_eq!(peer.integers("SG.TAKE k @plan COST 2")[..3], [0, 3, 1]);
    let unknown = "SGPOLICY unknown policy `@gold`: expected a name from the server's rules, or a \
                   policy such as `gcra:30/1m`";
    assert_eq!(peer.error("SG.TAKE k @gold"), unknown);
    assert_eq!(Running::new().connect().error("SG.TAKE k @gold"), unknown);
    let misspelt = "SGPOLICY unknown policy `@paln`: did you mean `@plan`?";
    assert_eq!(peer.error("SG.TAKE k @paln"), misspelt);
    let without_at = "SGPOLICY unknown policy `plan`: did you mean `@plan`?";
    assert_eq!(peer.error("SG.TAKE k plan"), without_at);
    let other = peer.error("SG.TAKE k gold");
    assert!(other.starts_with("SGPOLICY invalid policy `gold`: expected"), "{other}");
}

#[test]
fn reload_keeps_usage() {
    let folder = TempDir::new();
    let server = running(&folder, &policy(10));
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE k @plan COST 7")[..3], [1, 10, 3]);
    replace(&folder, &policy(20));
    server.until_exactly("rules_version", 2);
    assert_eq!(peer.integers("SG.PEEK k @plan")[..3], [1, 20, 13]);
    replace(&folder, &policy(6));
    server.until_exactly("rules_version", 3);
    assert_eq!(peer.integers("SG.PEEK k @plan")[..3], [0, 6, 0]);
    // Files with the same content are not a reload.
    assert_eq!(server.info_value("rules_reloads"), 2);
}

#[test]
fn reload_invalid_files_keeps_the_rules() {
    let folder = TempDir::new();
    let server = running(&folder, &policy(10));
    let mut peer = server.connect();
    let times = 50;
    for turn in 1..=times {
        let broken = match turn % 3 {
            0 => format!("policies: {{plan: 'fixed-window:{turn}/0s'}}\n"),
            1 => format!("policies: [ # {turn}\n"),
            _ => format!("rules: [{{name: r{turn}, policy: none}}]\n"),
        };
        replace(&folder, &broken);
        server.until_exactly("rules_failed", turn);
        assert_eq!(peer.integers("SG.PEEK k @plan")[..3], [1, 10, 10]);
    }
    fs::remove_file(folder.file("rules.yaml")).unwrap();
    server.until_exactly("rules_failed", times + 1);
    assert_eq!(server.info_value("rules_version"), 1);
    replace(&folder, &policy(11));
    server.until_exactly("rules_version", 2);
    assert_eq!(peer.integers("SG.PEEK k @plan")[..3], [1, 11, 11]);
    println!("figure: {times} broken files: the rules in force stayed, {} counted", times + 1);
}

/// Kubernetes replaces the folder that `..data` links to by another.
#[cfg(unix)]
#[test]
fn reload_after_a_symbolic_link_is_swapped() {
    use std::os::unix::fs::symlink;

    let folder = TempDir::new();
    let put = |version: usize, text: &str| {
        let data = folder.file(&format!("..v{version}"));
        fs::create_dir(&data).unwrap();
        fs::write(data.join("rules.yaml"), text).unwrap();
        symlink(format!("..v{version}"), folder.file("..data_tmp")).unwrap();
        fs::rename(folder.file("..data_tmp"), folder.file("..data")).unwrap();
        if version > 1 {
            fs::remove_dir_all(folder.file(&format!("..v{}", version - 1))).unwrap();
        }
    };
    put(1, &policy(1));
    symlink("..data/rules.yaml", folder.file("rules.yaml")).unwrap();
    for whole in [false, true] {
        let file = if whole { folder.file("") } else { folder.file("rules.yaml") };
        let server = Running::with(|config| config.rules = vec![file]);
        let mut peer = server.connect();
        let first = if whole { 4 } else { 1 };
        for limit in first + 1..first + 4 {
            put(limit, &policy(limit));
            server.until_exactly("rules_version", u64::try_from(1 + limit - first).unwrap());
            assert_eq!(peer.integers("SG.PEEK k @plan")[1], i64::try_from(limit).unwrap());
        }
    }
}

/// Every answer is by one version: both names always have the same number.
#[test]
fn reload_batch_sees_one_version() {
    let reloads = size(RELOADS, 200);
    let folder = TempDir::new();
    let both = |limit: usize, more: usize| {
        let mut text = format!(
            "policies: {{a: 'fixed-window:{limit}/1h', b: 'fixed-window:{limit}/1h'}}\nrules:\n"
        );
        for index in 0..more {
            text += &format!("- {{name: r{index}, match: {{path: '/p{index}/**'}}, policy: a}}\n");
        }
        text
    };
    let server = running(&folder, &both(1, 1));
    let done = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let mut peer = server.connect();
            let done = Arc::clone(&done);
            thread::spawn(move || {
                let (mut requests, mut highest) = (0_u64, 0);
                while !done.load(Ordering::Relaxed) {
                    let batch = "SG.MTAKE 2 k @a 0 l @b 0";
                    let sluicegate_resp::Value::Array(both) = peer.call(batch) else {
                        panic!("no answer")
                    };
                    let limits: Vec<i64> =
                        both.iter().map(|it| crate::harness::integers(it)[1]).collect();
                    assert_eq!(limits[0], limits[1], "torn");
                    assert!(limits[0] >= highest, "back to an older version");
                    highest = limits[0];
                    requests += 1;
                }
                requests
            })
        })
        .collect();
    let start = now();
    for version in 2..reloads + 2 {
        replace(&folder, &both(version, if version % 50 == 0 { 1000 } else { 1 }));
        // The folder's watcher may have been faster: then there is nothing new.
        let reloaded = server.reload().unwrap();
        assert_eq!(server.info_value("rules"), reloaded.rules as u64);
    }
    let rate = reloads as f64 / start.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    let requests: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(
        (server.info_value("rules_failed"), server.info_value("total_error_replies")),
        (0, 0)
    );
    println!(
        "figure: {reloads} reloads, {rate:.0} a second, under load, every 50th of 1000 rules: {requests} pairs of \
         decisions, 0 torn, 0 failed"
    );
}

/// Limit and remaining in a response are of one version: each client has its own key, and counts its own usage.
#[test]
fn reload_of_ten_thousand_rules_fails_no_request() {
    const RULES: usize = 10_000;
    const LEAST: u64 = 1_000_000;
    let reloads = (size(RELOADS, 200) / 50).max(4);
    let text = |version: usize| {
        let limit = LEAST + version as u64;
        let mut text = format!("policies: {{plan: 'fixed-window:{limit}/1h'}}\nrules:\n");
        for index in 0..RULES {
            text +=
                &format!("- {{name: r{index}, match: {{path: '/p{index}/**'}}, policy: plan}}\n");
        }
        text
    };
    let folder = TempDir::new();
    let server = running(&folder, &text(1));
    let done = AtomicBool::new(false);
    let requests = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (mut peer, done) = (Client::connect(&server), &done);
                scope.spawn(move || {
                    let (mut used, mut highest) = (0, 0);
                    while !done.load(Ordering::Relaxed) {
                        let fields = format!("X-Forwarded-Uri: /p{}/x\r\n", client * 2503);
                        peer.send_request("GET", "/v1/gate", &fields);
                        let received = peer.read_reply();
                        used += 1;
                        let limit = number(received.field("ratelimit-policy"), ";q=");
                        let left = number(received.field("ratelimit"), ";r=");
                        assert_eq!((received.status, limit - left), (200, used), "torn");
                        assert!(limit >= highest, "back to an older version");
                        highest = limit;
                    }
                    (used, highest)
                })
            })
            .collect();
        let reload = || {
            for version in 2..reloads + 2 {
                replace(&folder, &text(version));
                assert_eq!(server.reload().unwrap().rules, RULES);
            }
            assert_eq!(server.info_value("rules_version"), 1 + reloads as u64);
        };
        // Whatever fails, the clients end.
        let reloaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(reload));
        done.store(true, Ordering::Relaxed);
        let requests: u64 = clients.into_iter().map(|client| client.join().unwrap().0).sum();
        reloaded.unwrap();
        requests
    });
    println!(
        "figure: {reloads} reloads of {RULES} rules under load: {requests} requests, 0 failed, 0 torn"
    );
}

/// The number after `mark`.
fn number(text: &str, mark: &str) -> u64 {
    let (_, rest) = text.split_once(mark).unwrap_or_else(|| panic!("no `{mark}` in `{text}`"));
    rest.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn rules_invalid_fail_the_start() {
    let folder = TempDir::new();
    let file = folder.file("rules.toml");
    fs::write(&file, "policies = { a = 'gcra:1/0s' }\n").unwrap();
    let mut config = crate::harness::config();
    config.rules = vec![file.clone()];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let error = runtime.block_on(sluicegate_server::Server::bind(config)).unwrap_err();
    let expected = format!(
        "{}: line 1, column 26: invalid period `0s`: expected 1ms to 366d\n1 | policies = {{ a = 'gcra:1/0s' }}\n",
        file.display()
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
}
