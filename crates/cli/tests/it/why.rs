//! `serve --log-denials` and `why`: the numbers of each sentence agree with the core.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    time::Duration,
};

use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
use sluicegate_resp::{Value, decode, encode_command};
use sluicegate_testing::{Random, TempDir, eventually_true};

use crate::{
    run::{output, run},
    server::Server,
};

/// A connection to a server.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    fn connect(server: &Server) -> Self {
        let address = server.address.trim_start_matches("resp://");
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, received: Vec::new() }
    }

    fn call(&mut self, line: &str) -> Value {
        let (arguments, mut bytes) =
            (line.split(' ').map(str::as_bytes).collect::<Vec<_>>(), vec![]);
        encode_command(&arguments, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
        loop {
            if let Some((value, taken)) = decode(&self.received).unwrap() {
                self.received.drain(..taken);
                return value;
            }
            let mut chunk = [0; 4096];
            let count = self.stream.read(&mut chunk).unwrap();
            assert!(count > 0, "closed before a reply");
            self.received.extend_from_slice(&chunk[..count]);
        }
    }

    /// Whether a command that decides was allowed.
    fn is_allowed(&mut self, line: &str) -> bool {
        match self.call(line) {
            Value::Array(integers) => integers[0] == Value::Integer(1),
            other => panic!("{line}: {other:?}"),
        }
    }
}

/// A denial of the core: its key, the policy with its capacity left open, and the states before and after it.
struct CoreDenial {
    key: String,
    template: &'static str,
    kind: Kind,
    policy: Policy,
    now: Timestamp,
    cost: u32,
    before: Option<Entry>,
    after: Option<Entry>,
}

/// What requests ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Take,
    /// Holds with this lifetime in microseconds; 0 is that of the policy.
    Hold(u64),
    /// Reserves that wait for up to these microseconds.
    Reserve(u64),
}

impl Kind {
    fn operation(self, id: &[u8], cost: u32) -> Operation<'_> {
        match self {
            Self::Take => Operation::Take(cost),
            Self::Hold(0) => Operation::Hold { id, cost, ttl: None },
            Self::Hold(ttl) => Operation::Hold { id, cost, ttl: Some(Duration::from_micros(ttl)) },
            Self::Reserve(wait) => {
                Operation::Reserve { cost, max_wait: Duration::from_micros(wait) }
            }
        }
    }

    fn line(self, key: &str, policy: &Policy, id: &str, cost: u32, at: u64) -> String {
        let (command, more) = match self {
            Self::Take => ("TAKE", String::new()),
            Self::Hold(0) => ("HOLD", format!("{id} ")),
            Self::Hold(ttl) => ("HOLD", format!("{id} TTL {ttl} ")),
            Self::Reserve(wait) => ("RESERVE", format!("MAXWAIT {wait} ")),
        };
        format!("SG.{command} {key} {policy} {more}COST {cost} AT {at}")
    }
}

use Kind::{Hold, Reserve, Take};

/// Policies of every algorithm, with `CAP` where the capacity is, and a capacity.
const POLICIES: [(&str, u32, Kind); 23] = [
    ("gcra:10/7s:burst=CAP", 5, Take),
    ("gcra:3/1s:burst=CAP:borrow", 4, Take),
    ("token-bucket:7/3s:burst=CAP", 4, Take),
    ("token-bucket:5/1s:burst=CAP:borrow", 5, Take),
    ("token-bucket:5/3s:burst=CAP:refill=interval", 5, Take),
    ("leaky-bucket:120/1m:capacity=CAP", 10, Take),
    ("leaky-queue:5/3s:capacity=CAP", 3, Take),
    ("fixed-window:CAP/10s", 3, Take),
    ("fixed-window:CAP/10s:align=clock", 5, Take),
    ("fixed-window:CAP/10s:count=all", 6, Take),
    ("fixed-window:CAP/day", 8, Take),
    ("sliding-log:CAP/10s", 4, Take),
    ("sliding-log:CAP/10s:count=all", 6, Take),
    ("sliding-counter:CAP/10s", 7, Take),
    ("gcra:2/1s:burst=CAP,fixed-window:9/1m", 3, Take),
    ("fixed-window:CAP/1m,sliding-log:9/1m", 6, Take),
    ("concurrency:CAP/5s", 4, Hold(0)),
    ("concurrency:CAP/30s,concurrency:9/20s", 4, Hold(0)),
    ("gcra:10/7s:burst=CAP", 5, Hold(2_000_000)),
    ("fixed-window:CAP/10s", 3, Hold(4_000_000)),
    ("sliding-log:CAP/10s", 4, Hold(1_000_000)),
    ("gcra:10/7s:burst=CAP", 5, Reserve(300_000)),
    ("leaky-queue:5/3s:capacity=CAP", 3, Reserve(700_000)),
];

