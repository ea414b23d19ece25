use std::{fs, io::Read as _, os::fd::OwnedFd};

use serde_json::{Value, json};
use sluicegate_core::Outcome;

use super::*;

const NEVER: Decision = decision(Retry::Never);

const fn decision(retry: Retry) -> Decision {
    let (limit, remaining, binding) = (2, 1, 0);
    let reset_after = Duration::from_secs(5);
    Decision { outcome: Outcome::Deny { retry }, limit, remaining, reset_after, binding }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + micros).unwrap()
}

fn log_to(output: Output, mode: DashboardMode) -> Arc<DenialLog> {
    Arc::new(DenialLog::new(output, Arc::new(KeyDisplay::new(mode))))
}

fn log(mode: DashboardMode) -> Arc<DenialLog> {
    log_to(Output::open(&DenialOutput::File("/dev/null".into())).unwrap(), mode)
}

fn denied<'a>(key: &'a [u8], policy: &'a Policy, decision: &'a Decision) -> DecidedKey<'a> {
    let (operation, on_error) = (Operation::Take(2), OnError::Deny);
    let (waited, source) = (None, Source::Store);
    DecidedKey { key, policy, operation, waited, source, decision, on_error }
}

const fn denial<'a>(
    time: Timestamp,
    rule: Option<DenyingRule<'a>>,
    denied: Option<DecidedKey<'a>>,
) -> Denial<'a> {
    Denial { time, rule, denied, also_denied: 0 }
}

/// Notes a denial of a key under a policy, without facts.
fn note(log: &DenialLog, key: &[u8], policy: &str, micros: u64) {
    let policy = policy.parse().unwrap();
    let denied = Some(denied(key, &policy, &NEVER));
    log.note(&denial(at(micros), None, denied), DenialFacts::default);
}

/// The lines that are due at `now`, or all.
fn due(log: &DenialLog, now: Option<u64>) -> Vec<Value> {
    let due = log.take_due(now.map(at)).into_iter();
    due.map(|it| serde_json::from_slice(&it.record.line(it.count, 0)).unwrap()).collect()
}

/// The time, key and count of each line that is due.
fn summaries(log: &DenialLog, now: Option<u64>) -> Vec<(String, String, u64)> {
    let of = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let lines = due(log, now);
    let counted =
        lines.iter().map(|it| (of(it, "time"), of(it, "key"), it["count"].as_u64().unwrap()));
    counted.collect()
}

/// A second begins at each whole second of the clock.
#[test]
fn note_same_key_has_a_line_for_each_second_with_its_count() {
    let log = log(DashboardMode::On);
    for micros in [0, 1, 999_999, 1_000_000, 1_500_000, 3_000_000] {
        note(&log, b"a", "gcra:2/1s", micros);
    }
    note(&log, b"b", "gcra:2/1s", 999_998);
    let line = |time: &str, key: &str, count| (time.to_owned(), key.to_owned(), count);
    assert_eq!(
        summaries(&log, Some(1_999_999)),
        [
            line("2023-11-14T22:13:20.000000Z", "a", 3),
            line("2023-11-14T22:13:20.999998Z", "b", 1),
            line("2023-11-14T22:13:23.000000Z", "a", 1),
        ],
        "the second that is not over stays"
    );
    note(&log, b"a", "gcra:2/1s", 1_999_999);
    assert_eq!(summaries(&log, Some(2_000_000)), [line("2023-11-14T22:13:21.000000Z", "a", 3)]);
    assert_eq!(summaries(&log, None), []);
}

/// Denials that have different reasons do not share a line.
#[test]
fn note_policies_rules_levels_shadow_and_sources_have_lines_of_their_own() {
    let log = log(DashboardMode::On);
    let [one, other]: [Policy; 2] =
        ["gcra:2/1s", "gcra:2/1m:burst=2"].map(|it| it.parse().unwrap());
    let rule = |name, level, shadow| Some(DenyingRule { name, version: 3, level, shadow });
    let cache = DecidedKey { source: Source::Cache, ..denied(b"k", &one, &NEVER) };
    let all = [
        (None, Some(denied(b"k", &one, &NEVER))),
        (None, Some(denied(b"k", &other, &NEVER))),
        (None, Some(cache)),
        (rule("r", None, false), Some(denied(b"k", &one, &NEVER))),
        (rule("s", None, false), Some(denied(b"k", &one, &NEVER))),
        (rule("r", Some("l"), false), Some(denied(b"k", &one, &NEVER))),
        (rule("r", None, true), Some(denied(b"k", &one, &NEVER))),
        (rule("r", None, false), None),
    ];
    for _ in 0..3 {
        for (rule, denied) in all {
            log.note(&denial(at(0), rule, denied), DenialFacts::default);
        }
    }
    let lines = due(&log, None);
    assert_eq!(lines.len(), all.len());
    assert!(lines.iter().all(|line| line["count"] == 3), "{lines:?}");
}

