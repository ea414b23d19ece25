//! The store in this process, compared with other rate limiters.

mod grow;
mod hot;
mod random;
mod sizes;

use std::io;

pub(crate) use grow::grow_one;

use self::sizes::{FULL, QUICK};
use crate::{others::Others, report::Table};

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { QUICK } else { FULL };
    println!("memory: {} rounds, {} keys", sizes.rounds, sizes.keys);
    let others = Others::start();
    let mut table = Table::comparison();
    hot::measure(&sizes, &mut table);
    random::measure(&sizes, &mut table);
    let grown = grow::measure(&sizes, &mut table)?;
    let others = others.told(0.0);
    println!("{table}");
    println!("growing from empty to {} keys, each decision timed, a new key each:", sizes.keys);
    println!("{grown}");
    println!(
        "`governor, String`: keyed by `String`, made for each call from the text at hand, as `check_key`\n\
         takes a `&String`; `kept`: the caller has it already. `quanta`: time by the library that governor\n\
         asks too; `SystemClock`: by ours, which never drifts from the system's. `preempted`: how\n\
         often another process had the core meanwhile; each time may have stretched a decision."
    );
    println!("{others}");
    Ok(())
}
