//! Mistakes in the settings of `serve`.

use std::{fs, net::TcpListener, path::PathBuf};

use super::{check, check_message};
use crate::run::sluicegate;

/// A folder of its own, until dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let name = format!("sluicegate-mistakes-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it, with this content.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ADDRESS: &str = "expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`";
const HOST: &str = "expected a host name, such as `limits.example` or `limits.example:8443`";
const DURATION: &str = "expected a duration such as `250ms`, `30s` or `2h`";

#[test]
fn serve_flag_mistakes_are_named() {
    for (line, expected) in [
        ("--listen 6380", format!("invalid --listen `6380`: {ADDRESS}")),
        ("--listen localhost", "invalid --listen `localhost`: expected ADDRESS:PORT, such as `localhost:6380`".into()),
        ("--listen 127.0.0.1:99999", "invalid --listen `127.0.0.1:99999`: expected a port from 0 to 65535".into()),
        ("--listen ::1:6380", "invalid --listen `::1:6380`: expected brackets around an IPv6 address, as in `[::1]:6380`".into()),
        ("--listen http://x:1", format!("invalid --listen `http://x:1`: {ADDRESS}")),
        ("--listen off", "invalid --listen `off`: expected ADDRESS:PORT, such as `127.0.0.1:6380` or `:6380`".into()),
        ("--listen no-such-host.invalid:1 --http off --grpc off", "invalid --listen `no-such-host.invalid:1`: expected the name of a host that can be resolved".into()),
        ("--listen", "missing value of --listen: expected ADDRESS:PORT".into()),
        ("--http no", "invalid --http `no`: expected ADDRESS:PORT, such as `no:8080`, or `off`".into()),
        ("--http x@y", "invalid --http `x@y`: expected ADDRESS:PORT, such as `127.0.0.1:8080` or `:8080`, or `off`".into()),
        ("--grpc foo", "invalid --grpc `foo`: expected ADDRESS:PORT, such as `foo:8081`, or `off`".into()),
        ("--grpc 8081", "invalid --grpc `8081`: expected ADDRESS:PORT, such as `127.0.0.1:8081` or `:8081`, or `off`".into()),
        ("--max-clients many", "invalid --max-clients `many`: expected a whole number, at least 1".into()),
        ("--max-clients 0", "invalid --max-clients `0`: expected a whole number, at least 1".into()),
        ("--max-clients -5", "invalid --max-clients `-5`: expected a whole number, at least 1".into()),
        ("--max-memory 10", "invalid --max-memory `10`: expected a size of at least 2mb, such as `256mb`".into()),
        ("--max-memory 1tb", "invalid --max-memory `1tb`: expected a size such as `256mb` or `1gb`".into()),
        ("--max-memory 1.5gb", "invalid --max-memory `1.5gb`: expected a size such as `256mb` or `1gb`".into()),
        ("--max-buffer-memory 1kb", "invalid --max-buffer-memory `1kb`: expected a size of at least 1mb".into()),
        ("--workers 0", "invalid --workers `0`: expected a whole number from 1 to 1024, or `auto`".into()),
        ("--workers all", "invalid --workers `all`: expected a whole number from 1 to 1024, or `auto`".into()),
        ("--timeout soon", format!("invalid --timeout `soon`: {DURATION}")),
        ("--timeout -1", format!("invalid --timeout `-1`: {DURATION}")),
        ("--output-timeout 0", "invalid --output-timeout `0`: expected a duration of at least 1s".into()),
        ("--snapshot-every 1.5s", format!("invalid --snapshot-every `1.5s`: {DURATION}")),
        ("--http-trusted-hops -1", "invalid --http-trusted-hops `-1`: expected a whole number, at least 0".into()),
        ("--http-token EMPTY", "invalid --http-token: expected at least one character; remove the setting to use none".into()),
        ("--http-headers all", "invalid --http-headers `all`: expected ietf, x-ratelimit or none".into()),
        ("--dashboard none", "invalid --dashboard `none`: expected on, masked, no-keys or off".into()),
        ("--when-full drop", "invalid --when-full `drop`: expected deny or allow".into()),
        ("--gate-uri-header X:Y", "invalid --gate-uri-header `X:Y`: expected the name of a header".into()),
        ("--unix-permissions 888", "invalid --unix-permissions `888`: expected three octal digits".into()),
        ("--store localhost:6379", "invalid --store `localhost:6379`: missing `://`: expected redis://HOST".into()),
        ("--store u:hunter2@x", "invalid --store `********@x`: missing `://`: expected redis://HOST".into()),
        ("--store redis://a:99999", "invalid store URL: invalid host `a:99999`: expected HOST, HOST:PORT or [IPv6]:PORT, with a port from 0 to 65535".into()),
        ("--store redis://a --store-deadline 15", "invalid --store-deadline `15`: expected a duration with a unit, such as `15s` or `15ms`".into()),
        ("--store redis://a --store-deadline 2h", "invalid --store-deadline `2h`: expected a duration from 1ms to 1m".into()),
        ("--snapshot-every 60s", "missing --state-file: --snapshot-every needs it".into()),
        ("--unix-permissions 770", "missing --unix: --unix-permissions needs it".into()),
        ("--gate-address-header X-Forwarded-For --http-trusted-hops 0 --http 127.0.0.1:0", "invalid --gate-address-header together with --http-trusted-hops `0`: addresses of clients are not read then; remove one of them".into()),
        ("--http-token x", "invalid --http-token together with --http `off`: it is a setting of HTTP; remove one of them".into()),
        ("--http-allowed-hosts a", "invalid --http-allowed-hosts together with --http `off`: ".into()),
        ("--http-headers ietf", "invalid --http-headers together with --http `off`: ".into()),
        ("--http-trusted-hops 2", "invalid --http-trusted-hops together with --http `off`: ".into()),
        ("--dashboard on", "invalid --dashboard together with --http `off`: ".into()),
        ("--gate-uri-header X", "invalid --gate-uri-header together with --http `off`: ".into()),
        ("--gate-method-header X", "invalid --gate-method-header together with --http `off`: ".into()),
        ("--gate-address-header X", "invalid --gate-address-header together with --http `off`: ".into()),
        ("--http-tls-cert x --http-tls-key x", "invalid --http-tls-cert together with --http `off`: ".into()),
        ("--envoy-headers ratelimit", "invalid --envoy-headers together with --grpc `off`: it is a setting of gRPC; remove one of them".into()),
        ("--envoy-metadata", "invalid --envoy-metadata together with --grpc `off`: ".into()),
        ("--grpc-max-age 1h --grpc off", "invalid --grpc-max-age together with --grpc `off`: ".into()),
        ("--grpc-tls-cert x --grpc-tls-key x --grpc off", "invalid --grpc-tls-cert together with --grpc `off`: ".into()),
        ("--http-allowed-hosts https://limits.example", format!("invalid --http-allowed-hosts `https://limits.example`: {HOST}")),
        ("--http-allowed-hosts a.example,*.example.com", format!("invalid --http-allowed-hosts `*.example.com`: {HOST}")),
        ("--store-deadline 15ms", "missing --store: --store-deadline needs it".into()),
        ("--store redis://a --on-error maybe", "invalid --on-error `maybe`: expected deny, allow, local or a share".into()),
        ("--store redis://a --state-file x", "invalid --state-file together with --store: the store keeps the state".into()),
        ("--store redis://a --fallback-denial-status 500", "invalid --fallback-denial-status `500`: expected 503 or 429".into()),
        ("--port 6380", "unknown option `--port`: did you mean `--listen`?\n".into()),
        ("--addr :0", "unknown option `--addr`: did you mean `--listen`?\n".into()),
        ("--password x", "unknown option `--password`: did you mean `--requirepass`?\n".into()),
        ("--token x", "unknown option `--token`: did you mean `--http-token`?\n".into()),
        ("--threads 2", "unknown option `--threads`: did you mean `--workers`?\n".into()),
        ("--redis redis://a", "unknown option `--redis`: did you mean `--store`?\n".into()),
        ("--max-mem 1gb", "unknown option `--max-mem`: did you mean `--max-memory`?\n".into()),
        ("--tls x", "unknown option `--tls`: see `sluicegate serve --help`\n".into()),
        ("-v", "unknown option `-v`: did you mean `--version`?\n".into()),
        ("--serve", "unknown option `--serve`: expected the command `serve` without `--`\n".into()),
        ("--log-level verbose", "invalid --log-level `verbose`: expected error, warn, info, debug, trace or off\n".into()),
        ("--max-memory 1tb", "invalid --max-memory `1tb`: expected a size such as `256mb` or `1gb`, in b, kb, mb or gb\n".into()),
        ("--store redis://a --fallback-denial-status 429", "invalid --fallback-denial-status together with --http `off` and --grpc `off`: it is a setting of HTTP and gRPC; remove one of them\n".into()),
        ("--tls-cert x", "missing --tls-key: --tls-cert needs it".into()),
        ("--tls-cert /no.pem --tls-key /no.key", "cannot read --tls-cert /no.pem: no such file or directory".into()),
        ("--unix /nowhere/x.sock", "cannot listen on /nowhere/x.sock (--unix): no such file or directory".into()),
        ("--state-file /nowhere/state", "invalid state file `/nowhere/state`: expected a file in a folder that exists".into()),
        ("--rules /nowhere.yaml", "cannot read /nowhere.yaml: no such file or directory".into()),
        ("--config /nowhere.toml", "cannot read the configuration file /nowhere.toml: no such file".into()),
        ("--max-client 5", "unknown option `--max-client`: did you mean `--max-clients`?".into()),
        ("--frobnicate", "unknown option `--frobnicate`: see `sluicegate serve --help`".into()),
        ("--require-secrets=false", "--require-secrets takes no value; to switch it off, leave it out or set SLUICEGATE_REQUIRE_SECRETS=false".into()),
        ("--print-config=x", "--print-config takes no value; to switch it off, leave it out\n".into()),
        ("--test-clock --test-clock", "--test-clock is given twice: expected it once".into()),
        ("here", "unexpected argument `here`".into()),
        (
            "--log-denials /tmp/denials.log",
            "unexpected argument `/tmp/denials.log`: expected `--log-denials=/tmp/denials.log`".into(),
        ),
        ("--otlp https://a", "invalid --otlp `https://a`: expected http://HOST, http://HOST:PORT or http://HOST:PORT/PATH".into()),
        ("--otlp http://u:hunter2@a", "invalid --otlp `http://********@a`: expected http://HOST".into()),
        ("--otlp http://a --otlp-sample 1%", "invalid --otlp-sample `1%`: expected a number from 0 to 1".into()),
        ("--otlp-sample 1", "missing --otlp: --otlp-sample needs it".into()),
        ("--log-level inof", "invalid --log-level `inof`: did you mean `info`?".into()),
        ("--log-format xml", "invalid --log-format `xml`: expected text or json".into()),
    ] {
        // Where a server would start, it must not take the usual ports.
        let ports = if line.contains("--listen") || line.contains("--http ") || line.contains("--grpc") {
            ""
        } else {
            " --listen 127.0.0.1:0 --http off --grpc off"
        };
        check(&format!("serve{ports} {line}"), "", &expected);
    }
}