#[test]
fn line_has_all_members_that_are_known() {
    let log = log(DashboardMode::On);
    let policy: Policy = "fixed-window:9/1h,gcra:2/1s".parse().unwrap();
    let decision =
        Decision { binding: 1, ..decision(Retry::After(Duration::from_micros(1_500_000))) };
    let rule = DenyingRule { name: "api", version: 7, level: Some("user"), shadow: true };
    let waited = Some(Waited { timeout: Duration::from_millis(20), is_stopped: true });
    let denied = DecidedKey { waited, ..denied(b"k", &policy, &decision) };
    let usage =
        Usage { used: 4, held: 3, remaining: 1, reset_after: Duration::ZERO, window_counts: None };
    let facts = DenialFacts { usage: Some(usage), ..DenialFacts::default() };
    let denial = Denial { also_denied: 3, ..denial(at(12), Some(rule), Some(denied)) };
    log.note(&denial, || facts);
    let [pending] = &log.take_due(None)[..] else { panic!("one line") };
    let line = String::from_utf8(pending.record.line(2, 5)).unwrap();
    assert_eq!(
        line,
        "{\"event\":\"denial\",\"time\":\"2023-11-14T22:13:20.000012Z\",\"count\":2,\"shadow\":true,\
         \"rule\":\"api\",\"rules_version\":7,\"level\":\"user\",\"key\":\"k\",\"operation\":\"take\",\
         \"cost\":2,\"max_wait_us\":20000,\"stopped\":true,\"policy\":\"fixed-window:9/1h,gcra:2/1s\",\
         \"limit\":\"gcra:2/1s\",\"capacity\":2,\"remaining\":1,\"used\":4,\"held\":3,\
         \"reset_after_us\":5000000,\"wait_us\":1500000,\"source\":\"store\",\"also_denied\":3,\"unrecorded\":5}\n"
    );
}

/// A member that is unknown is left out; the limit, too, if it did not deny.
#[test]
fn line_without_facts_or_limit_leaves_members_out() {
    let policy: Policy = "gcra:2/1s".parse().unwrap();
    let blocked = DenialFacts { is_blocked: true, ..DenialFacts::default() };
    let full = DenialFacts { is_table_full: true, ..DenialFacts::default() };
    let without_state = DenialFacts { is_without_state: true, ..DenialFacts::default() };
    let common = json!({
        "event": "denial", "time": "2023-11-14T22:13:20.000000Z", "count": 1, "shadow": false,
        "key": "k", "operation": "take", "cost": 2, "policy": "gcra:2/1s", "wait_us": null,
    });
    let limit =
        json!({"limit": "gcra:2/1s", "capacity": 2, "remaining": 1, "reset_after_us": 5_000_000});
    for (source, facts, has_limit, more) in [
        (Source::Store, DenialFacts::default(), true, json!({"source": "store"})),
        (Source::Cache, DenialFacts::default(), true, json!({"source": "cache"})),
        (Source::Lease, DenialFacts::default(), true, json!({"source": "lease"})),
        (
            Source::Fallback,
            DenialFacts::default(),
            true,
            json!({"source": "fallback", "on_error": "deny"}),
        ),
        (Source::Fallback, without_state, false, json!({"source": "fallback", "on_error": "deny"})),
        (Source::Store, blocked, false, json!({"source": "block"})),
        (Source::Fallback, blocked, false, json!({"source": "block"})),
        (Source::Store, full, false, json!({"source": "table_full"})),
    ] {
        let log = log(DashboardMode::On);
        let denied = DecidedKey { source, ..denied(b"k", &policy, &NEVER) };
        log.note(&denial(at(0), None, Some(denied)), || facts);
        let mut expected = common.clone();
        let limits = has_limit.then_some(&limit);
        for members in limits.into_iter().chain([&more]) {
            expected.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        }
        assert_eq!(due(&log, None), [expected], "{source:?} {facts:?}");
    }
}

