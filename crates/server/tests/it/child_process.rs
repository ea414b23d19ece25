//! A server in a process of its own, so that its file descriptors and memory can be measured.

use std::{
    env, fs, io,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use sluicegate_server::Config;
use sluicegate_testing::eventually;

use crate::harness::{Running, TempDir, simple};

/// Tells the process of a test to serve, and where it may keep files.
const SERVES: &str = "SLUICEGATE_TEST_SERVES";

/// A server in a process of its own, until dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) server: Running,
    name: &'static str,
    files: usize,
    environment: Environment,
    pub(crate) folder: TempDir,
}

/// The server that the test `name` talks to, in a process that may open `files`; or, in that
/// process, nothing, once it has served. `configure` also gets a directory for files.
pub(crate) fn process(
    name: &'static str,
    files: usize,
    configure: impl FnOnce(&mut Config, &Path),
) -> Option<Process> {
    process_with(name, files, |_| Vec::new(), configure)
}

/// Additional environment variables of the process.
pub(crate) type Environment = Vec<(&'static str, String)>;

/// [`process`], with an environment that may refer to its folder.
pub(crate) fn process_with(
    name: &'static str,
    files: usize,
    environment: impl FnOnce(&TempDir) -> Environment,
    configure: impl FnOnce(&mut Config, &Path),
) -> Option<Process> {
    if let Some(folder) = env::var_os(SERVES) {
        let server = Running::with(|config| configure(config, &PathBuf::from(folder)));
        let [http, grpc] = [server.http, server.grpc]
            .map(|address| address.map(|it| it.to_string()).unwrap_or_default());
        println!("\nserves at {} {http} {grpc}", server.address);
        // Until the other end is closed.
        io::copy(&mut io::stdin(), &mut io::sink()).unwrap();
        return None;
    }
    let folder = TempDir::new();
    let environment = environment(&folder);
    let (child, server) = start(name, files, &environment, &folder);
    Some(Process { child, server, name, files, environment, folder })
}

fn start(
    name: &str,
    files: usize,
    environment: &Environment,
    folder: &TempDir,
) -> (Child, Running) {
    let mut child = with_files(name, files)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env(SERVES, folder.file(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut address = lines.by_ref().map_while(Result::ok);
    let addresses = address.find_map(|line| Some(line.strip_prefix("serves at ")?.to_owned()));
    let addresses = addresses.unwrap();
    let mut addresses = addresses.split(' ');
    let resp = addresses.next().unwrap().parse().unwrap();
    let [http, grpc] = [(); 2].map(|()| addresses.next().and_then(|it| it.parse().ok()));
    let mut server = Running::at_address(resp, http);
    server.grpc = grpc;
    (child, server)
}

/// The test `name` in another process, which may open `files`, or as many as the system lets it.
pub(crate) fn with_files(name: &str, files: usize) -> Command {
    let script = format!(
        "ulimit -n {files} 2>/dev/null || ulimit -n $(ulimit -H -n); \
         exec \"$0\" --exact {name} --nocapture"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, env::current_exe().unwrap().to_str().unwrap()]);
    command
}

/// The number of files that this process may open.
pub(crate) fn most_files() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

impl Process {
    /// Kills it (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another with the same files, which ends at once if it serves.
    pub(crate) fn start_second(&self) -> Output {
        let mut second = with_files(self.name, self.files);
        second.env(SERVES, self.folder.file("")).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts it again, with the files that it left.
    pub(crate) fn start_again(&mut self) {
        let Self { name, files, environment, folder, .. } = self;
        (self.child, self.server) = start(name, *files, environment, folder);
    }

    /// Open files without clients, once every worker serves: each opens some when it starts, which may be after
    /// another has answered.
    pub(crate) fn open_files_at_rest(&self) -> usize {
        let mut peers: Vec<_> = (0..16).map(|_| self.server.connect()).collect();
        peers.iter_mut().for_each(|peer| assert_eq!(peer.call("PING"), simple("PONG")));
        drop(peers);
        self.server.until_exactly("connected_clients", 1);
        self.open_files()
    }

    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Waits until at most `most` files are open.
    pub(crate) fn until_open_files(&self, most: usize) {
        eventually(&format!("at most {most} files are open"), || {
            let folder = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
            let files: Vec<_> =
                folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
            if files.len() <= most { Ok(()) } else { Err(files) }
        });
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident(&self) -> usize {
        self.memory("VmRSS:")
    }

    /// The most memory that was resident at any time, in KiB.
    pub(crate) fn peak(&self) -> usize {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        let _ = self.child.stdout.take().map(|mut out| out.read_to_end(&mut rest));
        let ended = self.child.wait();
        if !std::thread::panicking() {
            assert!(ended.unwrap().success());
        }
    }
}
