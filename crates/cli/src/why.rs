//! `why`: explains the denials in a log of `serve --log-denials`, one sentence or two for each record.
//!
//! A log may have other lines, such as those of the server on standard error: they are counted and skipped. Its content is
//! not trusted: what clients chose is written on one line.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use anyhow::{anyhow, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;
use sluicegate_commands::plain_error;
use sluicegate_core::{
    Limit, MAX_HOLD_ID, Policy,
    human::{span, units},
};

use crate::{
    input::unzip::{Damage, Unzip},
    output::{output, report},
    table::on_one_line,
};

/// How each record begins.
const RECORD: &str = r#"{"event":"denial","#;
/// Longest line that is read as a record, in bytes.
const MAX_LINE: u64 = 1 << 16;
/// First bytes of a gzip file.
const GZIP: &[u8] = &[0x1f, 0x8b];

#[derive(Args, Debug)]
pub(crate) struct Why {
    /// Log of `serve --log-denials`, plain or gzip; `-` is standard input
    log: PathBuf,
    /// Only denials of this key, of a rule with this value in its key, or of the key with this tag
    #[arg(long, value_name = "KEY")]
    key: Option<OsString>,
}

/// Lines by what they are.
#[derive(Debug, Default)]
struct Counts {
    records: u64,
    /// Denials of other keys than the selected one.
    other_keys: u64,
    /// Denials whose key the log does not have, if one is selected.
    without_key: u64,
    other_lines: u64,
    damaged: u64,
    /// The first damaged record.
    first_damaged: u64,
}

pub(crate) fn explain(options: &Why) -> anyhow::Result<()> {
    let damage = Damage::default();
    let lines = open(&options.log, &damage)?;
    let key = options.key.as_ref().map(|key| key.as_bytes());
    let counts = write_sentences(lines, key, &mut io::BufWriter::new(output()))?;
    let name = options.log.display();
    if let Some(damage) = damage.get() {
        report(format_args!("warning: the log is damaged ({damage}): read up to the damage"));
    }
    if counts.damaged > 0 {
        let (count, first) = (counts.damaged, counts.first_damaged);
        report(format_args!("warning: skipped {}; the first is line {first}", records(count)));
    }
    if counts.records > 0 {
        if counts.other_lines > 0 {
            report(format_args!("skipped {} without a denial", lines_text(counts.other_lines)));
        }
        return Ok(());
    }
    match options.key.as_ref() {
        Some(key) if counts.other_keys + counts.without_key > 0 => bail!(
            "invalid --key `{}`: expected a key, a value of a rule's key, or a tag in {name}, which has {} of other keys \
             and {} without a key",
            on_one_line(key.as_bytes()),
            denials(counts.other_keys),
            denials(counts.without_key)
        ),
        _ => bail!(
            "invalid log `{name}`: expected lines of `serve --log-denials`, which begin with {RECORD}; found {}",
            lines_text(counts.other_lines + counts.damaged)
        ),
    }
}

fn records(count: u64) -> String {
    if count == 1 { "1 damaged record".to_owned() } else { format!("{count} damaged records") }
}

fn lines_text(count: u64) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}

fn denials(count: u64) -> String {
    if count == 1 { "1 denial".to_owned() } else { format!("{count} denials") }
}

/// The content of a log, unpacked. Damage inside a packed one is reported in `damage`.
fn open(path: &Path, damage: &Damage) -> anyhow::Result<Box<dyn BufRead>> {
    let name = path.display();
    let unreadable = |error: io::Error| anyhow!("cannot read {name}: {}", plain_error(&error));
    let bytes: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path)
            .map_err(|error| anyhow!("cannot open {name}: {}", plain_error(&error)))?;
        if file.metadata().is_ok_and(|it| it.is_dir()) {
            bail!("invalid log `{name}`: expected a file, found a folder");
        }
        Box::new(file)
    };
    let mut bytes = BufReader::new(bytes);
    if bytes.fill_buf().map_err(unreadable)?.starts_with(GZIP) {
        return Ok(Box::new(BufReader::new(Unzip::new(bytes, Damage::clone(damage)))));
    }
    Ok(Box::new(bytes))
}

