//! Compared with redis-cell: the same replies, except for documented corrections; its keys are taken over; if it has
//! registered the command, the module leaves that to it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
};

use redis::{Value, pipe};
use sluicegate_testing::{Engine, RawClient, Server, cargo, integers};

use crate::{
    on_both,
    replication::SeededRng,
    server::{module, serve, target, with_test_clock},
};

/// Random calls to each.
const CALLS: u64 = 100_000;
const AT_ONCE: u64 = 100;

/// The module of redis-cell. Cargo does not build the `cdylib` of a dependency. Therefore the package is copied to a folder
/// and built there, unless the benchmarks have built it.
fn redis_cell() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let folder = target().join("bench-peers/redis-cell");
        let module = folder.join("built/release/libredis_cell.so");
        if !module.exists() {
            fs::create_dir_all(folder.join("src")).unwrap();
            let manifest = "[package]\nname = \"fetch\"\nedition = \"2024\"\n\n[dependencies]\n\
                            redis-cell = \"=0.2.2\"\n\n[workspace]\nexclude = [\"vendor\"]\n";
            fs::write(folder.join("Cargo.toml"), manifest).unwrap();
            fs::write(folder.join("src/lib.rs"), "").unwrap();
            run_cargo(&folder, &["vendor", "--quiet", "vendor"]);
            let manifest = "vendor/redis-cell/Cargo.toml";
            let build = ["build", "--release", "--quiet", "--target-dir", "built"];
            run_cargo(&folder, &[&build[..], &["--manifest-path", manifest]].concat());
        }
        module
    })
}

fn run_cargo(folder: &Path, arguments: &[&str]) {
    let mut command = cargo();
    // The package is old, and its warnings do not matter here.
    command.args(arguments).current_dir(folder).env("RUSTFLAGS", "--cap-lints=allow");
    assert!(command.stdout(Stdio::null()).status().unwrap().success(), "{arguments:?}");
}

fn with_redis_cell(engine: Engine, more: &[&str]) -> Server {
    let cell = redis_cell().to_str().unwrap();
    Server::with(engine, &[&["--loadmodule", cell], more].concat())
}

/// Sends all calls in one pipeline.
fn call_all(peer: &mut RawClient, lines: &[String]) -> Vec<Vec<i64>> {
    let mut all = pipe();
    for line in lines {
        let mut words = line.split(' ');
        let command = all.cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
    }
    let replies: Vec<Value> = all.query(&mut peer.0).unwrap();
    replies.iter().map(integers).collect()
}

/// A unit takes an hour or more, so that the time between two calls only matters in the seconds of replies. redis-cell
/// rounds them down and the module up, which is one of the corrections.
fn cl_throttle_random_calls_return_what_redis_cell_returns(engine: Engine) {
    let (ours, theirs) = (serve(engine), with_redis_cell(engine, &[]));
    let (mut ours, mut theirs) = (ours.raw_client(), theirs.raw_client());
    let mut draw = SeededRng(23);
    let (mut denied, mut never, mut between) = (0, 0, 0);
    for _ in 0..CALLS / AT_ONCE {
        let lines: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                // Each key keeps its policy: a change of policy is a documented correction.
                let key = draw.below(1000);
                let (burst, count, period) = (key % 24, 1 + key % 23, 86_400 * (1 + key % 7));
                // Includes a quantity of 0, and one above the burst.
                let quantity = [0, 1, 1, 1, 2, 3, 7, 40];
                let quantity = quantity[usize::try_from(draw.below(8)).unwrap()];
                format!("CL.THROTTLE user:{key} {burst} {count} {period} {quantity}")
            })
            .collect();
        let (found, expected) = (call_all(&mut ours, &lines), call_all(&mut theirs, &lines));
        for ((line, found), expected) in lines.iter().zip(found).zip(expected) {
            let actual = format!("{line}: {found:?}, redis-cell {expected:?}");
            assert_eq!(found[..3], expected[..3], "{actual}");
            for (found, expected) in found[3..].iter().zip(&expected[3..]) {
                assert_eq!(*found == -1, *expected == -1, "{actual}");
                assert!((0..=2).contains(&(found - expected)), "{actual}");
                between += u64::from(found - expected > 1);
            }
            denied += found[0];
            never += i64::from(found[0] == 1 && found[3] == -1);
        }
    }
    println!(
        "{engine:?}: {CALLS} calls alike; {denied} denied, {never} of them for ever; in {between} \
         times of {} a second passed between",
        2 * CALLS
    );
    assert!(denied > 10_000 && never > 1000);
    assert!(between < CALLS / 10, "{between}");
}

fn keys_of_redis_cell_are_taken_over(engine: Engine) {
    let folder = {
        let server = with_redis_cell(engine, &["--appendonly", "yes", "--appendfsync", "always"]);
        let mut peer = server.raw_client();
        for _ in 0..10 {
            assert_eq!(peer.integers("CL.THROTTLE k 15 30 86400")[0], 0);
        }
        // A file of commands needs redis-cell to be read. Therefore a snapshot is written.
        peer.call("CONFIG SET appendonly no").unwrap();
        peer.call("SAVE").unwrap();
        server.into_folder()
    };
    let _ = fs::remove_dir_all(folder.path().join("appendonlydir"));
    let server = Server::within(engine, folder, &["--loadmodule", module()], &[]).unwrap();
    let mut peer = server.raw_client();
    assert!(peer.error("SG.INFO k").starts_with("SGSTATE key `k` holds state of redis-cell"));
    assert!(
        peer.error("SG.TAKE k fixed-window:9/1h")
            .starts_with("SGSTATE key `k` holds state of redis-cell")
    );
    assert_eq!(peer.integers("CL.THROTTLE k 15 30 86400 0")[2], 6, "a look leaves it as it is");
    assert!(peer.text("GET k").bytes().all(|it| it.is_ascii_digit()));
    assert_eq!(peer.integers("CL.THROTTLE k 15 30 86400")[..3], [0, 16, 5]);
    assert_eq!(peer.integers("SG.TAKE k gcra:30/1d:burst=16")[..3], [1, 16, 4]);
    assert!(peer.call("SG.INFO k").is_ok());
    // With several limits, the first one of the gcra family takes it over.
    let ahead = 1_700_000_002_000_000_000_u64;
    drop(peer);
    let server = with_test_clock(engine);
    let mut peer = server.raw_client();
    peer.call(&format!("SET m {ahead} PX 100000")).unwrap();
    let line = "SG.TAKE m fixed-window:9/1h,gcra:30/1m:burst=3 AT 1700000000000000";
    assert_eq!(peer.integers(line)[..3], [1, 3, 1]);
}

fn load_after_redis_cell_leaves_it_cl_throttle(engine: Engine) {
    let server = with_redis_cell(engine, &["--loadmodule", module()]);
    let mut peer = server.raw_client();
    assert!(server.log().contains("cl.throttle is taken by another module"));
    assert_eq!(peer.integers("CL.THROTTLE k 15 30 60"), [0, 16, 15, -1, 2]);
    let stored = peer.text("GET k");
    assert!(stored.bytes().all(|it| it.is_ascii_digit()), "redis-cell answered: {stored}");
    assert_eq!(peer.integers("SG.TAKE l gcra:30/1m")[0], 1);
}

on_both! {
    cl_throttle_random_calls_return_what_redis_cell_returns
    keys_of_redis_cell_are_taken_over
    load_after_redis_cell_leaves_it_cl_throttle
}
