//! `health`, `completions`, and servers that start only with secrets.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::PathBuf,
    process::Stdio,
    thread,
};

use sluicegate_testing::TempDir;

use crate::{
    run::{output, run, sluicegate},
    server::Server,
};

#[test]
fn health_server_ready_exits_0() {
    let server = Server::start(&[]);
    assert_eq!(output(&["health", &server.http], ""), "ready\n");
}

#[test]
fn health_store_unavailable_exits_1_with_the_reason() {
    // Nothing listens on port 1.
    let server = Server::start(&["--store", "redis://127.0.0.1:1", "--on-error", "deny"]);
    // The breaker opens at the first failures.
    let ended = sluicegate_testing::eventually("the server is not ready", || {
        let ended = run(&["health", &server.http], "");
        if ended.code == Some(1) { Ok(ended) } else { Err(ended) }
    });
    assert!(ended.out.starts_with("not ready: the store is unavailable"), "{ended:?}");
    assert!(!ended.out.contains('{'), "{ended:?}");
}

#[test]
fn health_no_server_exits_1_and_names_the_address() {
    let ended = run(&["health", "127.0.0.1:1"], "");
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.err.starts_with("error: the server at 127.0.0.1:1 does not answer: "),
        "{}",
        ended.err
    );
}

#[test]
fn health_port_of_another_protocol_exits_1() {
    let server = Server::start(&[]);
    let address = server.address.trim_start_matches("resp://");
    let ended = run(&["health", address], "");
    let expected = format!(
        "error: {address} does not speak HTTP without TLS: expected the address of `serve --http`\n"
    );
    assert_eq!((ended.code, ended.err), (Some(1), expected));
}

#[test]
fn health_server_that_closes_the_connection_exits_1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || drop(listener.accept().unwrap()));
    let ended = run(&["health", &address], "");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    server.join().unwrap();
}

#[test]
fn health_other_response_is_its_status() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n{\"detail\":7}").unwrap();
        line
    });
    let ended = run(&["health", &address], "");
    assert_eq!(server.join().unwrap(), "GET /readyz HTTP/1.1\r\n");
    assert_eq!((ended.code, &*ended.out), (Some(1), "not ready: HTTP status 404\n"));
}

#[test]
fn health_invalid_argument_exits_2() {
    for (address, expected) in [
        ("foo", "invalid ADDRESS:PORT `foo`: expected ADDRESS:PORT, such as `foo:8080`"),
        ("no-such-host.invalid:1", "invalid address `no-such-host.invalid:1`: expected "),
    ] {
        let ended = run(&["health", address], "");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.err.starts_with(&format!("error: {expected}")), "{}", ended.err);
    }
}

#[test]
fn completions_list_the_commands() {
    for (shell, line) in [
        ("bash", "complete -F _sluicegate"),
        ("zsh", "#compdef sluicegate"),
        ("fish", "complete -c sluicegate"),
    ] {
        let text = output(&["completions", shell], "");
        assert!(text.contains(line) && text.contains("simulate"), "{shell}: {text}");
    }
}

#[test]
fn man_pages_describe_every_command() {
    let folder = TempDir::new();
    output(&["man-pages", folder.path().to_str().unwrap()], "");
    for (page, text) in
        [("sluicegate.1", "exact to the microsecond"), ("sluicegate-serve.1", "max\\-clients")]
    {
        let page = std::fs::read_to_string(folder.path().join(page)).expect(page);
        assert!(page.contains(text), "{page}");
    }
}

#[test]
fn serve_require_secrets_without_one_does_not_start() {
    let open = ["serve", "--listen", "0.0.0.0:0", "--http", "off", "--grpc", "off"];
    let ended = run(&[&open[..], &["--require-secrets"]].concat(), "");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let expected = "--require-secrets is set, and these ports beyond loopback have no secret: resp at 0.0.0.0:0; ";
    assert!(ended.err.contains(expected), "{ended:?}");
    drop(Server::start(&["--require-secrets"]));
}

#[test]
fn serve_require_secrets_false_in_the_environment_overrides_the_file() {
    let folder = TempDir::new();
    let file = folder.path().join("settings.toml");
    std::fs::write(&file, "require-secrets = true\nlisten = \"0.0.0.0:0\"").unwrap();
    let serve = |environment: &[(&str, &str)]| {
        let mut command = sluicegate();
        command.args(["serve", "--http", "off", "--grpc", "off", "--config"]).arg(&file);
        command.envs(environment.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // It may have ended by itself.
        let _ = child.kill();
        child.wait().unwrap();
        line
    };
    assert_eq!(serve(&[]), "");
    let line = serve(&[("SLUICEGATE_REQUIRE_SECRETS", "false")]);
    assert!(line.starts_with("listening on 0.0.0.0:"), "{line}");
}

/// A pager that ends early closes the pipe.
#[cfg(unix)]
#[test]
fn completions_closed_pipe_does_not_panic() {
    let mut child = sluicegate()
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Also an error with which rows of `simulate` are lost.
#[cfg(target_os = "linux")]
#[test]
fn commands_full_output_exit_2_and_name_it() {
    let server = Server::start(&[]);
    let simulate = "simulate --traffic even:100/s --for 1m --policy gcra:1/1s";
    for command in [
        &*format!("{simulate} --format csv"),
        simulate,
        "policy gcra:1/1s",
        "version",
        "completions zsh",
        "serve --print-config",
        &format!("health {}", server.http),
        &format!("take k gcra:1/1s --server {}", server.address),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = sluicegate().args(command.split(' ')).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        let expected = "error: cannot write to standard output: no space left on device\n";
        assert_eq!((&*error, output.status.code()), (expected, Some(2)), "{command}");
    }
}

/// `health` needs HTTP: the health check of the image fails without it, until it is disabled.
#[test]
fn health_compose_file_without_http_disables_the_check() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (file, has_http) in
        [("examples/envoy/docker-compose.yaml", false), ("dist/compose.yaml", true)]
    {
        let text = fs::read_to_string(root.join(file)).unwrap();
        assert_eq!(!text.contains("--http, \"off\""), has_http, "{file}");
        assert_eq!(!text.contains("healthcheck: { disable: true }"), has_http, "{file}");
    }
}
