//! Servers as processes: started on a separate core, measured, and stopped.

use std::{
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{clock::instant, load::REPLY_TIMEOUT, others::ticks, pin};

/// A running server: a process, which ends with this value, or a thread of this process.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    process: Option<Child>,
}

impl Server {
    /// A server that runs in a thread of this process.
    pub(crate) const fn in_process(address: SocketAddr) -> Self {
        Self { address, process: None }
    }

    /// Starts `command` on this core, and waits until it accepts clients at `address`. Its output
    /// goes to the file `log`.
    pub(crate) fn start(
        command: Command,
        address: SocketAddr,
        core: usize,
        log: &Path,
    ) -> io::Result<Self> {
        // A process inherits the core of the thread that starts it; therefore all its threads are pinned.
        let cores = pin::cores()?;
        pin::pin(&[core])?;
        let started = Self::start_anywhere(command, address, log);
        pin::pin(&cores)?;
        started
    }

    /// The same on any core.
    pub(crate) fn start_anywhere(
        mut command: Command,
        address: SocketAddr,
        log: &Path,
    ) -> io::Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut server = Self { address, process: Some(command.spawn()?) };

        let start = instant();
        while TcpStream::connect(address).is_err() {
            let ended = server.process.as_mut().map(Child::try_wait).transpose()?.flatten();
            if ended.is_some() || start.elapsed() > REPLY_TIMEOUT {
                let output = fs::read_to_string(log).unwrap_or_default();
                return Err(io::Error::other(format!("the server accepts no clients: {output}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Seconds of processor time that it has used; `None` for a thread of this process.
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
            // It may have exited already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A loopback address without a listener.
pub(crate) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}