#[test]
fn key_is_text_base64_tag_or_absent() {
    let long = "é".repeat(40_000);
    let shown = |mode, key: &[u8]| {
        let log = log(mode);
        note(&log, key, "gcra:2/1s", 0);
        let line = due(&log, None).remove(0);
        let members = line.as_object().unwrap().clone().into_iter();
        Value::Object(members.filter(|(name, _)| name.starts_with("key")).collect())
    };
    let on = DashboardMode::On;
    assert_eq!(shown(on, b"a\n\"b\\\0"), json!({"key": "a\n\"b\\\0"}));
    assert_eq!(shown(on, b"\xff\x00"), json!({"key_base64": "/wA="}));
    let cut = json!({"key": "é".repeat(512), "key_length": 80_000});
    assert_eq!(shown(on, long.as_bytes()), cut);
    let odd = format!("a{long}");
    let cut = json!({"key": format!("a{}", "é".repeat(511)), "key_length": 80_001});
    assert_eq!(shown(on, odd.as_bytes()), cut);
    for key in [&b"secret"[..], b"\xff"] {
        let masked = shown(DashboardMode::Masked, key);
        let tag = masked["key_tag"].as_str().unwrap();
        assert_eq!((tag.len(), &tag[..1]), (11, "#"));
        assert_eq!(masked, json!({ "key_tag": tag }));
        assert_eq!(shown(DashboardMode::NoKeys, key), json!({}));
        assert_eq!(shown(DashboardMode::Off, key), json!({}));
    }
    let log = log(DashboardMode::Masked);
    note(&log, b"secret", "gcra:2/1s", 0);
    note(&log, b"secret", "gcra:2/1s", 1_000_000);
    let lines = due(&log, None);
    assert_eq!(lines[0]["key_tag"], lines[1]["key_tag"], "until a restart");
}

/// Reads one line after the other from a file.
fn lines_of(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whatever the number of keys, and each denial is counted once.
#[test]
fn note_many_keys_is_bounded_and_counted() {
    let folder = sluicegate_testing::TempDir::new();
    let path = folder.path().join("denials.log");
    let log = log_to(Output::open(&DenialOutput::File(path.clone())).unwrap(), DashboardMode::On);
    let mut writer = LineWriter::new(Arc::clone(&log), log.output.lock().take().unwrap());
    for number in 0..100_000 {
        note(&log, format!("key{number}").as_bytes(), "gcra:2/1s", 10);
        note(&log, b"key7", "gcra:2/1s", 20);
    }
    let pending: usize = log.shards.iter().map(|it| it.lock().len()).sum();
    assert_eq!(pending, MAX_PENDING);
    writer.write(Some(at(1_000_000)));
    note(&log, b"later", "gcra:2/1s", 1_000_000);
    writer.write(Some(at(2_000_000)));
    let expected = DenialCounts { recorded: 101_001, dropped: 99_000, lost: 0 };
    assert_eq!(log.counts(), expected);
    let lines = lines_of(&path);
    let keys = |lines: &[Value]| -> std::collections::BTreeSet<String> {
        lines.iter().map(|it| it["key"].as_str().unwrap().to_owned()).collect()
    };
    let of_second: std::collections::BTreeSet<_> =
        (0..MAX_PENDING).map(|number| format!("key{number}")).collect();
    assert_eq!(keys(&lines[..MAX_PENDING]), of_second);
    let often = lines.iter().find(|it| it["key"] == "key7").unwrap();
    assert_eq!(often["count"], 100_001);
    let unrecorded: Vec<_> = lines.iter().filter_map(|it| it["unrecorded"].as_u64()).collect();
    assert_eq!(unrecorded, [99_000], "one line counts them");
    assert_eq!((&lines[MAX_PENDING]["key"], lines.len()), (&json!("later"), MAX_PENDING + 1));
}

#[test]
fn write_full_disk_loses_lines_and_counts_them() {
    let log =
        log_to(Output::open(&DenialOutput::File("/dev/full".into())).unwrap(), DashboardMode::On);
    let mut writer = LineWriter::new(Arc::clone(&log), log.output.lock().take().unwrap());
    note(&log, b"a", "gcra:2/1s", 0);
    note(&log, b"a", "gcra:2/1s", 0);
    writer.write(None);
    assert_eq!(log.counts(), DenialCounts { recorded: 0, dropped: 0, lost: 2 });
    // The disk has space again.
    let folder = sluicegate_testing::TempDir::new();
    let path = folder.path().join("denials.log");
    writer.output = Output::open(&DenialOutput::File(path.clone())).unwrap();
    note(&log, b"b", "gcra:2/1s", 0);
    writer.write(None);
    assert_eq!(log.counts(), DenialCounts { recorded: 1, dropped: 0, lost: 2 });
    let lines = lines_of(&path);
    assert_eq!((&lines[0]["key"], &lines[0]["unrecorded"]), (&json!("b"), &json!(2)));
}

/// Both ends of a pipe that is not read.
fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (OwnedFd::from(reader).into(), OwnedFd::from(writer).into())
}

