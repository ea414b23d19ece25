//! The denial log (`serve --log-denials`): why requests were denied, one line of JSON for each key and second.
//!
//! A line has the first denial of a key by a rule or a policy in a second, and the number of its denials in that second.
//! Workers collect the denials of a second in memory; a thread writes the lines once the second is over, so that no
//! decision waits for a disk or a pipe.
//!
//! Invariants:
//! - at most [`MAX_PENDING`] lines are collected until they are written, each with at most [`MAX_KEY`] bytes of a key:
//!   denials of further keys are dropped and counted;
//! - each denial that is noted is counted once: as recorded, dropped or lost;
//! - a key is written as the dashboard shows it: in full, as a tag, or not at all.

use std::{
    collections::HashMap,
    fmt::Display,
    fs::{File, OpenOptions},
    hash::{BuildHasher as _, BuildHasherDefault, Hash as _, Hasher},
    io::{self, Write},
    os::{
        fd::AsFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use ahash::RandomState;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rustix::{fs::OFlags, io::ioctl_fionread};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use sluicegate_commands::{MAX_SPAN, plain_error};
use sluicegate_core::{
    Clock as _, Decision, KeyedOperation, Limit, OnError, Operation, Policy, Retry, Source,
    Timestamp, Usage, as_micros,
};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    DashboardMode, DenialOutput, clock::ServerClock, key_display::KeyDisplay, stats::DenialFacts,
};

/// Maximum number of lines that are collected at a time, which is also about the maximum number of lines per second.
pub(crate) const MAX_PENDING: usize = 1000;
/// Maximum number of bytes of a key in a line.
const MAX_KEY: usize = 1024;
const SHARDS: usize = 16;
/// Microseconds of a second.
const SECOND: u64 = 1_000_000;
/// How long after a second its lines are written, for denials of batches that began in it.
const DELAY: u64 = 5_000;
/// How long the server waits for the last lines when it stops.
const FLUSH: Duration = Duration::from_secs(1);

/// A denial of a request, or of one of its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Denial<'a> {
    /// When it was decided.
    pub(crate) time: Timestamp,
    pub(crate) rule: Option<DenyingRule<'a>>,
    /// The key and its decision; `None`: the rule blocks the request.
    pub(crate) denied: Option<DecidedKey<'a>>,
    /// How many other keys and rules denied the same request. Shadow rules deny none.
    pub(crate) also_denied: usize,
}

/// The rule of a denial.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct DenyingRule<'a> {
    pub(crate) name: &'a str,
    /// The version of the active rules.
    pub(crate) version: u64,
    /// The level, if the rule is a hierarchy.
    pub(crate) level: Option<&'a str>,
    /// Whether it only would have denied the request.
    pub(crate) shadow: bool,
}

/// A key, and the decision on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecidedKey<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) operation: Operation<'a>,
    /// How the request waited, if it did.
    pub(crate) waited: Option<Waited>,
    pub(crate) source: Source,
    pub(crate) decision: &'a Decision,
    pub(crate) on_error: OnError,
}

/// How a request waited for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waited {
    /// For how long at most.
    pub(crate) timeout: Duration,
    /// Whether its wait ended early, because the server stops.
    pub(crate) is_stopped: bool,
}

impl<'a> DecidedKey<'a> {
    /// The decision on the key of `it`, after the request had `waited`.
    pub(crate) fn new(
        it: &KeyedOperation<'a>,
        source: Source,
        decision: &'a Decision,
        waited: Option<Waited>,
    ) -> Self {
        let &KeyedOperation { key, policy, operation } = it;
        let (policy, on_error) = (policy.policy(), policy.settings().on_error);
        Self { key, policy, operation, waited, source, decision, on_error }
    }

    /// Whether the request takes or holds units, or reserves them: queries and the ends of holds deny nothing.
    pub(crate) const fn asks_for_units(&self) -> bool {
        matches!(
            self.operation,
            Operation::Take(_) | Operation::Reserve { .. } | Operation::Hold { .. }
        )
    }
}