/// Writes the sentences of all records, or of those of `key`.
fn write_sentences(
    mut lines: impl BufRead,
    key: Option<&[u8]>,
    out: &mut impl Write,
) -> anyhow::Result<Counts> {
    let (mut counts, mut line, mut number) = (Counts::default(), Vec::new(), 0);
    loop {
        line.clear();
        let read = lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let read = read.map_err(|error| anyhow!("cannot read the log: {}", plain_error(&error)))?;
        if read == 0 {
            break;
        }
        number += 1;
        if !line.ends_with(b"\n") && read as u64 == MAX_LINE {
            skip_line(&mut lines)?;
        }
        // Collectors put a time or a name in front.
        let text = String::from_utf8_lossy(&line);
        let Some(start) = text.rfind(RECORD) else {
            counts.other_lines += u64::from(!text.trim().is_empty());
            continue;
        };
        let denial = Denial::parse(text[start..].trim_end());
        // A record may follow a part of another one, which a server did not finish.
        let damaged = u64::from(denial.is_none()) + u64::from(text[..start].contains(RECORD));
        if counts.damaged == 0 && damaged > 0 {
            counts.first_damaged = number;
        }
        counts.damaged += damaged;
        let Some(denial) = denial else { continue };
        if key.is_some_and(|key| !denial.is_of(key)) {
            match denial.key {
                Some(_) => counts.other_keys += denial.count,
                None => counts.without_key += denial.count,
            }
            continue;
        }
        counts.records += 1;
        writeln!(out, "{}", denial.sentence())?;
    }
    out.flush()?;
    Ok(counts)
}

/// Reads the rest of a line that is too long.
fn skip_line(lines: &mut impl BufRead) -> anyhow::Result<()> {
    loop {
        let (count, ends) = {
            let bytes = lines.fill_buf()?;
            match bytes.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (bytes.len(), bytes.is_empty()),
            }
        };
        lines.consume(count);
        if ends {
            return Ok(());
        }
    }
}

/// A record.
#[derive(Debug)]
struct Denial {
    /// In microseconds since the Unix epoch.
    time: i64,
    count: u64,
    is_shadow: bool,
    rule: Option<DenyingRule>,
    key: Option<Key>,
    cause: Cause,
    /// Other keys and rules that denied the same request.
    also_denied: u64,
    /// Denials before it that are in no record.
    unrecorded: u64,
}

#[derive(Debug)]
struct DenyingRule {
    name: String,
    version: u64,
    level: Option<String>,
}

/// A key, as far as the log has it.
#[derive(Debug)]
enum Key {
    /// The key, or its first bytes and its length.
    Bytes(Vec<u8>, Option<u64>),
    Tag(String),
}

#[derive(Debug)]
enum Cause {
    /// A limit.
    Limit(LimitDenial),
    /// A block of a key by an operator, with its remaining microseconds.
    KeyBlock(Option<u64>),
    RuleBlock,
    TableFull,
    /// The store is unavailable, and nothing decides in its place.
    Unavailable,
}

/// A denial by a limit.
#[derive(Debug)]
struct LimitDenial {
    source: String,
    operation: String,
    cost: u64,
    max_wait: Option<u64>,
    /// Whether the wait ended because the server stopped.
    is_stopped: bool,
    policy: String,
    limit: String,
    capacity: u64,
    remaining: u64,
    /// Units in use, and those of them that are held.
    used: Option<(u64, u64)>,
    /// `None`: no wait is long enough.
    wait: Option<u64>,
    reset_after: u64,
}