/// At least half of it is for the log of the server.
#[cfg(target_os = "linux")]
#[test]
fn write_shared_pipe_without_a_reader_leaves_space_for_other_lines() {
    let (mut reader, file) = pipe();
    let shared_pipe = pipe_size(&file);
    let size = shared_pipe.unwrap();
    let mut other = file.try_clone().unwrap();
    let log = log_to(Output { file, is_torn: false, shared_pipe }, DashboardMode::On);
    let mut writer = LineWriter::new(Arc::clone(&log), log.output.lock().take().unwrap());
    for number in 0..MAX_PENDING {
        note(&log, format!("key{number}").as_bytes(), "gcra:2/1s", 0);
    }
    writer.write(None);
    let counts = log.counts();
    assert_eq!((counts.recorded + counts.lost, counts.dropped), (1000, 0));
    assert!(counts.recorded > 50 && counts.lost > 50, "{counts:?}");
    // It would wait if it did not fit.
    other.write_all(&vec![b'x'; size / 2]).unwrap();
    drop((other, writer, log));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let whole = text.lines().filter(|it| serde_json::from_str::<Value>(it).is_ok()).count();
    assert_eq!(whole as u64, counts.recorded);
}

/// A line that was cut does not spoil the one after it.
#[test]
fn write_named_pipe_that_is_full_does_not_wait() {
    let folder = sluicegate_testing::TempDir::new();
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let error = Output::open(&DenialOutput::File(path.clone())).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot open the denial log `{}`: ", path.display())));
    let mut reader = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(&path)
        .unwrap();
    let log = log_to(Output::open(&DenialOutput::File(path)).unwrap(), DashboardMode::On);
    let mut writer = LineWriter::new(Arc::clone(&log), log.output.lock().take().unwrap());
    // A line longer than the system writes to a pipe at once.
    let key = "\u{1}".repeat(MAX_KEY);
    for number in 0..MAX_PENDING {
        note(&log, format!("{number}{key}").as_bytes(), "gcra:2/1s", 0);
    }
    writer.write(None);
    let before = log.counts();
    assert_eq!(before.recorded + before.lost, 1000);
    assert!(before.recorded > 5 && before.lost > 5, "{before:?}");
    let mut text = Vec::new();
    let _ = reader.read_to_end(&mut text);
    note(&log, b"after", "gcra:2/1s", 0);
    writer.write(None);
    let _ = reader.read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<Value> = text.lines().filter_map(|it| serde_json::from_str(it).ok()).collect();
    assert_eq!(lines.len() as u64, before.recorded + 1);
    let last = &lines[lines.len() - 1];
    assert_eq!((&last["key"], &last["unrecorded"]), (&json!("after"), &json!(before.lost)));
}

/// A server wrote it before it was killed. A file without that has no empty line.
#[test]
fn write_behind_a_part_of_a_line_begins_a_new_one() {
    let folder = sluicegate_testing::TempDir::new();
    for (number, (before, expected)) in
        [("{\"event\"", "{\"event\"\n"), ("{}\n", "{}\n"), ("", "")].into_iter().enumerate()
    {
        let path = folder.path().join(number.to_string());
        fs::write(&path, before).unwrap();
        let mut output = Output::open(&DenialOutput::File(path.clone())).unwrap();
        output.write(b"one\n").unwrap();
        output.write(b"two\n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{expected}one\ntwo\n"));
    }
}

/// Events of a subscriber.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<tracing::Level>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Events {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.0.lock().push(*event.metadata().level());
    }
}

/// A slow reader takes some lines of each second.
#[test]
fn write_lost_lines_in_several_turns_warns_once() {
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt as _;

    let (mut reader, file) = pipe();
    let output = Output { shared_pipe: pipe_size(&file), file, is_torn: false };
    let log = log_to(output, DashboardMode::On);
    let mut writer = LineWriter::new(Arc::clone(&log), log.output.lock().take().unwrap());
    let events = Events::default();
    let subscriber = tracing_subscriber::registry().with(events.clone());
    tracing::subscriber::with_default(subscriber, || {
        for turn in 0..5 {
            let keys = if turn < 3 { MAX_PENDING } else { 1 };
            for number in 0..keys {
                note(&log, format!("key{number}").as_bytes(), "gcra:2/1s", 0);
            }
            let before = log.counts();
            writer.write(None);
            writer.write(None);
            let after = log.counts();
            assert!(after.recorded > before.recorded, "some are written");
            assert_eq!(after.lost > before.lost, turn < 3, "others are lost");
            let unread = ioctl_fionread(&reader).unwrap();
            reader.read_exact(&mut vec![0; usize::try_from(unread).unwrap()]).unwrap();
        }
    });
    assert_eq!(*events.0.lock(), [Level::WARN, Level::INFO]);
}