fn with_capacity(template: &str, capacity: u32) -> Policy {
    template.replace("CAP", &capacity.to_string()).parse().unwrap()
}

fn decide(
    policy: &Policy,
    entry: &Option<Entry>,
    now: Timestamp,
    operation: Operation<'_>,
) -> (bool, Option<Entry>) {
    let mut entry = entry.clone();
    let decision = apply(policy, &mut entry, now, operation).unwrap();
    (decision.allowed(), entry)
}

/// The text between two others.
fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after).map_or(rest, |(found, _)| found))
}

/// The number after a text.
fn number_after(text: &str, before: &str) -> Option<u32> {
    let (_, rest) = text.split_once(before)?;
    let digits = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
    Some(rest[..digits].parse().unwrap())
}

/// Of random requests under policies of every algorithm: each stated time, cost and capacity is enough, and a microsecond
/// less, a unit more or a unit less is not.
#[test]
fn why_numbers_of_every_algorithm_agree_with_the_core() {
    let folder = TempDir::new();
    let log = folder.path().join("denials.log");
    let log = log.to_str().unwrap();
    let server = Server::start(&["--test-clock", &format!("--log-denials={log}")]);
    let mut client = Client::connect(&server);
    let (mut random, mut denials) = (Random(7), Vec::<CoreDenial>::new());
    for (index, (template, capacity, kind)) in POLICIES.into_iter().enumerate() {
        let (policy, key) = (with_capacity(template, capacity), format!("k{index}"));
        let (mut entry, mut micros) = (None, 1_700_000_000_000_000 + random.below(1_000_000));
        let mut last_denied = 0;
        for turn in 0..60 {
            micros += random.below(700_000);
            let (now, cost) = (
                Timestamp::from_micros(micros).unwrap(),
                1 + u32::try_from(random.below(4)).unwrap(),
            );
            let cost = if turn % 13 == 12 { capacity + cost } else { cost };
            let id = turn.to_string();
            let operation = kind.operation(id.as_bytes(), cost);
            let line = kind.line(&key, &policy, &id, cost, micros);
            let (is_allowed, after) = decide(&policy, &entry, now, operation);
            assert_eq!(client.is_allowed(&line), is_allowed, "{line}");
            // The log has the first denial of a second.
            if !is_allowed && micros / 1_000_000 != last_denied {
                last_denied = micros / 1_000_000;
                let (before, after) = (entry, after.clone());
                let (policy, key) = (policy.clone(), key.clone());
                denials.push(CoreDenial { key, template, kind, policy, now, cost, before, after });
            }
            entry = after;
        }
    }
    server.stop("-TERM");
    let sentences = output(&["why", log], "");
    let (mut times, mut costs, mut capacities) = (0, 0, 0);
    for denial in &denials {
        let CoreDenial { key, template, kind, policy, now, cost, before, after } = denial;
        let time = jiff::Timestamp::from_microsecond(now.as_micros().cast_signed()).unwrap();
        let start = format!("{}: ", time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"));
        let is_it =
            |line: &&str| line.starts_with(&start) && line.contains(&format!("key `{key}`"));
        let sentence = sentences.lines().find(is_it);
        let sentence = sentence.unwrap_or_else(|| panic!("{start}{key}: {sentences}"));
        let operation = |cost| kind.operation(b"other", cost);
        match between(sentence, "later (at ", ", if no other") {
            Some(moment) => {
                let moment: jiff::Timestamp = moment.parse().unwrap();
                let micros = moment.as_microsecond().cast_unsigned();
                let passes = |micros| {
                    let at = Timestamp::from_micros(micros).unwrap();
                    decide(policy, after, at, operation(*cost)).0
                };
                assert!(passes(micros) && !passes(micros - 1), "{sentence}");
                times += 1;
            }
            None => {
                assert!(sentence.contains("No wait is long enough"), "{sentence}");
                let much_later = *now + Duration::from_secs(366 * 86_400);
                assert!(!decide(policy, after, much_later, operation(*cost)).0, "{sentence}");
            }
        }
        if let Some(most) = number_after(sentence, "cost of at most ") {
            let passes = |cost| decide(policy, before, *now, operation(cost)).0;
            assert!(passes(most) && !passes(most + 1), "{sentence}");
            costs += 1;
        }
        if let Some(least) = number_after(sentence, "capacity of at least ") {
            // Of several limits, another one may be the binding one.
            if !template.contains(',') {
                let passes = |capacity| {
                    let policy = with_capacity(template, capacity);
                    decide(&policy, before, *now, operation(*cost)).0
                };
                assert!(passes(least) && !passes(least - 1), "{sentence} {before:?}");
                capacities += 1;
            }
        }
    }
    // The second of a key that the clients date may be written in two parts.
    assert!(sentences.lines().count() >= denials.len());
    println!(
        "figure: {} denials: {times} times, {costs} costs and {capacities} capacities agree",
        denials.len()
    );
    assert!(times > 200 && costs > 50 && capacities > 200, "{times} {costs} {capacities}");
}

/// Lines that nobody reads cost no decision, and neither do those of the server's own log.
#[test]
fn log_denials_on_a_pipe_without_a_reader_delays_nothing() {
    let server = Server::start(&["--log-denials", "--requirepass", "secret"]);
    let mut client = Client::connect(&server);
    assert_eq!(client.call("AUTH secret"), Value::Simple(b"OK".to_vec()));
    let lost = || {
        let reply = get(&server, "/metrics");
        let line = "sluicegate_logged_denials_total{outcome=\"lost\"} ";
        number_after(&reply, line).unwrap()
    };
    // More bytes than a pipe takes.
    for key in 0..1000 {
        for is_allowed in [true, false] {
            let line = format!("SG.TAKE key{key} fixed-window:1/1h");
            assert_eq!(client.is_allowed(&line), is_allowed);
        }
    }
    eventually_true("lines are lost", || lost() > 0);
    // It is logged, as a warning.
    let mut guesser = Client::connect(&server);
    let Value::Error(text) = guesser.call("AUTH wrong") else { panic!("no error") };
    assert!(text.starts_with(b"WRONGPASS"));
    for _ in 0..1000 {
        assert!(!client.is_allowed("SG.TAKE key1 fixed-window:1/1h"));
    }
    let log = server.stop("-TERM");
    assert!(log.contains("wrong password"), "{log}");
    let whole = log.lines().filter(|line| line.starts_with(r#"{"event":"denial","#)).count();
    println!("figure: a pipe without a reader got {whole} lines of 1000");
    assert!((10..900).contains(&whole));
    let ended = run(&["why", "-", "--key", "key1"], &log);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert!(ended.out.contains("denied key `key1`: 1 of 1 units"), "{}", ended.out);
    assert!(ended.err.contains(" lines without a denial"), "{}", ended.err);
}

/// The response to a request.
pub(crate) fn get(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(&server.http).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn why_mistake_is_named() {
    let folder = TempDir::new();
    let path = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let log = fs::read(root.join("examples/logs/denials.log")).unwrap();
    let (log, server_log, empty) =
        (path("denials.log", &log), path("server.log", b"INFO started\n"), path("empty.log", b""));
    let damaged = path("damaged.log", b"{\"event\":\"denial\",\"time\":\"now\"}\n");
    let folder = folder.path().to_str().unwrap().to_owned();
    let expected =
        r#"expected lines of `serve --log-denials`, which begin with {"event":"denial","#;
    for (arguments, error) in [
        (&[&*server_log][..], format!("invalid log `{server_log}`: {expected}; found 1 line")),
        (&[&*empty], format!("invalid log `{empty}`: {expected}; found 0 lines")),
        (&["-"], format!("invalid log `-`: {expected}; found 0 lines")),
        (&[&*folder], format!("invalid log `{folder}`: expected a file, found a folder")),
        (&["none.log"], "cannot open none.log: no such file or directory".to_owned()),
        (
            &[&*log, "--key", "nobody"],
            format!(
                "invalid --key `nobody`: expected a key, a value of a rule's key, or a tag in {log}, which has \
                 5 denials of other keys and 1 denial without a key"
            ),
        ),
    ] {
        let ended = run(&[&["why"], arguments].concat(), "");
        assert_eq!((ended.code, ended.out), (Some(2), String::new()), "{arguments:?}");
        assert_eq!(ended.err, format!("error: {error}\n"), "{arguments:?}");
    }
    let ended = run(&["why", &damaged], "");
    let error = format!(
        "warning: skipped 1 damaged record; the first is line 1\nerror: invalid log `{damaged}`: {expected}; \
         found 1 line\n"
    );
    assert_eq!((ended.code, ended.err), (Some(2), error));
}

/// As a file, packed, packed and cut, and as a stream.
#[test]
fn why_reads_plain_packed_and_streamed_logs() {
    let folder = TempDir::new();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let log = fs::read(root.join("examples/logs/denials.log")).unwrap();
    let plain = output(&["why", "-"], &log);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    packed.write_all(&log).unwrap();
    let packed = packed.finish().unwrap();
    let path = folder.path().join("denials.log.gz");
    fs::write(&path, &packed).unwrap();
    assert_eq!(output(&["why", path.to_str().unwrap()], ""), plain);
    let ended = run(&["why", "-"], &packed[..packed.len() / 2]);
    assert!(ended.err.contains("warning: the log is damaged"), "{}", ended.err);
    assert!(plain.starts_with(&ended.out) && ended.out.lines().count() >= 2, "{}", ended.out);
    let of_key = output(&["why", "-", "--key", "203.0.113.77"], &log);
    assert_eq!(plain.lines().next(), of_key.lines().next());
    assert_eq!(of_key.lines().count(), 1);
}

/// In the file of settings, in the environment and as a flag.
#[test]
fn log_denials_is_a_setting_like_others() {
    let folder = TempDir::new();
    let config = folder.path().join("config.toml");
    fs::write(&config, "log-denials = \"stderr\"\n").unwrap();
    let config = format!("--config={}", config.display());
    let printed = |arguments: &[&str]| {
        let all = output(&[&["serve", "--print-config"], arguments].concat(), "");
        all.lines().find(|line| line.contains("log-denials")).unwrap().to_owned()
    };
    assert_eq!(printed(&[]), "# log-denials is not set");
    assert_eq!(printed(&["--log-denials"]), "log-denials = \"stderr\" # command line");
    assert_eq!(printed(&["--log-denials=d.log"]), "log-denials = \"d.log\" # command line");
    assert!(printed(&[&config]).starts_with("log-denials = \"stderr\" # "));
    let ended = run(&["serve", "--log-denials="], "");
    let error = "error: invalid --log-denials ``: expected stderr or a file\n";
    assert_eq!((ended.code, &*ended.err), (Some(2), error));
    let any = ["serve", "--listen=127.0.0.1:0", "--http=off", "--grpc=off"];
    let ended = run(&[&any[..], &["--log-denials=/none/denials.log"]].concat(), "");
    assert_eq!(ended.code, Some(2));
    let error =
        "error: cannot open the denial log `/none/denials.log`: no such file or directory\n";
    assert!(ended.err.ends_with(error), "{}", ended.err);
}