impl Denial {
    /// The record in a line; `None` if it is damaged.
    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(on_line);
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let time: Timestamp = value.get("time")?.as_str()?.parse().ok()?;
        let rule = match text("rule") {
            Some(name) => {
                let version = number("rules_version")?;
                Some(DenyingRule { name, version, level: text("level") })
            }
            None => None,
        };
        let bytes = |name: &str| value.get(name).and_then(Value::as_str);
        let key = match (bytes("key"), bytes("key_base64"), bytes("key_tag")) {
            (Some(key), ..) => Some(Key::Bytes(key.into(), number("key_length"))),
            (_, Some(key), _) => Some(Key::Bytes(STANDARD.decode(key).ok()?, number("key_length"))),
            (.., Some(tag)) => Some(Key::Tag(on_line(tag))),
            _ => None,
        };
        let source = text("source")?;
        let has_policy = value.get("policy").is_some();
        let cause = match (&*source, text("limit")) {
            ("block", _) if has_policy => Cause::KeyBlock(number("wait_us")),
            ("block", _) => Cause::RuleBlock,
            ("table_full", _) => Cause::TableFull,
            ("fallback", None) => Cause::Unavailable,
            (_, limit) => Cause::Limit(LimitDenial {
                operation: text("operation")?,
                cost: number("cost")?,
                max_wait: number("max_wait_us"),
                is_stopped: value.get("stopped").and_then(Value::as_bool).unwrap_or(false),
                policy: text("policy")?,
                limit: limit?,
                capacity: number("capacity")?,
                remaining: number("remaining")?,
                used: number("used").zip(number("held")),
                wait: match value.get("wait_us")? {
                    Value::Null => None,
                    wait => Some(wait.as_u64()?),
                },
                reset_after: number("reset_after_us")?,
                source,
            }),
        };
        Some(Self {
            time: time.as_microsecond(),
            count: number("count")?,
            is_shadow: value.get("shadow")?.as_bool()?,
            rule,
            key,
            cause,
            also_denied: number("also_denied").unwrap_or(0),
            unrecorded: number("unrecorded").unwrap_or(0),
        })
    }

    /// Whether it is of `key`, of a rule with that value at the end of its key, or of the key with that tag.
    fn is_of(&self, key: &[u8]) -> bool {
        match &self.key {
            Some(Key::Bytes(bytes, None)) => {
                let is_value = || {
                    let before = bytes.strip_suffix(key);
                    self.rule.is_some() && before.is_some_and(|it| it.ends_with(b"|"))
                };
                bytes == key || is_value()
            }
            Some(Key::Bytes(start, Some(length))) => {
                key.starts_with(start) && key.len() as u64 == *length
            }
            Some(Key::Tag(tag)) => tag.as_bytes() == key,
            None => false,
        }
    }

    /// What happened, and what would have had to be different.
    fn sentence(&self) -> String {
        let key = match &self.key {
            Some(Key::Bytes(key, None)) => format!("key `{}`", on_one_line(key)),
            Some(Key::Bytes(key, Some(length))) => {
                format!("key `{}...` of {length} bytes", on_one_line(key))
            }
            Some(Key::Tag(tag)) => format!("key {tag}"),
            None => "a key that the log does not name".to_owned(),
        };
        let subject = match (&self.rule, self.is_shadow) {
            (Some(DenyingRule { name, version, level }), shadow) => {
                let shadow = if shadow { "shadow rule" } else { "rule" };
                let level = level.as_ref().map(|it| format!(", level `{it}`")).unwrap_or_default();
                Some(format!("{shadow} `{name}`{level} (version {version})"))
            }
            (None, _) => None,
        };
        let denied = if self.is_shadow { "would have denied" } else { "denied" };
        let happened = match &self.cause {
            Cause::Limit(it) => {
                let subject = subject.unwrap_or_else(|| "the limit".to_owned());
                format!(
                    "{subject} {denied} {key}: {}",
                    it.sentences(self.time, self.also_denied > 0)
                )
            }
            Cause::RuleBlock => {
                let subject = subject.unwrap_or_else(|| "a rule".to_owned());
                let blocked = if self.is_shadow { "would have blocked" } else { "blocked" };
                format!(
                    "{subject} {blocked} the request. It would have passed only without the block in the rule."
                )
            }
            Cause::KeyBlock(remaining) => {
                let of = subject.map(|it| format!(" of {it}")).unwrap_or_default();
                let until = remaining.map(|it| {
                    format!(", for another {}, until {}", span(it), moment(self.time, it))
                });
                format!(
                    "an operator had blocked {key}{of}{}. Its limits would have decided if an operator had \
                     unblocked it.",
                    until.unwrap_or_default()
                )
            }
            Cause::TableFull => format!(
                "the table in memory had no space for {key}, and `--when-full deny` denied it. It would have \
                 passed with more `--max-memory`, or once other keys had recovered."
            ),
            Cause::Unavailable => {
                let of = subject.map(|it| format!(" of {it}")).unwrap_or_default();
                format!(
                    "the store was unavailable, and `on_error` deny denied {key}{of}. Its limits would have \
                     decided with the store, or with `on_error` local; with `on_error` allow, it would have passed."
                )
            }
        };
        let mut sentence = format!("{}: {happened}", time_text(self.time));
        match self.also_denied {
            0 => {}
            1 => sentence.push_str(" Another key or rule denied the same request, too."),
            count => sentence
                .push_str(&format!(" {count} other keys or rules denied the same request, too.")),
        }
        if self.count > 1 {
            sentence.push_str(&format!(" Denied {} times in this second.", self.count));
        }
        if self.unrecorded > 0 {
            let count = denials(self.unrecorded);
            let have = if self.unrecorded == 1 { "has" } else { "have" };
            sentence.push_str(&format!(" Of the time before it, {count} {have} no record."));
        }
        sentence
    }
}