/// The denial log.
#[derive(Debug)]
pub(crate) struct DenialLog {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    /// Lines in all shards.
    pending: AtomicUsize,
    display: Arc<KeyDisplay>,
    /// Until a server runs.
    output: Mutex<Option<Output>>,
    recorded: AtomicU64,
    dropped: AtomicU64,
    lost: AtomicU64,
}

/// Denials by the hash of what they have in common. The hash needs no other one.
type Shard = HashMap<u64, Pending, BuildHasherDefault<IdHasher>>;

/// The denials of a key in a second. It is small, so that those of hot keys stay in the cache of a processor.
#[derive(Debug)]
struct Pending {
    count: u64,
    second: u64,
    record: Box<Record>,
}

/// Returns the only number that it is given.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

/// Counts of denials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DenialCounts {
    /// In lines that were written.
    pub(crate) recorded: u64,
    /// In no line, because more keys were denied in a second than may have lines.
    pub(crate) dropped: u64,
    /// In lines that could not be written.
    pub(crate) lost: u64,
}

/// The members of a line, except for those that are known when it is written.
#[derive(Debug, Serialize)]
struct Record {
    shadow: bool,
    #[serde(skip_serializing_if = "is_absent")]
    rule: Option<Box<str>>,
    #[serde(skip_serializing_if = "is_absent")]
    rules_version: Option<u64>,
    #[serde(skip_serializing_if = "is_absent")]
    level: Option<Box<str>>,
    #[serde(flatten)]
    key: ShownKey,
    #[serde(skip_serializing_if = "is_absent")]
    operation: Option<&'static str>,
    #[serde(skip_serializing_if = "is_absent")]
    cost: Option<u32>,
    #[serde(skip_serializing_if = "is_absent")]
    max_wait_us: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    stopped: bool,
    #[serde(skip_serializing_if = "is_absent", serialize_with = "as_text")]
    policy: Option<Policy>,
    #[serde(flatten)]
    binding: Option<BindingLimit>,
    /// `null`: no wait is long enough.
    #[serde(skip_serializing_if = "is_absent")]
    wait_us: Option<Option<u64>>,
    source: &'static str,
    #[serde(skip_serializing_if = "is_absent")]
    on_error: Option<&'static str>,
    #[serde(skip_serializing_if = "is_default")]
    also_denied: usize,
    #[serde(skip)]
    time: Timestamp,
}

/// The limit that denied.
#[derive(Debug, Serialize)]
struct BindingLimit {
    #[serde(serialize_with = "as_text")]
    limit: Option<Limit>,
    capacity: u32,
    remaining: u32,
    #[serde(skip_serializing_if = "is_absent")]
    used: Option<u64>,
    #[serde(skip_serializing_if = "is_absent")]
    held: Option<u64>,
    reset_after_us: u64,
}

/// A key as it is written.
#[derive(Debug, Default, Serialize)]
struct ShownKey {
    #[serde(skip_serializing_if = "is_absent")]
    key: Option<String>,
    #[serde(skip_serializing_if = "is_absent")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "is_absent")]
    key_tag: Option<String>,
    /// Bytes of a key that is cut.
    #[serde(skip_serializing_if = "is_absent")]
    key_length: Option<usize>,
}

/// A line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    event: &'static str,
    time: String,
    count: u64,
    #[serde(flatten)]
    record: &'a Record,
    /// Denials since the line before that are in no line.
    #[serde(skip_serializing_if = "is_default")]
    unrecorded: u64,
}

/// Serializes as text what is there.
fn as_text<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

const fn is_absent<T>(member: &Option<T>) -> bool {
    member.is_none()
}

fn is_default<T: Default + PartialEq>(member: &T) -> bool {
    *member == T::default()
}

