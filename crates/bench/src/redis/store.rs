//! The store as a program uses it: many tasks on one connection, and decisions without a round trip.

use sluicegate_core::{PreparedPolicy, Source, Store};
use std::{io, time::Duration};

use sluicegate_redis::{Options, RedisStore};

use super::{
    subject::{Sizes, Subject},
    wire::{Span, load},
};
use crate::{
    clock::instant,
    keys::Random,
    report::{Bar, Peer, Table, median, time},
    resp::servers::Server,
};

/// Concurrent tasks.
const TASKS: usize = 64;

pub(super) fn measure(server: &Server, sizes: &Sizes, table: &mut Table) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(compare(server, sizes, table))
}

async fn compare(server: &Server, sizes: &Sizes, table: &mut Table) -> io::Result<()> {
    let url = format!("redis://{}", server.address);
    let mut options = Options::default();
    options.deadline = Duration::from_secs(5);
    let store = RedisStore::connect_with(&url, options).await.map_err(io::Error::other)?;
    let prepare = |policy: &str| policy.parse::<PreparedPolicy>().map_err(io::Error::other);

    let plain = prepare("gcra:1000000/1s")?;
    let subject = Subject::ours(server, "gcra:1000000/1s", "load")?;
    let hot = plain.lease(100).map_err(io::Error::other)?;
    let three =
        prepare("gcra:1000000/1s,fixed-window:1000000000/1h,sliding-counter:1000000000/1h")?;
    let single = [
        prepare("gcra:1000000/1s")?,
        prepare("fixed-window:1000000000/1h")?,
        prepare("sliding-counter:1000000000/1h")?,
    ];
    let full = prepare("gcra:1/1h")?;
    let _ = store.take(b"full", &full, 1).await.map_err(io::Error::other)?;

    let mut figures = [const { Vec::new() }; 8];
    for _ in 0..sizes.rounds {
        figures[0].push(tasks(&store, &plain, sizes).await);
        figures[1].push(load(
            server.address,
            &subject.command,
            1,
            TASKS,
            sizes.keys,
            Span::Time(sizes.measured),
        )?);
        figures[2].push(
            each(sizes, async || {
                let answer = store.take(b"full", &full, 1).await;
                answer.is_ok_and(|it| !it.allowed())
            })
            .await?,
        );
        figures[3].push(each(sizes, async || store.take(b"k", &plain, 1).await.is_ok()).await?);
        figures[4].push(
            each(sizes, async || store.take(b"hot", &hot, 1).await.is_ok_and(|it| it.allowed()))
                .await?,
        );
        figures[5].push(
            each(sizes, async || {
                store.take(b"hot2", &plain, 1).await.is_ok_and(|it| it.source == Source::Store)
            })
            .await?,
        );
        figures[6].push(each(sizes, async || store.take(b"three", &three, 1).await.is_ok()).await?);
        figures[7].push(
            each(sizes, async || {
                for (prepared, key) in single.iter().zip([b"one-1", b"one-2", b"one-3"]) {
                    if store.take(key, prepared, 1).await.is_err() {
                        return false;
                    }
                }
                true
            })
            .await?,
        );
    }
    let [ours, generator, cached, trip, leased, unleased, policy, calls] =
        figures.map(|it| median(&it));
    let rate = |it: f64| format!("{it:.0}/s");
    let work = format!("store, {TASKS} tasks on one connection");
    table.compare(
        &work,
        rate(ours),
        Peer::new("load generator", rate(generator)),
        ours / generator,
        "x",
        Bar::AtLeast(0.8),
    );
    let mut row = |work: &str, ours: f64, against: &str, theirs: f64, bar: f64| {
        let figure = theirs / ours;
        table.compare(
            work,
            time(ours),
            Peer::new(against, time(theirs)),
            figure,
            "x",
            Bar::AtLeast(bar),
        );
    };
    row("a denied key, cached", cached, "a round trip", trip, 100.0);
    row("a hot key, leases of 100", leased, "without", unleased, 20.0);
    row("a policy of three limits", policy, "three calls", calls, 2.0);
    Ok(())
}

/// Decisions per second of many tasks.
async fn tasks(store: &RedisStore, prepared: &PreparedPolicy, sizes: &Sizes) -> f64 {
    let start = instant();
    let (span, keys) = (sizes.measured, sizes.keys);
    let tasks = (0..TASKS).map(|task| {
        let (store, prepared) = (store.clone(), prepared.clone());
        tokio::spawn(async move {
            let mut random = Random::new(task as u64 + 1);
            let mut key = *b"load______000000";
            let mut count = 0_u64;
            while start.elapsed() < span {
                let mut number = random.below(keys);
                for digit in key[10..].iter_mut().rev() {
                    *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
                    number /= 10;
                }
                count += u64::from(
                    store.take(&key, &prepared, 1).await.is_ok_and(|it| it.source == Source::Store),
                );
            }
            count
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap_or_default();
    }
    count as f64 / start.elapsed().as_secs_f64()
}

/// Mean nanoseconds of one of many operations in sequence.
async fn each(sizes: &Sizes, operation: impl AsyncFn() -> bool) -> io::Result<f64> {
    let (start, mut count) = (instant(), 0_u64);
    while start.elapsed() < sizes.measured {
        for _ in 0..32 {
            if !operation().await {
                return Err(io::Error::other("unexpected result of an operation"));
            }
        }
        count += 32;
    }
    Ok(start.elapsed().as_nanos() as f64 / count as f64)
}
