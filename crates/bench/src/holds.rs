//! Holds beside takes: in this process, over RESP, by script and in the module; in tower beside its own limit.

use std::{hint::black_box, io, time::Duration};

use sluicegate_core::{Entry, HoldOperation, Operation, Policy, Timestamp, apply_hold};
use sluicegate_memory::MemoryStore;
use sluicegate_redis::script::Plan;
use sluicegate_resp::{Value, encode_command};
use sluicegate_testing::Engine;

use crate::{
    clock::{TscClock, instant, per_call},
    module::servers,
    others::Others,
    ours,
    redis::wire::Connection,
    report::{Bar, Peer, Table, median, ratio, time},
    resp::peers,
    tower,
};
use sluicegate_core::Clock as _;

/// Commands in flight.
const PIPELINE: usize = 16;
/// No take is denied, and nothing recovers, during a run.
const POLICY: &str = "token-bucket:1000000000/1h";
const TTL: Duration = Duration::from_secs(3600);

struct Sizes {
    rounds: usize,
    calls: u64,
    measured: Duration,
}

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick {
        Sizes { rounds: 1, calls: 1_000, measured: Duration::from_millis(20) }
    } else {
        Sizes { rounds: 7, calls: 300_000, measured: Duration::from_millis(500) }
    };
    println!("holds: {} rounds", sizes.rounds);
    let others = Others::start();
    let mut table = Table::comparison();
    in_process(&sizes, &mut table);
    bytes(&mut table);
    over_resp(&sizes, &mut table)?;
    for engine in Engine::NEWER {
        by_script(engine, &sizes, &mut table)?;
        in_module(engine, &sizes, &mut table)?;
    }
    tower::holds(quick, &mut table)?;
    println!("{table}");
    println!("{}", others.summary(0.0));
    Ok(())
}

fn policy(text: &str) -> Policy {
    text.parse().expect("a policy")
}

/// A hold and its settle on a key with ten open holds, beside two takes.
fn in_process(sizes: &Sizes, table: &mut Table) {
    for (text, ttl, bar) in
        [(POLICY, Some(TTL), Bar::AtLeast(0.3)), ("concurrency:1000/1h", None, Bar::AtLeast(0.3))]
    {
        let (store, clock) = (MemoryStore::new(), TscClock::new());
        let prepared = store.prepare(&policy(text), clock.now());
        let take_rule = store.prepare(&policy(POLICY), clock.now());
        let (key, other) = (b"a key of 16 byte", b"a key of 16 bits");
        let apply = |operation: HoldOperation<'_>| {
            let decision =
                store.apply_hold_numbered(black_box(key), &prepared, clock.now(), operation);
            black_box(&decision.expect("it is valid"));
        };
        for id in 0..10_u128 {
            apply(HoldOperation::Hold { id: &id.to_le_bytes(), cost: 1, ttl });
        }
        let (mut ours, mut takes) = (Vec::new(), Vec::new());
        for _ in 0..sizes.rounds {
            ours.push(per_call(sizes.calls, || {
                let id = b"an id of 16 byte";
                apply(HoldOperation::Hold { id, cost: 1, ttl });
                apply(HoldOperation::Settle { id, used: None });
            }));
            takes.push(per_call(sizes.calls, || {
                for _ in 0..2 {
                    let take = Operation::Take(1);
                    let decision =
                        store.apply_numbered(black_box(other), &take_rule, clock.now(), take);
                    black_box(&decision.expect("it is valid"));
                }
            }));
        }
        let name = text.split_once(':').map_or(text, |(name, _)| name);
        table.compare(
            &format!("in process, {name}: hold + settle, 10 open"),
            time(median(&ours)),
            Peer::new("two takes", time(median(&takes))),
            ratio(&takes, &ours),
            "x",
            bar,
        );
    }
}

/// Bytes of one more hold with an id of 16 bytes.
fn bytes(table: &mut Table) {
    let (policy, now) = (policy("concurrency:1000/1h"), Timestamp::EPOCH);
    let mut entry = None;
    let mut sizes = Vec::new();
    for id in 0..1000_u128 {
        let hold = HoldOperation::Hold { id: &id.to_le_bytes(), cost: 1, ttl: None };
        let _ = apply_hold(&policy, &mut entry, now, hold).expect("it is valid");
        let entry: &Entry = entry.as_ref().expect("a hold is open");
        sizes.push((entry.allocations().sum::<usize>(), entry.encoded_len()));
    }
    let per_hold = |sizes: &dyn Fn(usize) -> usize| (sizes(999) - sizes(99)) as f64 / 900.0;
    let memory = per_hold(&|index| sizes[index].0);
    let value = per_hold(&|index| sizes[index].1);
    for (what, bytes) in [("in memory", memory), ("in a value of Redis", value)] {
        let work = format!("bytes of a hold {what}");
        let ours = format!("{bytes:.1} B");
        table.compare(&work, ours, Peer::none(), bytes, "B", Bar::AtMost(40.0));
    }
}

/// Commands, as one block of bytes for each of [`PIPELINE`] in flight.
struct Block(Vec<u8>);

impl Block {
    /// Repeats `commands` until a block is full.
    fn of(commands: &[Vec<Vec<u8>>]) -> Self {
        let mut bytes = Vec::new();
        for index in 0..PIPELINE {
            let words: Vec<_> =
                commands[index % commands.len()].iter().map(Vec::as_slice).collect();
            encode_command(&words, &mut bytes);
        }
        Self(bytes)
    }

