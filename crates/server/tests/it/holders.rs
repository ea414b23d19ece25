//! Eight processes that hold units of one key and settle them, of which one is killed each second: on the server, and
//! on Redis by functions and by the module.
//!
//! Each process writes the store's time around each operation, so that the test knows when a unit was held for
//! certain.

use std::{
    collections::HashMap,
    env,
    io::{self, BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use redis::ConnectionLike;
use sluicegate_core::{Entry, Timestamp};
use sluicegate_redis::script::Library;
use sluicegate_resp::Value;
use sluicegate_testing::{Engine, Server, eventually_within, module, now, pause};

use crate::harness::{Random, RawClient, Running, TEST_TIMEOUT, integers, size};

/// Tells the process of a test to hold: how, where, and its name.
const HOLDER: &str = "SLUICEGATE_TEST_HOLDER";
const TEST: &str = "holders::holders_killed_each_second_hold_at_most_the_limit";

const HOLDERS: usize = 8;
const UNITS: usize = 5;
/// How long the unit of a lost holder is blocked, in microseconds.
const TTL: u64 = 1_000_000;
const POLICY: &str = "concurrency:5/1s";
/// Seconds of a run beside other tests, which delay the holders. A longer one has the machine for itself.
const SECONDS: usize = 20;

/// The command that opens holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Server,
    Module,
    Functions,
}

impl Way {
    const ALL: [Self; 3] = [Self::Server, Self::Module, Self::Functions];

    /// An operation on the key.
    fn line(self, operation: &str, rest: &str) -> String {
        match self {
            Self::Functions => format!("FCALL sg_{operation} 1 k {POLICY} {rest}"),
            Self::Server | Self::Module => {
                format!("SG.{} k {POLICY} {rest}", operation.to_uppercase())
            }
        }
    }
}

/// The store's time, in microseconds.
fn time(value: &Value) -> u64 {
    let Value::Array(parts) = value else { panic!("no time: {value:?}") };
    let part = |index: usize| -> u64 {
        let Value::Bulk(text) = &parts[index] else { panic!("no time: {value:?}") };
        str::from_utf8(text).unwrap().parse().unwrap()
    };
    part(0) * 1_000_000 + part(1)
}

/// The answer to an operation, and the time before and after it.
fn timed(peer: &mut RawClient, line: &str) -> (u64, Vec<i64>, u64) {
    ["TIME", line, "TIME"].into_iter().for_each(|line| peer.send_command(line));
    let before = time(&peer.read_reply());
    let answer = integers(&peer.read_reply());
    (before, answer, time(&peer.read_reply()))
}

/// Holds one unit after another, until the process is killed or its parent ends.
fn hold_for_ever(way: Way, address: SocketAddr, name: &str) -> ! {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    let mut peer = Running::at_address(address, None).connect();
    let mut random = Random(u64::from(std::process::id()));
    println!();
    for number in 0_u64.. {
        let id = format!("{name}-{number}");
        let wait = if way == Way::Functions { "" } else { " TIMEOUT 300000" };
        let hold = way.line("hold", &format!("{id}{wait}"));
        println!("opening {id}");
        loop {
            let (before, answer, after) = timed(&mut peer, &hold);
            if answer[0] == 1 {
                println!("held {id} {before} {after}");
                break;
            }
            pause(Duration::from_millis(1));
        }
        pause(Duration::from_millis(50 + random.below(100)));
        let settle = way.line("settle", &id);
        let before = time(&peer.call("TIME"));
        println!("settling {id} {before}");
        let (_, answer, after) = timed(&mut peer, &settle);
        println!("settled {id} {after} {}", answer[0]);
    }
    unreachable!("there is always a next hold")
}

/// A process that holds, and the reader of its output.
struct Holder {
    child: Child,
    reader: JoinHandle<Vec<String>>,
}

impl Holder {
    fn start(way: Way, address: SocketAddr, name: &str) -> Self {
        let way = Way::ALL.iter().position(|it| *it == way).unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(HOLDER, format!("{way} {address} {name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let reader = thread::spawn(move || out.lines().map_while(Result::ok).collect());
        Self { child, reader }
    }

    /// Kills the process (SIGKILL), and returns its output.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.join().unwrap()
    }
}

/// The log of one hold, in the store's time.
#[derive(Clone, Copy, Debug, Default)]
struct HoldLog {
    /// Times before and after it was allowed.
    held: Option<(u64, u64)>,
    settling: Option<u64>,
    settled: Option<(u64, bool)>,
}

impl HoldLog {
    /// When it was held for certain.
    fn span(&self) -> Option<(u64, u64)> {
        let (before, after) = self.held?;
        let end = self.settling.unwrap_or(u64::MAX).min(before + TTL);
        (after < end).then_some((after, end))
    }
}

/// The logs of the processes, by id.
fn parse(lines: &[String]) -> HashMap<&str, HoldLog> {
    let mut all: HashMap<&str, HoldLog> = HashMap::new();
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        match *words.as_slice() {
            ["opening", id] => {
                let before = all.insert(id, HoldLog::default());
                assert!(before.is_none(), "{id} is requested twice");
            }
            ["held", id, ..] if words.len() == 4 => {
                all.get_mut(id).unwrap().held = Some((number(2), number(3)));
            }
            ["settling", id, _] => all.get_mut(id).unwrap().settling = Some(number(2)),
            ["settled", id, _, allowed] => {
                all.get_mut(id).unwrap().settled = Some((number(2), allowed == "1"));
            }
            _ => {}
        }
    }
    all
}

/// The most units that were held at one time for certain.
fn most_held(known: &HashMap<&str, HoldLog>) -> usize {
    let mut changes: Vec<_> = known
        .values()
        .filter_map(HoldLog::span)
        .flat_map(|(begin, end)| [(begin, 1_isize), (end, -1)])
        .collect();
    // An end at the time of a begin comes first.
    changes.sort_unstable();
    let (mut held, mut most) = (0, 0);
    for (_, change) in changes {
        held += change;
        most = most.max(held);
    }
    usize::try_from(most).unwrap()
}

/// The part of all units that holders used between two times, or that was blocked by killed ones, in percent.
fn utilisation(known: &HashMap<&str, HoldLog>, begin: u64, end: u64) -> f64 {
    let within = |at: u64| at.clamp(begin, end);
    let spans = known.values().filter_map(HoldLog::span);
    let used: u64 = spans.map(|(first, last)| within(last) - within(first)).sum();
    used as f64 / (UNITS as u64 * (end - begin)) as f64 * 100.0
}

/// Runs the holders, kills one each second, and checks their logs.
fn run(way: Way, address: SocketAddr, stored: impl Fn() -> Option<Entry>) {
    let span = Duration::from_secs(size("SLUICEGATE_HOLD_SECONDS", SECONDS) as u64);
    let start = |name: usize| Holder::start(way, address, &format!("holder-{name}"));
    let mut holders: Vec<_> = (0..HOLDERS).map(start).collect();
    let mut peer = Running::at_address(address, None).connect();
    let peek = way.line("peek", "COST 0");
    let in_use = |peer: &mut RawClient| {
        let actual = peer.integers(&peek);
        actual[1] - actual[2]
    };
    let units = i64::try_from(UNITS).unwrap();
    eventually_within(TEST_TIMEOUT, "all units are held", || match in_use(&mut peer) {
        held if held == units => Ok(()),
        held => Err(held),
    });
    let (mut lines, mut names, mut kills, mut looks) = (Vec::new(), HOLDERS, 0_usize, 0);
    let (begin, first) = (now(), time(&peer.call("TIME")));
    while begin.elapsed() < span {
        if begin.elapsed() >= Duration::from_secs(kills as u64 + 1) {
            let killed = std::mem::replace(&mut holders[kills % HOLDERS], start(names));
            lines.extend(killed.kill());
            (names, kills) = (names + 1, kills + 1);
        }
        // The stored entry has no more either, at any time.
        if let Some(entry) = stored() {
            let at = Timestamp::from_micros(time(&peer.call("TIME"))).unwrap();
            assert!(entry.holds(at).count() <= UNITS, "{way:?}: {entry:?}");
            looks += 1;
        }
        pause(Duration::from_millis(10));
    }
    let last = time(&peer.call("TIME"));
    lines.extend(holders.into_iter().flat_map(Holder::kill));
    let known = parse(&lines);
    let most = most_held(&known);
    // A settle found its hold, unless that may have expired.
    for (id, hold) in &known {
        if let (Some((before, _)), Some((at, allowed))) = (hold.held, hold.settled) {
            assert!(allowed || at >= before + TTL, "{way:?}: {id} was not open: {hold:?}");
        }
    }
    // Requests of killed processes have left the queue.
    eventually_within(TEST_TIMEOUT, "the connections of killed holders are closed", || {
        let Value::Bulk(info) = peer.call("INFO clients") else { panic!("no text") };
        let info = String::from_utf8(info).unwrap();
        if info.contains("connected_clients:1\r") { Ok(()) } else { Err(info) }
    });
    if let Some(entry) = stored() {
        let at = Timestamp::from_micros(time(&peer.call("TIME"))).unwrap();
        let open: Vec<_> = entry.holds(at).collect();
        assert!(open.len() <= UNITS, "{way:?}: {open:?}");
        for hold in open {
            let lost = known[str::from_utf8(hold.id).unwrap()];
            assert!(lost.settled.is_none(), "{way:?}: {hold:?} is open, and was settled");
        }
    }
    let (late, last_looks) = last_units_return(way, &mut peer, &known);
    let utilisation = utilisation(&known, first, last);
    let settled = known.values().filter(|hold| hold.settled.is_some()).count();
    println!(
        "figure: {way:?}: {HOLDERS} processes, {kills} killed in {} s: {} holds, {settled} settled; at most {most} of {UNITS} units \
         held at one time; {utilisation:.1} % of all units used by holders or blocked by killed ones; the last lost units were back \
         {late} us after they were due, by {last_looks} looks; {looks} looks at the ledger",
        span.as_secs(),
        known.len(),
    );
    assert!(most <= UNITS, "{way:?}: {most}");
    assert!(kills + 1 >= usize::try_from(span.as_secs()).unwrap(), "{way:?}: {kills} kills");
    let least = if span > Duration::from_secs(SECONDS as u64) { 95.0 } else { 75.0 };
    assert!(utilisation >= least, "{way:?}: {utilisation}");
}

/// Peeks until all units are free: not before the last lost hold has expired, and with the first peek after that.
/// Returns how late that peek was in microseconds, and the number of peeks.
fn last_units_return(
    way: Way,
    peer: &mut RawClient,
    known: &HashMap<&str, HoldLog>,
) -> (u64, usize) {
    let lost = known.values().filter(|hold| hold.settling.is_none());
    let certain = lost.filter_map(|hold| Some(hold.held?.0 + TTL)).max().unwrap_or(0);
    let all = way.line("hold", &format!("all COST {UNITS}"));
    let closed = time(&peer.call("TIME"));
    let (mut due, mut looks) = (0, 0);
    loop {
        let (before, answer, after) = timed(peer, &all);
        looks += 1;
        if answer[0] == 1 {
            assert!(
                after >= certain,
                "{way:?}: all are free at {after}, and one is held to {certain}"
            );
            return (after.saturating_sub(due.max(certain)), looks);
        }
        assert!(
            before < closed + TTL,
            "{way:?}: denied at {before}, all were killed before {closed}"
        );
        // The answer says when they are free, and no other client sends requests.
        assert!(due == 0 || before < due, "{way:?}: denied at {before}, and due at {due}");
        due = after + u64::try_from(answer[3]).unwrap();
        pause(Duration::from_micros(300));
    }
}

#[test]
fn holders_killed_each_second_hold_at_most_the_limit() {
    if let Ok(holder) = env::var(HOLDER) {
        let mut words = holder.split(' ');
        let way = Way::ALL[words.next().unwrap().parse::<usize>().unwrap()];
        hold_for_ever(way, words.next().unwrap().parse().unwrap(), words.next().unwrap());
    }
    let address = |server: &Server| SocketAddr::from(([127, 0, 0, 1], server.port()));
    let stored = |server: &Server| Entry::decode(&server.query::<Vec<u8>>("GET k")).ok();
    // A server ends with the thread that started it.
    thread::scope(|scope| {
        scope.spawn(|| {
            let server = Running::new();
            run(Way::Server, server.address, || None);
        });
        scope.spawn(|| {
            let server = Server::with(Engine::Redis70, &["--loadmodule", module()]);
            run(Way::Module, address(&server), || stored(&server));
        });
        scope.spawn(|| {
            let server = Server::start(Engine::Redis70);
            let load = redis::cmd("FUNCTION").arg("LOAD").arg(Library::text()).clone();
            server.connect().req_command(&load).unwrap();
            run(Way::Functions, address(&server), || stored(&server));
        });
    });
}