impl DenialLog {
    /// A log that is written to `output`.
    pub(crate) fn new(output: Output, display: Arc<KeyDisplay>) -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
            pending: AtomicUsize::new(0),
            display,
            output: Mutex::new(Some(output)),
            recorded: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Notes a denial. `facts` is called for the first one of its key in a second.
    pub(crate) fn note(&self, denial: &Denial<'_>, facts: impl FnOnce() -> DenialFacts) {
        let second = denial.time.as_micros() / SECOND;
        let id = self.id(denial, second, false);
        let mut shard = self.shards[usize::try_from(id >> 32).unwrap_or_default() % SHARDS].lock();
        let id = match shard.get_mut(&id) {
            Some(pending) if pending.record.has_policy_of(denial) => return pending.count += 1,
            // Few keys have several policies of one capacity.
            Some(_) => self.id(denial, second, true),
            None => id,
        };
        if let Some(pending) = shard.get_mut(&id) {
            pending.count += 1;
        } else if self.pending.load(Relaxed) >= MAX_PENDING {
            drop(shard);
            self.dropped.fetch_add(1, Relaxed);
        } else {
            self.pending.fetch_add(1, Relaxed);
            let key = |key: &[u8]| ShownKey::new(key, &self.display);
            let record = Box::new(Record::new(denial, facts(), key));
            shard.insert(id, Pending { count: 1, second, record });
        }
    }

