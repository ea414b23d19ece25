//! Servers as processes: started on a core of their own, watched, and ended.

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use super::command::PATIENCE;
use crate::{clock::instant, others::ticks, pin};

/// A server that runs: as a process, which ends with this value, or in a thread of ours.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    process: Option<Child>,
}

impl Server {
    /// One that a thread of this process serves.
    pub(crate) const fn here(address: SocketAddr) -> Self {
        Self { address, process: None }
    }

    /// Starts `command` on this core, and waits until it takes clients at `address`. What it tells
    /// goes to the file `log`.
    pub(crate) fn start(
        mut command: Command,
        address: SocketAddr,
        core: usize,
        log: &Path,
    ) -> io::Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // A process begins where the thread that starts it is pinned, so no thread of it escapes.
        let cores = pin::cores()?;
        pin::pin(&[core])?;
        let started = command.spawn();
        pin::pin(&cores)?;
        let mut server = Self { address, process: Some(started?) };

        let start = instant();
        while TcpStream::connect(address).is_err() {
            let ended = server.process.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || start.elapsed() > PATIENCE {
                let told = fs::read_to_string(log).unwrap_or_default();
                return Err(io::Error::other(format!("it does not take clients: {told}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Seconds of processor time that it has used; `None` for a thread of ours.
    pub(crate) fn cpu(&self) -> io::Result<Option<f64>> {
        let Some(process) = &self.process else { return Ok(None) };
        let text = fs::read_to_string(format!("/proc/{}/stat", process.id()))?;
        let ticks =
            ticks(&text, 2).ok_or_else(|| io::Error::other(format!("cannot read {text}")))?;
        Ok(Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // One that has ended by itself is no concern.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// An address that nobody listens on.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}
