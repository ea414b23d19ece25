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
    let others = others.summary(0.0);
    println!("{table}");
    println!("growth from empty to {} keys, a new key and a timing for each decision:", sizes.keys);
    println!("{grown}");
    println!(
        "`governor, String`: keyed by a `String` that each call creates, because `check_key` takes a\n\
         `&String`; `kept`: the caller already has it. `quanta`: time from the library that governor uses,\n\
         too; `SystemClock`: our clock, which never drifts from the system's; `time as an argument`: the\n\
         caller reads `quanta` before the call. `preempted`: the number of times that another process took\n\
         the core; each may have delayed a decision."
    );
    println!("{others}");
    Ok(())
}