impl LimitDenial {
    fn sentences(&self, time: i64, has_others: bool) -> String {
        let Self { cost, capacity, remaining, .. } = self;
        let waited = match (self.max_wait, self.is_stopped) {
            (None, _) => String::new(),
            (Some(wait), false) => format!(" with a timeout of {}", span(wait)),
            (Some(wait), true) => {
                format!(" within {}, and waited until the server stopped", span(wait))
            }
        };
        let asked = match (&*self.operation, self.max_wait) {
            ("hold", None) => format!("it asked to hold {}", units(*cost)),
            ("hold", Some(_)) => format!("it asked to hold {}{waited}", units(*cost)),
            ("reserve", Some(wait)) => {
                format!("it asked for {} within {}", units(*cost), span(wait))
            }
            ("reserve", None) => format!("it asked for {} after any wait", units(*cost)),
            (_, _) => format!("it asked for {}{waited}", units(*cost)),
        };
        let is_local = self.source == "fallback";
        let limit = match (is_local, self.policy == self.limit) {
            (true, _) => format!("this server's share of `{}`", self.limit),
            (false, true) => format!("`{}`", self.limit),
            (false, false) => format!("`{}`, the binding limit of `{}`,", self.limit, self.policy),
        };
        let usage = match self.used {
            Some((used, _)) if self.counts_denied() => format!(
                "{used} units of {limit} were in use, which has a capacity of {capacity} and counts denied \
                 requests, too"
            ),
            Some((used, 0)) => format!("{used} of {capacity} units of {limit} were in use"),
            Some((used, held)) if used == held => {
                format!("{held} of {capacity} units of {limit} were held")
            }
            Some((used, held)) => {
                format!("{used} of {capacity} units of {limit} were in use, {held} of them held")
            }
            // A cache knows the denial, and not the units.
            None if self.is_cached() => {
                format!("the last denial of the store by {limit} still applied")
            }
            None => format!("{remaining} of {capacity} units of {limit} were left"),
        };
        let by = match &*self.source {
            "lease" => ", by the lease of the server",
            "fallback" => ", while the store was unavailable",
            _ => "",
        };
        format!("{usage}{by}, and {asked}. {}", self.alternatives(time, has_others))
    }