    /// Commands per second.
    fn rate(&self, connection: &mut Connection, span: Duration) -> io::Result<f64> {
        let (start, mut sent) = (instant(), 0_u64);
        while start.elapsed() < span {
            connection.send(&self.0)?;
            connection.skip(PIPELINE)?;
            sent += PIPELINE as u64;
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64())
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// A row of the table: our work, that of the peer, and the least ratio.
#[derive(Clone, Copy)]
struct Row<'a> {
    work: &'a str,
    against: &'a str,
    bar: f64,
}

/// Compares two blocks on one connection, round by round.
fn compare(
    connection: &mut Connection,
    sizes: &Sizes,
    [ours, peer]: [&Block; 2],
    table: &mut Table,
    row: Row<'_>,
) -> io::Result<()> {
    let Row { work, against, bar } = row;
    let (mut rates, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        rates.push(ours.rate(connection, sizes.measured)?);
        peers.push(peer.rate(connection, sizes.measured)?);
    }
    let shown = |rates: &[f64]| format!("{:.0} k/s", median(rates) / 1e3);
    let peer = Peer::new(against, shown(&peers));
    table.compare(work, shown(&rates), peer, ratio(&rates, &peers), "x", Bar::AtLeast(bar));
    Ok(())
}

/// Opens `count` holds of one key.
fn open(connection: &mut Connection, policy: &str, count: u32) -> io::Result<()> {
    for index in 0..count {
        let line = format!("SG.HOLD holds {policy} open-hold-of-{index:03} TTL 3600000000");
        let words = words(&line);
        connection.call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn over_resp(sizes: &Sizes, table: &mut Table) -> io::Result<()> {
    let connection = &mut Connection::new(ours::serve(None)?.resp)?;
    open(connection, POLICY, 10)?;
    let pair = Block::of(&[
        words(&format!("SG.HOLD holds {POLICY} an-id-of-16-byte TTL 3600000000")),
        words(&format!("SG.SETTLE holds {POLICY} an-id-of-16-byte")),
    ]);
    let takes = Block::of(&[words(&format!("SG.TAKE takes {POLICY}"))]);
    let row = Row { work: "over RESP: hold + settle, 10 open", against: "two SG.TAKE", bar: 0.6 };
    compare(connection, sizes, [&pair, &takes], table, row)
}

fn by_script(engine: Engine, sizes: &Sizes, table: &mut Table) -> io::Result<()> {
    let server = servers::start(engine, &[])?;
    let connection = &mut Connection::new(server.address)?;
    let plan = Plan::new(&policy(POLICY));
    let Value::Bulk(sha1) =
        connection.call(&[b"SCRIPT", b"LOAD", plan.script().text().as_bytes()])?
    else {
        return Err(io::Error::other("SCRIPT LOAD returned no SHA-1"));
    };
    let call = |key: &[u8], arguments: Vec<Vec<u8>>| {
        let mut words = vec![b"EVALSHA".to_vec(), sha1.clone(), b"1".to_vec(), key.to_vec()];
        words.extend(arguments);
        words
    };
    let hold = |operation: HoldOperation<'_>| {
        let ttl = u64::try_from(TTL.as_micros()).unwrap_or_default();
        let arguments = plan.hold_arguments(operation, ttl, Timestamp::EPOCH, None, &[]);
        call(b"holds", arguments.iter().map(<[u8]>::to_vec).collect())
    };
    for index in 0..10_u32 {
        let id = format!("open-hold-of-{index:03}");
        let words = hold(HoldOperation::Hold { id: id.as_bytes(), cost: 1, ttl: Some(TTL) });
        connection.call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    }
    let id = b"an-id-of-16-byte";
    let pair = Block::of(&[
        hold(HoldOperation::Hold { id, cost: 1, ttl: Some(TTL) }),
        hold(HoldOperation::Settle { id, used: None }),
    ]);
    // A take by the general script: the arguments of a peek with another word.
    let peek = plan.arguments(Operation::Peek(1), Timestamp::EPOCH, None, &[]);
    let mut take: Vec<_> = peek.map_err(io::Error::other)?.iter().map(<[u8]>::to_vec).collect();
    take[0] = b"take".to_vec();
    let takes = Block::of(&[call(b"takes", take)]);
    let work = format!("{}, script: hold + settle, 10 open", engine.name());
    let row = Row { work: &work, against: "two takes, general script", bar: 0.5 };
    compare(connection, sizes, [&pair, &takes], table, row)
}

fn in_module(engine: Engine, sizes: &Sizes, table: &mut Table) -> io::Result<()> {
    let module = peers::module()?;
    let server = servers::start(engine, &["--loadmodule", &module.to_string_lossy()])?;
    let connection = &mut Connection::new(server.address)?;
    let policy = "concurrency:1000/1h";
    open(connection, policy, 100)?;
    let pair = Block::of(&[
        words(&format!("SG.HOLD holds {policy} an-id-of-16-byte TTL 3600000000")),
        words(&format!("SG.SETTLE holds {policy} an-id-of-16-byte")),
    ]);
    // A full log of a hundred events: each take is denied, or takes the place of an old event.
    let takes = Block::of(&[words("SG.TAKE takes sliding-log:100/1s")]);
    let work = format!("{}, module: hold + settle, 100 open", engine.name());
    let row = Row { work: &work, against: "sliding-log, 100 events", bar: 0.5 };
    compare(connection, sizes, [&pair, &takes], table, row)
}
