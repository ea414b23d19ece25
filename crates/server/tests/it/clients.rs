//! Real clients of Redis against a server in this process.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use redis::ProtocolVersion;

use crate::harness::{Running, root};

/// Where `cargo xtask test --all` puts the clients: `SLUICEGATE_TOOLS`, or `target/tools` of
/// the workspace.
pub(crate) fn tools() -> PathBuf {
    let set = std::env::var_os("SLUICEGATE_TOOLS");
    root().join(set.map_or_else(|| PathBuf::from("target/tools"), PathBuf::from))
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a client with `input`, and returns its output. It must succeed.
pub(crate) fn run(command: &mut Command, input: &str) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| {
        panic!("{name} could not be run ({error}); `cargo xtask test --all` installs it");
    });
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{printed}\n{complained}", output.status);
    printed
}

#[test]
fn client_redis_cli_works() {
    let server = Running::new();
    let cli = |arguments: &[&str], input: &str| {
        let mut command = Command::new("redis-cli");
        run(command.arg("-p").arg(server.address.port().to_string()).args(arguments), input)
    };
    for protocol in ["-2", "-3"] {
        let key = format!("user{protocol}");
        let throttled = cli(&[protocol, "CL.THROTTLE", &key, "15", "30", "60"], "");
        assert_eq!(throttled, "0\n16\n15\n-1\n2\n");
        let limits = "sliding-log:30/1m,sliding-log:1000/1d";
        let taken = cli(&[protocol, "SG.TAKE", "user7", limits], "");
        assert!(taken.starts_with("1\n30\n"), "{taken}");
        assert!(cli(&[protocol, "INFO"], "").contains("redis_mode:standalone"));
        assert!(cli(&[protocol, "SG.TAKE", "x", "y"], "").starts_with("SGPOLICY "));
        let lines = "SG.TAKE many fixed-window:1000/1h\n".repeat(100) + "QUIT\n";
        assert_eq!(cli(&[protocol], &lines).matches("\n1000\n").count(), 100, "{protocol}");
    }
    let piped = "SG.TAKE piped fixed-window:1000/1h\r\n".repeat(100);
    assert!(cli(&["--pipe"], &piped).contains("errors: 0, replies: 100"));
}

#[test]
fn client_redis_benchmark_works() {
    let server = Running::new();
    let benchmark = |arguments: &[&str]| {
        let mut command = Command::new("redis-benchmark");
        let port = server.address.port().to_string();
        run(command.args(["-p", &port, "-n", "2000", "-c", "10", "-q"]).args(arguments), "")
    };
    for pipeline in ["1", "16", "100"] {
        let printed = benchmark(&[
            "-P",
            pipeline,
            "-r",
            "100",
            "CL.THROTTLE",
            "u__rand_int__",
            "15",
            "30",
            "60",
        ]);
        assert!(printed.contains("requests per second"), "{printed}");
    }
    let printed = benchmark(&["-t", "ping_inline,ping_mbulk"]);
    assert_eq!(printed.matches("requests per second").count(), 2, "{printed}");
    assert!(server.info_value("allowed") + server.info_value("denied") >= 6000);
}

fn python(package: &str) {
    let server = Running::new();
    for protocol in ["2", "3"] {
        let mut command = Command::new(tools().join("venv/bin/python"));
        let port = server.address.port().to_string();
        run(command.arg(script("with_redis_py.py")).args([package, &port, protocol]), "");
    }
}

#[test]
fn client_redis_py_works() {
    python("redis");
}

#[test]
fn client_valkey_py_works() {
    python("valkey");
}

/// Runs a script under each of these protocols.
fn node(name: &str, library: &str, protocols: &[&str]) {
    let modules = tools().join("node/node_modules");
    assert!(
        modules.is_dir(),
        "{} is missing; `cargo xtask test --all` installs it",
        modules.display()
    );
    let server = Running::new();
    for protocol in protocols {
        let mut command = Command::new("node");
        let port = server.address.port().to_string();
        command.env("NODE_PATH", &modules).arg(script(name)).args([&*port, protocol, library]);
        run(&mut command, "");
    }
}

#[test]
fn client_ioredis_works() {
    node("with_ioredis.cjs", "ioredis", &["2", "3"]);
}

/// It has RESP2 only.
#[test]
fn client_iovalkey_works() {
    node("with_ioredis.cjs", "iovalkey", &["2"]);
}

#[test]
fn client_node_redis_works() {
    node("with_node_redis.cjs", "redis", &["2", "3"]);
}

#[test]
fn client_redis_rs_works() {
    let server = Running::new();
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        let query = if protocol == ProtocolVersion::RESP3 { "?protocol=resp3" } else { "" };
        let client = redis::Client::open(format!("redis://{}/{query}", server.address)).unwrap();
        let mut connection = client.get_connection().unwrap();
        let key = format!("redis-rs {protocol:?}");
        let command = |name: &str, arguments: &[&str]| {
            let mut command = redis::cmd(name);
            command.arg(&key).arg(arguments);
            command
        };
        let throttled: Vec<i64> =
            command("CL.THROTTLE", &["15", "30", "60"]).query(&mut connection).unwrap();
        assert_eq!(throttled, [0, 16, 15, -1, 2]);
        let taken: Vec<i64> = command("SG.TAKE", &["gcra:1/1h"]).query(&mut connection).unwrap();
        assert_eq!(taken[..3], [0, 1, 0]);
        let mut pipeline = redis::pipe();
        for _ in 0..100 {
            pipeline.add_command(command("SG.PEEK", &["fixed-window:60/1h"]));
        }
        let answers: Vec<Vec<i64>> = pipeline.query(&mut connection).unwrap();
        assert_eq!(answers.len(), 100);
        let error = command("SG.TAKE", &["nonsense"]).query::<()>(&mut connection).unwrap_err();
        assert_eq!(error.code(), Some("SGPOLICY"));
        redis::cmd("QUIT").query::<()>(&mut connection).unwrap();
    }
}