    /// The binding limit; `None` if its text is invalid: anyone can write such a file.
    fn binding(&self) -> Option<Limit> {
        self.limit.parse::<Policy>().ok()?.limits().first().cloned()
    }

    fn is_cached(&self) -> bool {
        self.source == "cache"
    }

    /// Whether the units that are left are the most that pass at once.
    fn is_bounded_by_rest(&self) -> bool {
        let policy = self.policy.parse::<Policy>();
        !self.is_cached() && policy.is_ok_and(|it| !it.limits().iter().any(Limit::borrow))
    }

    fn counts_denied(&self) -> bool {
        self.binding().is_some_and(|it| it.count_all())
    }

    /// What would have had to be different, of this limit if others denied the request, too.
    fn alternatives(&self, time: i64, has_others: bool) -> String {
        let &Self { cost, capacity, remaining, wait, .. } = self;
        let limit = self.binding();
        let limit = limit.as_ref();
        // A reservation depends on how long it waits. A limit that counts denied requests does not say how many units were in use
        // before this one.
        let is_known = self.operation != "reserve" && !self.counts_denied();
        let needed = if limit.is_some_and(|it| it.borrow()) { cost.min(1) } else { cost };
        if self.operation == "hold" && remaining >= needed && self.max_wait.is_none() {
            return match wait {
                None => {
                    format!("The id of its hold is invalid: expected 1 to {MAX_HOLD_ID} bytes.")
                }
                Some(_) => format!(
                    "The key has as many open holds as it can have. It would have passed as soon as one of \
                     them ended: {} later, at {}, at the latest.",
                    span(self.reset_after),
                    moment(time, self.reset_after)
                ),
            };
        }
        let mut ways = Vec::new();
        let mut before = String::new();
        match wait {
            Some(wait) => ways.push(format!(
                "{} later (at {}, if no other request came first)",
                span(wait),
                moment(time, wait)
            )),
            None => {
                before = format!("No wait is long enough: {} exceed the capacity. ", units(cost));
            }
        }
        if limit.is_some_and(|it| it.counts_holds())
            && let Some((used, _)) = self.used
            && let Some(over @ 1..) =
                used.checked_add(needed).and_then(|it| it.checked_sub(capacity))
            && needed <= capacity
        {
            ways.push(format!("as soon as holds of {} were settled", units(over)));
        }
        if is_known && self.is_bounded_by_rest() && (1..cost).contains(&remaining) {
            ways.push(format!("at once with a cost of at most {remaining}"));
        }
        if let Some((used, _)) = self.used
            && is_known
            && limit.is_some()
            && let Some(least) = used.checked_add(needed).filter(|least| *least > capacity)
        {
            let others = match self.policy == self.limit {
                true => "",
                false => " in this limit, as far as the other limits allow it",
            };
            ways.push(format!("at once with a capacity of at least {least}{others}"));
        }
        if ways.is_empty() {
            return format!("{before}Only a cost of up to {capacity} can pass.");
        }
        // A cache knows one denial of a request for several keys.
        let has_others = has_others || self.is_cached();
        let it = if has_others { "By this limit alone, it" } else { "It" };
        format!("{before}{it} would have passed {}.", ways.join(", or "))
    }
}

fn on_line(text: &str) -> String {
    on_one_line(text.as_bytes())
}

/// A time in microseconds since the Unix epoch.
fn time_text(micros: i64) -> String {
    let time = Timestamp::from_microsecond(micros).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// The time `wait` microseconds after `time`.
fn moment(time: i64, wait: u64) -> String {
    time_text(time.saturating_add_unsigned(wait))
}

#[cfg(test)]
mod tests;
