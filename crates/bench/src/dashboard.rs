//! The cost of the dashboard: the processor time of the server's threads with the maximum number of
//! viewers, compared with no viewers, under the same steady load.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::{
    clock::instant,
    keys::Random,
    ours::{self, Addresses},
    report::{Bar, Peer, Table, median},
};

const VIEWERS: usize = 64;
/// Viewers that read nothing after their first frame's head.
const STALLED: usize = 16;
/// Decisions per batch, and time between two batches.
const BATCH: usize = 200;
const INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let (rounds, measured) =
        if quick { (1, Duration::from_millis(1200)) } else { (7, Duration::from_secs(5)) };
    let Addresses { resp, http } = ours::serve(None)?;
    let over = AtomicBool::new(false);
    let samples = thread::scope(|scope| {
        let load = scope.spawn(|| load(resp, &over));
        let samples = (0..rounds).map(|round| {
            // Every second round in reverse order, so that neither always follows the other.
            let mut turns = [0, VIEWERS];
            if round % 2 == 1 {
                turns.reverse();
            }
            let mut busy = [0.0; 2];
            for viewers in turns {
                busy[usize::from(viewers > 0)] = measure_busy(http, viewers, measured)?;
            }
            print!(".");
            io::stdout().flush()?;
            Ok(busy)
        });
        let samples = samples.collect::<io::Result<Vec<_>>>();
        over.store(true, Ordering::Relaxed);
        load.join().map_err(|_| io::Error::other("the load failed"))??;
        samples
    })?;
    println!(
        "\ndashboard: {rounds} rounds, 10 k decisions/s, {STALLED} of {VIEWERS} viewers stalled"
    );
    let of = |index: usize| median(&samples.iter().map(|it| it[index]).collect::<Vec<_>>());
    let more = median(&samples.iter().map(|[without, with]| with - without).collect::<Vec<_>>());
    let percent = |part: f64| format!("{part:.2} % of a core");
    let mut table = Table::comparison();
    let peer = Peer::new("no viewer", percent(of(0)));
    table.compare("64 viewers", percent(of(1)), peer, more, "% more", Bar::AtMost(1.0));
    println!("{table}");
    Ok(())
}

/// Requests decisions at a steady rate until `over`.
fn load(address: SocketAddr, over: &AtomicBool) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (mut random, start, mut turn) = (Random::new(1), instant(), 0);
    let mut buffer = vec![0; 64 * 1024];
    while !over.load(Ordering::Relaxed) {
        let mut commands = String::new();
        for _ in 0..BATCH {
            // Few frequent keys, and many rare ones.
            let key = random.below(1000) * random.below(1000) / 1000;
            commands.push_str(&format!("SG.TAKE user:{key} gcra:10/1s\r\n"));
        }
        stream.write_all(commands.as_bytes())?;
        // A reply has eight lines: the length of the array, and seven integers.
        let mut lines = 0;
        while lines < 8 * BATCH {
            let count = stream.read(&mut buffer)?;
            lines += buffer[..count].iter().filter(|&&byte| byte == b'\n').count();
        }
        turn += 1;
        thread::sleep((INTERVAL * turn).saturating_sub(start.elapsed()));
    }
    Ok(())
}

/// The load of the server with `viewers` viewers, in hundredths of a core.
fn measure_busy(address: SocketAddr, viewers: usize, measured: Duration) -> io::Result<f64> {
    let connect = |_| {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut first = [0; 15];
        stream.read_exact(&mut first)?;
        stream.set_nonblocking(true)?;
        if &first == b"HTTP/1.1 200 OK" {
            Ok(stream)
        } else {
            Err(io::Error::other("the server rejected a viewer"))
        }
    };
    let mut streams = (0..viewers).map(connect).collect::<io::Result<Vec<_>>>()?;
    let (start, before) = (instant(), cpu_seconds()?);
    let mut buffer = vec![0; 64 * 1024];
    while start.elapsed() < measured {
        for stream in streams.iter_mut().skip(STALLED) {
            while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok((cpu_seconds()? - before) * 100.0 / start.elapsed().as_secs_f64())
}

/// Seconds of processor time used by the threads that serve clients.
fn cpu_seconds() -> io::Result<f64> {
    let mut nanos = 0_u64;
    for task in fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let name = fs::read_to_string(path.join("comm"))?;
        if name.starts_with("sluicegate-") && !name.starts_with("sluicegate-bench") {
            let schedule = fs::read_to_string(path.join("schedstat"))?;
            let first = schedule.split_whitespace().next().and_then(|it| it.parse::<u64>().ok());
            nanos += first.ok_or_else(|| io::Error::other(format!("cannot read {schedule}")))?;
        }
    }
    Ok(nanos as f64 / 1e9)
}
