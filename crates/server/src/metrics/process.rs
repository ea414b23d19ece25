//! Standard metrics of this process, from the system.

use std::{fs, thread};

use tokio::sync::oneshot;

/// Metrics of this process; `None` where the system does not provide them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Process {
    /// Seconds since the Unix epoch.
    pub(super) start_time: Option<f64>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) open_descriptors: Option<u64>,
    pub(super) max_descriptors: Option<u64>,
}

const DESCRIPTORS: &str = "/proc/self/fd";

impl Process {
    /// Reads them from `/proc`, if there is one.
    pub(super) async fn read() -> Self {
        let Some(mut process) = Self::stat() else { return Self::default() };
        process.open_descriptors = match fs::metadata(DESCRIPTORS) {
            // Linux counts open descriptors since 6.2.
            Ok(folder) if folder.len() > 0 => Some(folder.len()),
            _ => count_descriptors().await,
        };
        process
    }

    /// All but the number of open descriptors.
    #[cfg(target_os = "linux")]
    fn stat() -> Option<Self> {
        use rustix::{
            param::{clock_ticks_per_second, page_size},
            process::{Resource, getrlimit},
        };

        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The name of the program is in parentheses, and may contain any character.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = clock_ticks_per_second().max(1) as f64;
        let seconds = |number| Some(field(number)? as f64 / ticks);
        let page = u64::try_from(page_size()).unwrap_or(0);
        Some(Self {
            start_time: seconds(22).map(start_time),
            cpu_seconds: seconds(14).zip(seconds(15)).map(|(user, system)| user + system),
            resident_bytes: field(24).map(|pages| pages * page),
            virtual_bytes: field(23),
            open_descriptors: None,
            max_descriptors: getrlimit(Resource::Nofile).current,
        })
    }

    #[cfg(not(target_os = "linux"))]
    const fn stat() -> Option<Self> {
        None
    }
}

/// The start time of the process, `since_boot` seconds after the boot of the system. The time of the boot comes from
/// the clocks, because its file does not exist under systemd's `ProcSubset=pid`. The result is cached, so that it never changes.
#[cfg(target_os = "linux")]
fn start_time(since_boot: f64) -> f64 {
    use std::sync::OnceLock;

    use rustix::time::{ClockId, clock_gettime};

    static STARTED: OnceLock<f64> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let [now, up] = [ClockId::Realtime, ClockId::Boottime].map(|clock| {
            let time = clock_gettime(clock);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        });
        now - up + since_boot
    })
}

/// Counts open descriptors on another thread, because ten thousand take milliseconds and the caller serves
/// clients.
async fn count_descriptors() -> Option<u64> {
    let (sender, receiver) = oneshot::channel();
    let count = move || {
        let entries = fs::read_dir(DESCRIPTORS).ok().map(Iterator::count);
        // One of them is the directory itself.
        let count = entries.map(|count| count.saturating_sub(1));
        let _ = sender.send(count.and_then(|count| u64::try_from(count).ok()));
    };
    thread::Builder::new().name("sluicegate-fds".to_owned()).spawn(count).ok()?;
    receiver.await.ok()?
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[tokio::test]
    #[expect(
        clippy::disallowed_methods,
        reason = "what the system says is compared with its clock"
    )]
    async fn read_this_process_is_plausible() {
        let process = Process::read().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let started = process.start_time.unwrap();
        assert!(started > now - 86_400.0 && started <= now + 1.5, "{started} of {now}");
        assert_eq!(Process::read().await.start_time, process.start_time);
        assert!(process.cpu_seconds.is_some_and(|seconds| seconds < 86_400.0), "{process:?}");
        let (resident, all) = (process.resident_bytes.unwrap(), process.virtual_bytes.unwrap());
        assert!(resident > 1 << 20 && all >= resident, "{process:?}");
        assert!(process.open_descriptors.unwrap() < process.max_descriptors.unwrap());
        // Both counts; other tests open and close descriptors at the same time.
        let counted = count_descriptors().await.unwrap();
        assert!(
            counted.abs_diff(process.open_descriptors.unwrap()) < 200,
            "{process:?}, {counted}"
        );
    }
}
