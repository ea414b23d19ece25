//! Replay of an access log: `sluicegate simulate` as a whole process, compared with GoAccess on the same
//! file, and several policies at once, compared with one after the other.

mod log;
mod process;

use std::{env, fs, io, path::PathBuf, process::Command};

use self::process::{Ran, run as timed};
use crate::{
    others::Others,
    report::{Bar, Peer, Table, median},
};

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    rounds: usize,
    bytes: u64,
}

const FULL: Sizes = Sizes { rounds: 5, bytes: 100_000_000 };
const QUICK: Sizes = Sizes { rounds: 1, bytes: 200_000 };

const POLICY: &str = "gcra:100/60s";
const POLICIES: [&str; 5] = [
    POLICY,
    "sliding-log:100/60s",
    "sliding-counter:100/60s",
    "fixed-window:100/60s:align=clock",
    "token-bucket:10/1s:burst=20:refill=interval",
];

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { QUICK } else { FULL };
    let Some(sluicegate) = sluicegate() else {
        println!("replay: skipped, because the program `sluicegate` is not built beside this one");
        return Ok(());
    };
    let folder = env::temp_dir().join(format!("sluicegate-replay-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let result = compare(sizes, &sluicegate, &folder);
    fs::remove_dir_all(&folder)?;
    result
}

fn compare(sizes: Sizes, sluicegate: &PathBuf, folder: &std::path::Path) -> io::Result<()> {
    let log = folder.join("access.log");
    let lines = log::write(&log, sizes.bytes, 10_000)?;
    println!(
        "replay: {} rounds; a log of {} MB, {lines} lines, 10000 addresses",
        sizes.rounds,
        sizes.bytes / 1_000_000
    );
    let others = Others::start();
    let simulate = |policies: &[&str], log: &std::path::Path| -> io::Result<Ran> {
        let mut command = Command::new(sluicegate);
        command.args(["simulate", "--key", "{ip}", "--log", "combined"]).arg(log);
        command.args(policies.iter().flat_map(|policy| ["--policy", policy]));
        timed(&mut command)
    };
    let goaccess = || -> Option<io::Result<Ran>> {
        let mut command = Command::new("goaccess");
        command.arg(&log).args(["--log-format=COMBINED", "--no-global-config", "-o"]);
        command.arg(folder.join("goaccess.json"));
        let ran = timed(&mut command);
        match ran {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            ran => Some(ran),
        }
    };

    let (mut one, mut peer, mut each, mut together) = (vec![], vec![], vec![], vec![]);
    for _ in 0..sizes.rounds {
        one.push(simulate(&[POLICY], &log)?);
        peer.extend(goaccess().transpose()?);
        let separate = POLICIES.iter().map(|policy| simulate(&[*policy], &log));
        let separate: Vec<Ran> = separate.collect::<io::Result<_>>()?;
        each.push(separate.iter().map(|ran| ran.seconds).sum::<f64>());
        together.push(simulate(&POLICIES, &log)?);
    }
    let seconds = |ran: &[Ran]| median(&ran.iter().map(|it| it.seconds).collect::<Vec<_>>());
    let millis = |seconds: f64| format!("{:.0} ms", seconds * 1e3);
    let mut table = Table::comparison();
    let one = seconds(&one);
    if peer.is_empty() {
        println!("GoAccess is left out: install it with `apt-get install goaccess`");
    } else {
        let theirs = seconds(&peer);
        let ratio = theirs / one;
        let bar = Bar::AtLeast(3.0);
        table.compare(
            "replay, one policy",
            millis(one),
            Peer::new("GoAccess", millis(theirs)),
            ratio,
            "x",
            bar,
        );
    }
    let (each, together) = (median(&each), seconds(&together));
    table.compare(
        "five policies at once",
        millis(together),
        Peer::new("one after the other", millis(each)),
        each / together,
        "x",
        Bar::AtLeast(2.0),
    );
    println!("{table}");
    println!("{}", memory(sizes, folder, |log| simulate(&[POLICY], log))?);
    println!("{}", others.summary(0.0));
    Ok(())
}

/// Peak memory of a replay, by the length of the log and the number of its addresses.
fn memory(
    sizes: Sizes,
    folder: &std::path::Path,
    simulate: impl Fn(&std::path::Path) -> io::Result<Ran>,
) -> io::Result<Table> {
    let mut table = Table::new(&["log", "addresses", "peak memory"]);
    for (bytes, addresses) in [
        (sizes.bytes / 4, 10_000),
        (sizes.bytes, 10_000),
        (sizes.bytes * 2, 10_000),
        (sizes.bytes, 1_000_000),
    ] {
        let log = folder.join("memory.log");
        log::write(&log, bytes, addresses)?;
        let ran = simulate(&log)?;
        let kibibytes = ran.peak_kib as f64;
        table.row(vec![
            format!("{:.1} MB", bytes as f64 / 1e6),
            addresses.to_string(),
            format!("{:.1} MiB", kibibytes / 1024.0),
        ]);
    }
    Ok(table)
}

/// The program, which Cargo builds beside this one.
fn sluicegate() -> Option<PathBuf> {
    let path = env::current_exe().ok()?.with_file_name("sluicegate");
    path.is_file().then_some(path)
}