    /// A hash of what the denials of a line have in common, with or without the whole policy, whose hash takes longer.
    fn id(&self, denial: &Denial<'_>, second: u64, with_policy: bool) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(second);
        if let Some(it) = &denial.denied {
            let short = u64::from(it.decision.limit) << 32 | (it.decision.binding as u64) << 8;
            hasher.write_u64(short | it.source as u64);
            hasher.write(it.key);
            if with_policy {
                it.policy.hash(&mut hasher);
            }
        }
        if let Some(rule) = denial.rule {
            (rule.name, rule.level, rule.shadow).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Removes the lines of all seconds but that of `now`, or all of them, in the order of their times.
    fn take_due(&self, now: Option<Timestamp>) -> Vec<Pending> {
        let current = now.map(|now| now.as_micros() / SECOND);
        let mut due = Vec::new();
        for shard in &self.shards {
            let is_due = |_: &u64, it: &mut Pending| Some(it.second) != current;
            due.extend(shard.lock().extract_if(is_due).map(|(_, pending)| pending));
        }
        self.pending.fetch_sub(due.len(), Relaxed);
        due.sort_by_key(|it| it.record.time);
        due
    }

    pub(crate) fn counts(&self) -> DenialCounts {
        DenialCounts {
            recorded: self.recorded.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            lost: self.lost.load(Relaxed),
        }
    }

    /// Denials that are in no line.
    fn unrecorded(&self) -> u64 {
        self.dropped.load(Relaxed) + self.lost.load(Relaxed)
    }

    /// Starts the thread that writes the lines. `None`: another server does.
    pub(crate) fn start(self: &Arc<Self>, clock: ServerClock) -> io::Result<Option<DenialWriter>> {
        let Some(output) = self.output.lock().take() else { return Ok(None) };
        let (stop, stopped) = mpsc::channel();
        let (finishing, finished) = oneshot::channel();
        let mut lines = LineWriter::new(Arc::clone(self), output);
        let run = move || {
            loop {
                let now = clock.now().as_micros();
                let next = (now / SECOND + 1) * SECOND + DELAY - now;
                match stopped.recv_timeout(Duration::from_micros(next)) {
                    Err(mpsc::RecvTimeoutError::Timeout) => lines.write(Some(clock.now())),
                    Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
            }
            lines.write(None);
            let _ = finishing.send(());
        };
        std::thread::Builder::new().name("sluicegate-denials".into()).spawn(run)?;
        Ok(Some(DenialWriter { stop, finished }))
    }
}

/// The thread that writes the lines, which ends when this is dropped.
pub(crate) struct DenialWriter {
    stop: mpsc::Sender<()>,
    finished: oneshot::Receiver<()>,
}

impl DenialWriter {
    /// Writes the last lines, within a second.
    pub(crate) async fn finish(self) {
        drop(self.stop);
        if timeout(FLUSH, self.finished).await.is_err() {
            tracing::warn!("the denial log is too slow: its last lines are lost");
        }
    }
}

impl Record {
    fn new(denial: &Denial<'_>, facts: DenialFacts, key: impl FnOnce(&[u8]) -> ShownKey) -> Self {
        let rule = denial.rule;
        let of_rule = Self {
            shadow: rule.is_some_and(|it| it.shadow),
            rule: rule.map(|it| it.name.into()),
            rules_version: rule.map(|it| it.version),
            level: rule.and_then(|it| it.level).map(Box::from),
            key: ShownKey::default(),
            operation: None,
            cost: None,
            max_wait_us: None,
            stopped: false,
            policy: None,
            binding: None,
            wait_us: None,
            source: BLOCK,
            on_error: None,
            also_denied: denial.also_denied,
            time: denial.time,
        };
        let Some(it) = denial.denied else { return of_rule };
        let source = facts.source(it.source);
        let is_fallback = source == Source::Fallback.as_str();
        let wait = it.decision.retry().map(|retry| match retry {
            Retry::After(wait) => Some(as_micros(wait)),
            Retry::Never => None,
        });
        let max_wait = match it.operation {
            // A reserve that names none has the longest one.
            Operation::Reserve { max_wait, .. } => {
                Some(max_wait).filter(|it| as_micros(*it) < MAX_SPAN)
            }
            _ => it.waited.map(|it| it.timeout),
        };
        Self {
            key: key(it.key),
            operation: Some(operation_name(&it)),
            cost: Some(it.operation.cost()),
            max_wait_us: max_wait.map(as_micros),
            stopped: it.waited.is_some_and(|it| it.is_stopped),
            policy: Some(it.policy.clone()),
            binding: facts.is_by_limit().then(|| BindingLimit::new(&it, facts.usage)).flatten(),
            wait_us: wait,
            source,
            on_error: is_fallback.then(|| it.on_error.as_str()),
            ..of_rule
        }
    }

    /// Whether it has the policy of a denial.
    fn has_policy_of(&self, denial: &Denial<'_>) -> bool {
        self.policy.as_ref() == denial.denied.map(|it| it.policy)
    }

    /// The line, with its end.
    fn line(&self, count: u64, unrecorded: u64) -> Vec<u8> {
        let time = time_text(self.time);
        let line = Line { event: "denial", time, count, record: self, unrecorded };
        let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

/// The source of denials by a block of an operator, or of a rule.
const BLOCK: &str = "block";

const fn operation_name(denied: &DecidedKey<'_>) -> &'static str {
    match denied.operation {
        Operation::Hold { .. } => "hold",
        Operation::Reserve { .. } => "reserve",
        _ => "take",
    }
}

/// A time in RFC 3339, to the microsecond.
fn time_text(time: Timestamp) -> String {
    let micros = i64::try_from(time.as_micros()).ok();
    let time = micros.and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok());
    time.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

impl BindingLimit {
    fn new(it: &DecidedKey<'_>, usage: Option<Usage>) -> Option<Self> {
        let limit = it.policy.limits().get(it.decision.binding)?;
        Some(Self {
            limit: Some(limit.clone()),
            capacity: it.decision.limit,
            remaining: it.decision.remaining,
            used: usage.map(|it| it.used),
            held: usage.map(|it| it.held),
            reset_after_us: as_micros(it.decision.reset_after),
        })
    }
}

impl ShownKey {
    fn new(key: &[u8], display: &KeyDisplay) -> Self {
        match display.mode {
            DashboardMode::On => Self::full(key),
            _ => Self::tag(key, display),
        }
    }

    fn tag(key: &[u8], display: &KeyDisplay) -> Self {
        Self { key_tag: display.tag(key), ..Self::default() }
    }

    fn full(key: &[u8]) -> Self {
        let key_length = (key.len() > MAX_KEY).then_some(key.len());
        let cut = &key[..key.len().min(MAX_KEY)];
        match str::from_utf8(key) {
            Ok(text) => {
                let text = &text[..text.floor_char_boundary(MAX_KEY)];
                Self { key: Some(text.to_owned()), key_length, ..Self::default() }
            }
            Err(_) => {
                Self { key_base64: Some(STANDARD.encode(cut)), key_length, ..Self::default() }
            }
        }
    }
}

/// The members of a denial, with the tag of its key.
pub(crate) fn members(
    denial: &Denial<'_>,
    facts: DenialFacts,
    display: &KeyDisplay,
) -> Map<String, Value> {
    let record = Record::new(denial, facts, |key| ShownKey::tag(key, display));
    match serde_json::to_value(&record) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// Writes the lines of a log.
struct LineWriter {
    log: Arc<DenialLog>,
    output: Output,
    /// Those that the lines so far have counted.
    counted: u64,
    /// Whether a line of the last turn is lost.
    is_failing: bool,
}

impl LineWriter {
    fn new(log: Arc<DenialLog>, output: Output) -> Self {
        Self { log, output, counted: 0, is_failing: false }
    }

    /// Writes the lines of all seconds before that of `now`, or all of them.
    fn write(&mut self, now: Option<Timestamp>) {
        let due = self.log.take_due(now);
        if due.is_empty() {
            return;
        }
        let mut failure = None;
        for Pending { record, count, .. } in due {
            let all = self.log.unrecorded();
            match self.output.write(&record.line(count, all - self.counted)) {
                Ok(()) => {
                    self.counted = all;
                    self.log.recorded.fetch_add(count, Relaxed);
                }
                Err(error) => {
                    self.log.lost.fetch_add(count, Relaxed);
                    failure.get_or_insert(error);
                }
            }
        }
        match (std::mem::replace(&mut self.is_failing, failure.is_some()), failure) {
            (false, Some(error)) => {
                let error = plain_error(&error);
                tracing::warn!(%error, "cannot write the denial log: dropping its lines");
            }
            (true, None) => tracing::info!("the denial log is written again"),
            _ => {}
        }
    }
}

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    /// Whether a part of a line was written last.
    is_torn: bool,
    /// The bytes that it takes without a reader, if it is a pipe whose other lines must not wait.
    shared_pipe: Option<usize>,
}

impl Output {
    /// Opens the output that the settings name.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub(crate) fn open(output: &DenialOutput) -> io::Result<Self> {
        let (file, is_torn) = match output {
            DenialOutput::Stderr => {
                let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
                let shared_pipe = pipe_size(&file);
                return Ok(Self { file, is_torn: false, shared_pipe });
            }
            DenialOutput::File(path) => {
                let file = open(path).map_err(|error| {
                    let (path, reason) = (path.display(), plain_error(&error));
                    io::Error::new(
                        error.kind(),
                        format!("cannot open the denial log `{path}`: {reason}"),
                    )
                })?;
                let is_torn = is_torn(path, &file);
                (file, is_torn)
            }
        };
        Ok(Self { is_torn, file, shared_pipe: None })
    }

    /// Writes a line, or a part of it if that fails.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(size) = self.shared_pipe {
            // The rest is for the log of the server, which would wait. A line may take up twice its bytes, in pages.
            let unread = ioctl_fionread(&self.file).unwrap_or(0);
            let is_free = usize::try_from(unread).is_ok_and(|it| it + line.len() <= size / 4);
            if !is_free {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "its reader is too slow"));
            }
        }
        if self.is_torn {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut left = line;
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    left = &left[count..];
                    self.is_torn = !left.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The bytes that a pipe takes without a reader; `None` if it is none, or the system does not tell.
#[cfg(target_os = "linux")]
fn pipe_size(file: &File) -> Option<usize> {
    rustix::pipe::fcntl_getpipe_size(file).ok()
}

#[cfg(not(target_os = "linux"))]
fn pipe_size(_file: &File) -> Option<usize> {
    None
}

/// Whether a file ends in the middle of a line, which a server wrote before it was killed or the disk was full.
fn is_torn(path: &Path, file: &File) -> bool {
    let last = || -> io::Result<u8> {
        let mut last = [0];
        let end = file.metadata()?.len().checked_sub(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        File::open(path)?.read_exact_at(&mut last, end)?;
        Ok(last[0])
    };
    file.metadata().is_ok_and(|it| it.is_file()) && last().is_ok_and(|byte| byte != b'\n')
}

/// Opens a file for appending. A pipe is opened for writes that do not wait.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options.open(path)
}

#[cfg(test)]
mod tests;
