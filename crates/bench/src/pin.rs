//! Cores that threads run on.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process may use.
pub(crate) fn cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Restricts this thread, and threads and processes that it starts later, to these cores.
pub(crate) fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// One core for the load, and one for the servers.
pub(crate) fn load_and_server_core() -> io::Result<(usize, usize)> {
    match cores()?[..] {
        [load, servers, ..] => Ok((load, servers)),
        _ => Err(io::Error::other("this needs two cores: one for the load, one for the servers")),
    }
}
