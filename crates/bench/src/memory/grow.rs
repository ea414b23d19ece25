//! Growth from empty to many keys: the slowest decisions, and bytes per key. Each subject grows in a separate
//! process, so that none reuses the memory of another.

use std::{
    collections::BTreeMap, env, fs, hint::black_box, io, num::NonZeroU32, process::Command,
    sync::Mutex, time::Duration,
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use hashbrown::HashMap;
use sluicegate_core::{Clock as _, Operation, Policy, Timestamp};
use sluicegate_memory::{MemoryStore, NumberedPolicy};
use throttlecrab::PeriodicStore;

use super::sizes::Sizes;
use crate::{
    clock::{TscClock, wall},
    keys, pin,
    report::{Bar, Peer, Table, median, time},
};

const HOUR: Duration = Duration::from_secs(3600);
const BURST: u32 = 100;
const RULES: usize = 10_000;

const OURS: &str = "ours";
const OURS_MANY: &str = "ours-10000-policies";
const GOVERNOR: &str = "governor-bytes";
const SUBJECTS: [&str; 6] =
    [OURS, OURS_MANY, GOVERNOR, "governor-string", "hashbrown-mutex", "throttlecrab-mutex"];

/// Figures of one growth: nanoseconds per decision, bytes per key, and the number of preemptions by other
/// processes.
const FIGURES: [&str; 6] = ["median", "p99.9", "p99.999", "worst", "bytes per key", "preempted"];
type Grown = [f64; FIGURES.len()];

/// Grows all subjects in turn. Returns a table of all figures.
pub(super) fn measure(sizes: &Sizes, table: &mut Table) -> io::Result<Table> {
    let mut rounds: BTreeMap<&str, [Vec<f64>; FIGURES.len()]> = BTreeMap::new();
    for _ in 0..sizes.rounds {
        for subject in SUBJECTS {
            let figures = rounds.entry(subject).or_default();
            for (figures, figure) in figures.iter_mut().zip(grow_in_process(subject, sizes.keys)?) {
                figures.push(figure);
            }
        }
    }
    let grown = |subject: &str| rounds[subject].each_ref().map(|figures| median(figures));

    let [_, _, our_tail, our_worst, our_bytes, _] = grown(OURS);
    let [_, _, governor_tail, governor_worst, governor_bytes, _] = grown(GOVERNOR);
    let peer = |figure: String| Peer::new("governor, [u8; 16]", figure);
    let bytes = |figure: f64| format!("{figure:.1}");
    for (work, ours, bar) in [
        ("bytes per key, 1 policy", our_bytes, Bar::AtMost(32.0)),
        ("bytes per key, 10000 policies", grown(OURS_MANY)[4], Bar::AtMost(40.0)),
    ] {
        table.compare(work, bytes(ours), peer(bytes(governor_bytes)), ours, "bytes", bar);
    }
    let tail = "growing, 99.999th percentile";
    let (figure, bar) = (our_tail / 1e6, Bar::Below(0.1));
    table.compare(tail, time(our_tail), peer(time(governor_tail)), figure, "ms", bar);
    let (figure, bar) = (our_worst / governor_worst, Bar::Below(0.25));
    let work = "growing, worst decision";
    table.compare(work, time(our_worst), peer(time(governor_worst)), figure, "x", bar);

    let mut all = Table::new(&["subject"].into_iter().chain(FIGURES).collect::<Vec<_>>());
    for subject in SUBJECTS {
        let [median, tail, far_tail, worst, size, preempted] = grown(subject);
        let times = [median, tail, far_tail, worst].map(time);
        let mut row = vec![subject.to_owned()];
        row.extend(times);
        row.extend([bytes(size), preempted.to_string()]);
        all.row(row);
    }
    Ok(all)
}

/// Runs [`grow_one`] in a new process.
fn grow_in_process(subject: &str, keys: u64) -> io::Result<Grown> {
    let output =
        Command::new(env::current_exe()?).args(["grow", subject, &keys.to_string()]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().filter_map(|it| it.parse().ok()).collect();
    figures.try_into().map_err(|_| {
        let error = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("growing {subject} failed: {text}{error}"))
    })
}

/// Grows one subject in this process, and prints its figures.
pub(crate) fn grow_one(subject: &str, keys: &str) -> io::Result<()> {
    let count = keys.parse().map_err(io::Error::other)?;
    if let Some(core) = pin::cores()?.last() {
        pin::pin(&[*core])?;
    }
    let clock = TscClock::new();
    let grown = match subject {
        OURS => grow(&clock, count, || ours(&clock, 1)),
        OURS_MANY => grow(&clock, count, || ours(&clock, RULES)),
        GOVERNOR => grow(&clock, count, governor_bytes),
        "governor-string" => grow(&clock, count, governor_string),
        "hashbrown-mutex" => grow(&clock, count, || hashbrown_mutex(&clock)),
        "throttlecrab-mutex" => grow(&clock, count, throttlecrab_mutex),
        _ => {
            return Err(io::Error::other(format!(
                "unknown subject `{subject}`: expected one of {SUBJECTS:?}"
            )));
        }
    };
    println!("{}", grown.map(|figure| figure.to_string()).join(" "));
    Ok(())
}

/// Makes one decision for each of `count` new keys, and measures its time, including its reading of the clock.
fn grow<D: FnMut(&mut Key) -> bool>(
    clock: &TscClock,
    count: u64,
    build: impl FnOnce() -> D,
) -> Grown {
    // Its pages are written now, so that they do not count as growth.
    let mut nanos = vec![u32::MAX; usize::try_from(count).expect("keys fit in memory")];
    let (before, preempted) = (resident(), status("nonvoluntary_ctxt_switches:"));
    let mut decide = build();
    let mut allowed = 0_u64;
    for (number, nanos) in (0..count).zip(&mut nanos) {
        let mut key = Key { number, text: keys::text(number) };
        let start = clock.raw();
        let decision = black_box(decide(&mut key));
        let end = clock.raw();
        allowed += u64::from(decision);
        *nanos = u32::try_from(clock.nanos(start, end)).unwrap_or(u32::MAX);
    }
    let bytes = resident().saturating_sub(before) as f64 / count as f64;
    assert_eq!(allowed, count, "every key is new, and therefore allowed");
    let preempted = status("nonvoluntary_ctxt_switches:") - preempted;
    drop(decide);

    nanos.sort_unstable();
    let at = |share: f64| {
        let above = (1.0 - share) * nanos.len() as f64;
        let rank = nanos.len().saturating_sub(1 + rounded(above));
        f64::from(nanos.get(rank).copied().unwrap_or(0))
    };
    [at(0.5), at(0.999), at(0.999_99), at(1.0), bytes, preempted as f64]
}

#[expect(clippy::cast_possible_truncation, reason = "a number of items in memory")]
#[expect(clippy::cast_sign_loss, reason = "a number of items in memory")]
const fn rounded(count: f64) -> usize {
    count.round() as usize
}

/// A key in the forms that the subjects use.
struct Key {
    number: u64,
    text: String,
}

fn ours(clock: &TscClock, policies: usize) -> impl FnMut(&mut Key) -> bool {
    let store = MemoryStore::new();
    let policies: Vec<NumberedPolicy> = (0..policies)
        .map(|index| {
            // From one unit per hour to one in eight days.
            let text = format!("gcra:{}/{}h:burst={BURST}", 1 + index % 100, 100 + index / 100);
            let policy: Policy = text.parse().expect("a policy");
            store.prepare(&policy, clock.now())
        })
        .collect();
    let mut turn = policies.len() - 1;
    move |key| {
        turn = if turn == 0 { policies.len() - 1 } else { turn - 1 };
        let (key, policy) = (key.text.as_bytes(), &policies[turn]);
        let decision = store.apply_numbered(key, policy, clock.now(), Operation::Take(1));
        let decision = decision.expect("a take is always answered");
        // A full table would answer without storing the key.
        decision.allowed() && decision.remaining == BURST - 1
    }
}

fn quota() -> Quota {
    let burst = NonZeroU32::new(BURST).expect("not zero");
    Quota::with_period(HOUR).expect("not zero").allow_burst(burst)
}

fn governor_bytes() -> impl FnMut(&mut Key) -> bool {
    let governor: DefaultKeyedRateLimiter<[u8; 16]> = RateLimiter::keyed(quota());
    move |key| governor.check_key(&keys::bytes(key.number)).is_ok()
}

fn governor_string() -> impl FnMut(&mut Key) -> bool {
    let governor: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(quota());
    move |key| governor.check_key(&key.text).is_ok()
}

/// A minimal limiter in a plain map.
fn hashbrown_mutex(clock: &TscClock) -> impl FnMut(&mut Key) -> bool {
    let map: Mutex<HashMap<[u8; 16], Timestamp>> = Mutex::default();
    move |key| {
        let now = clock.now();
        let mut map = map.lock().expect("no thread panics while it holds the lock");
        let tat = map.entry(keys::bytes(key.number)).or_insert(now);
        let next = (*tat).max(now) + HOUR;
        let allowed = next <= now + HOUR * BURST;
        if allowed {
            *tat = next;
        }
        allowed
    }
}

fn throttlecrab_mutex() -> impl FnMut(&mut Key) -> bool {
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(PeriodicStore::new()));
    let burst = i64::from(BURST);
    move |key| {
        let mut limiter = limiter.lock().expect("no thread panics while it holds the lock");
        let result = limiter.rate_limit(&key.text, burst, 24, 86_400, 1, wall());
        result.is_ok_and(|(allowed, _)| allowed)
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    status("VmRSS:") * 1024
}

/// A number from `/proc/self/status`.
fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("Linux lists it for every process")
}
