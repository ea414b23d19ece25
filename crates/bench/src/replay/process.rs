//! Runs programs to their end, and measures time and peak memory.

use std::{
    fs, io,
    process::{Command, Stdio},
    time::Instant,
};

/// Time and memory of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub(super) seconds: f64,
    pub(super) peak_kib: u64,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(super) fn run(command: &mut Command) -> io::Result<Ran> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn()?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    let ended = loop {
        // The high-water mark only grows, so that the last value before the end is nearly exact.
        if let Some(kib) = fs::read_to_string(&status).ok().and_then(|text| high_water(&text)) {
            peak_kib = peak_kib.max(kib);
        }
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    if !ended.success() {
        return Err(io::Error::other(format!("{command:?} ended with {ended}")));
    }
    Ok(Ran { seconds: start.elapsed().as_secs_f64(), peak_kib })
}

fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_program_is_timed_and_failure_is_an_error() {
        assert_eq!(high_water("Name:\tx\nVmHWM:\t    1234 kB\n"), Some(1234));
        let ran = run(Command::new("sh").args(["-c", "exit 0"])).unwrap();
        assert!(ran.seconds > 0.0);
        assert!(run(Command::new("sh").args(["-c", "exit 3"])).is_err());
    }
}