#[test]
fn serve_environment_mistakes_name_the_variable() {
    for (name, value, expected) in [
        (
            "SLUICEGATE_MAX_CLIENTS",
            "many",
            "invalid SLUICEGATE_MAX_CLIENTS `many`: expected a whole number",
        ),
        (
            "SLUICEGATE_REQUIREPASS",
            "",
            "invalid SLUICEGATE_REQUIREPASS: expected at least one character",
        ),
        (
            "SLUICEGATE_HTTP_TOKEN",
            "",
            "invalid SLUICEGATE_HTTP_TOKEN: expected at least one character",
        ),
        (
            "SLUICEGATE_STORE",
            "localhost:6379",
            "invalid SLUICEGATE_STORE `localhost:6379`: missing `://`: expected redis://HOST, ",
        ),
        (
            "SLUICEGATE_STORE",
            "",
            "invalid SLUICEGATE_STORE ``: missing `://`: expected redis://HOST, ",
        ),
        ("SLUICEGATE_LISTEN", "7000", "invalid SLUICEGATE_LISTEN `7000`: expected ADDRESS:PORT"),
        (
            "SLUICEGATE_HTTP_ALLOWED_HOSTS",
            "",
            "invalid SLUICEGATE_HTTP_ALLOWED_HOSTS ``: expected a host name, such as `limits.example`",
        ),
        (
            "SLUICEGATE_TEST_CLOCK",
            "maybe",
            "invalid SLUICEGATE_TEST_CLOCK `maybe`: expected true or false",
        ),
        (
            "SLUICEGATE_WHEN_FULL",
            "alow",
            "invalid SLUICEGATE_WHEN_FULL `alow`: did you mean `allow`?",
        ),
        ("SLUICEGATE_ON_ERROR", "deny", "missing --store: SLUICEGATE_ON_ERROR needs it"),
        (
            "SLUICEGATE_LOG",
            "loud",
            "invalid SLUICEGATE_LOG `loud`: expected error, warn, info, debug, trace or off",
        ),
    ] {
        let output = sluicegate().arg("serve").env(name, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        let message = String::from_utf8(output.stderr).unwrap();
        check_message(name, &message, expected);
    }
}

#[test]
fn serve_files_of_the_wrong_kind_are_named() {
    let folder = TempDir::new("serve");
    let ports = "serve --listen 127.0.0.1:0 --http off --grpc off";
    let plain = folder.file("plain", "hello");
    check(
        &format!("{ports} --unix {plain}"),
        "",
        &format!("cannot listen on {plain} (--unix): it is a file that is not a socket: remove it"),
    );
    check(
        &format!(
            "serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --grpc off --http-tls-cert {plain} --http-tls-key {plain}"
        ),
        "",
        &format!("invalid --http-tls-cert `{plain}`: expected a certificate in PEM"),
    );
    let config = folder.file("a.toml", "# first\nlisten = 6380\n");
    check(
        &format!("serve --config {config}"),
        "",
        &format!("{config}: line 2: invalid listen `6380`: expected ADDRESS:PORT"),
    );
    let config = folder.file("b.toml", "http-token = \"\"\n");
    check(
        &format!("serve --config {config}"),
        "",
        &format!("{config}: line 1: invalid http-token: expected at least one character"),
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    check(
        &format!("serve --listen 127.0.0.1:{port} --http off --grpc off"),
        "",
        &format!("port {port} of 127.0.0.1 is in use: choose another with --listen"),
    );
}

/// The lines that a server logs, in JSON, with these variables and arguments.
#[cfg(unix)]
fn log_of(arguments: &[&str], variables: &[(&str, &str)]) -> Vec<serde_json::Value> {
    use std::{io::Read as _, process::Stdio};

    let mut child = sluicegate()
        .args(["serve", "--listen", "localhost:0", "--http", "off", "--grpc", "off"])
        .args(["--log-format", "json"])
        .args(arguments)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert!(line.starts_with("listening on 127.0.0.1:"), "{line}");
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(child.wait().unwrap().success());
    // One JSON object per line.
    log.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[cfg(unix)]
#[test]
fn environment_variables_without_effect_are_warned_about() {
    let unknown = "unknown environment variable";
    let password = "SLUICEGATE_PASSWORD is ignored: client commands read it; use \
                    SLUICEGATE_REQUIREPASS for the server";
    let store = "SLUICEGATE_REDIS is ignored: client commands read it; use SLUICEGATE_STORE for \
                 the server";
    for (arguments, (name, value), warning) in [
        (
            "",
            ("MAXMEMORY", "1gb"),
            format!("{unknown} SLUICEGATE_MAXMEMORY: did you mean SLUICEGATE_MAX_MEMORY?"),
        ),
        (
            "",
            ("PORT", "6380"),
            format!("{unknown} SLUICEGATE_PORT: did you mean SLUICEGATE_LISTEN?"),
        ),
        (
            "",
            ("HTTP_PORT", "80"),
            format!("{unknown} SLUICEGATE_HTTP_PORT: did you mean SLUICEGATE_HTTP?"),
        ),
        ("", ("FOO", "1"), format!("{unknown} SLUICEGATE_FOO: it is ignored")),
        ("", ("PASSWORD", "secret"), password.to_owned()),
        ("", ("REDIS", "redis://a"), store.to_owned()),
        ("--requirepass x", ("PASSWORD", "secret"), String::new()),
        // Kubernetes sets these beside a service of this name.
        ("", ("PORT", "tcp://10.0.0.1:6380"), String::new()),
        ("", ("PORT_6380_TCP", "tcp://10.0.0.1:6380"), String::new()),
    ] {
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let lines = log_of(&arguments, &[(&format!("SLUICEGATE_{name}"), value)]);
        let message = |line: &serde_json::Value| line["message"].as_str().unwrap().to_owned();
        let messages: Vec<_> = lines.iter().map(message).collect();
        let mut expected: Vec<&str> = vec!["started", "stopping", "stopped"];
        if !warning.is_empty() {
            expected.insert(0, &warning);
            assert_eq!(lines[0]["level"], "WARN");
        }
        assert_eq!(messages, expected, "{name}");
    }
}
