//! A terminal in a fresh clone, other ports apart: those that pages name are taken by free ones.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use sluicegate_testing::{TempDir, cargo, eventually_within, free_port, target};

/// The ports of pages: Redis, Sluicegate, sites and applications, Envoy.
const PORTS: [u16; 10] = [6379, 6380, 8080, 8081, 8000, 3000, 9901, 10000, 10001, 9000];
/// No command of a page takes longer.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const MARK: &str = "=== walkthrough ===";

/// A port of a page and its replacement.
type Ports = Vec<(String, String)>;

/// A shell, with the programs that it has started.
pub(super) struct Shell {
    folder: TempDir,
    bash: Child,
    input: ChildStdin,
    output: Receiver<String>,
    servers: Vec<Child>,
    ports: Ports,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn tools() -> PathBuf {
    root().join(env::var_os("SLUICEGATE_TOOLS").map_or("target/tools".into(), PathBuf::from))
}

/// `text` with each port of a page replaced, wherever it is a separate number.
fn replaced(text: &str, ports: &[(&str, &str)]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|it: char| it.is_ascii_digit()) {
        let length =
            rest[start..].find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len() - start);
        let (number, after) = rest[start..].split_at(length);
        result += &rest[..start];
        // A hexadecimal number or a hash has letters next to it.
        let letters = result.ends_with(|it: char| it.is_ascii_alphabetic())
            || after.starts_with(|it: char| it.is_ascii_alphabetic());
        let other = ports.iter().find(|(port, _)| *port == number && !letters);
        result += other.map_or(number, |(_, other)| *other);
        rest = after;
    }
    result + rest
}

impl Shell {
    pub(super) fn new() -> Self {
        let folder = TempDir::new();
        let ports: Ports =
            PORTS.iter().map(|port| (port.to_string(), free_port().to_string())).collect();
        clone_into(folder.path(), &ports);
        let programs = folder.path().join(".programs");
        install(&programs, folder.path(), &ports);
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile"]);
        prepare(&mut bash, folder.path(), &programs, &ports);
        bash.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut bash = bash.spawn().unwrap();
        let input = bash.stdin.take().unwrap();
        let mut lines = BufReader::new(bash.stdout.take().unwrap());
        let (send, output) = channel();
        thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let mut shell = Self { folder, bash, input, output, servers: Vec::new(), ports };
        shell.run("exec 2>&1");
        shell
    }

    fn there(&self, text: &str) -> String {
        // No machine is too busy for 30 seconds.
        let text = text.replace(
            "LIMITER\", \"redis://127.0.0.1:6380\")",
            "LIMITER\", \"redis://127.0.0.1:6380\"), timeout=30",
        );
        // The package is that of `build_python`.
        let text = &text.replace(" ./bindings/python", "");
        replaced(text, &pairs(&self.ports))
    }

    fn here(&self, text: &str) -> String {
        let back: Vec<_> = pairs(&self.ports).iter().map(|(page, free)| (*free, *page)).collect();
        replaced(text, &back).replace(self.folder.path().to_str().unwrap(), "$PWD")
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, self.there(text)).unwrap();
    }

    /// A file of the repository, as the page has it.
    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(root().join(path)).unwrap()
    }

    /// The output of a command, on both streams.
    pub(super) fn run(&mut self, command: &str) -> String {
        let script = self.folder.path().join(".programs/command");
        fs::write(&script, self.there(command) + "\n").unwrap();
        // A command must not read the commands after it.
        writeln!(self.input, ". .programs/command < /dev/null; printf '\\n{MARK}\\n'").unwrap();
        let mut printed = String::new();
        loop {
            match self.output.recv_timeout(TEST_TIMEOUT) {
                Ok(line) if line.trim_end() == MARK => break,
                Ok(line) => printed += &line,
                Err(_) => panic!("`{command}` does not end; so far:\n{printed}\n{}", self.logs()),
            }
        }
        // The line break before the mark; it ended a line that was not, or is one too many.
        let printed = printed.strip_suffix('\n').unwrap_or(&printed);
        let ended = printed.is_empty() || printed.ends_with('\n');
        self.here(printed) + if ended { "" } else { "\n" }
    }

    /// Starts a program that runs until the end, and waits until it listens.
    pub(super) fn start(&mut self, line: &str, ports: &[u16]) {
        let log = self.folder.path().join(format!(".programs/log-{}", self.servers.len()));
        let log = fs::File::create(log).unwrap();
        // In the folder and with the variables that the commands before have set.
        self.run("declare -px > .programs/variables; pwd > .programs/folder");
        let mut bash = Command::new("bash");
        let script = format!(
            ". .programs/variables; cd \"$(< .programs/folder)\"; exec env {}",
            self.there(line)
        );
        bash.args(["--norc", "--noprofile", "-c"]).arg(script);
        bash.current_dir(self.folder.path()).process_group(0);
        bash.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.servers.push(bash.spawn().unwrap());
        for port in ports {
            let port: u16 = self.there(&port.to_string()).parse().unwrap();
            eventually_within(TEST_TIMEOUT, &format!("`{line}` listens"), || {
                let ended = self.servers.last_mut().unwrap().try_wait().unwrap();
                assert!(ended.is_none(), "`{line}` has ended:\n{}", self.logs());
                TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(|_| self.logs())
            });
        }
    }

    /// The output of the programs that run.
    pub(super) fn logs(&self) -> String {
        let logs = (0..self.servers.len()).map(|number| {
            let log = self.folder.path().join(format!(".programs/log-{number}"));
            format!("--- log {number}\n{}", fs::read_to_string(log).unwrap_or_default())
        });
        logs.collect()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for mut server in self.servers.drain(..).rev() {
            // With its children, because it leads a process group.
            let group = format!("-{}", server.id());
            let _ =
                Command::new("kill").args(["-TERM", "--", &group]).stderr(Stdio::null()).status();
            eventually_within(TEST_TIMEOUT, "a program ends when it is stopped", || {
                server.try_wait().map_or(Ok(()), |ended| ended.map(drop).ok_or("it runs"))
            });
        }
        let _ = self.bash.kill();
        let _ = self.bash.wait();
    }
}

/// Copies the files of the repository that pages use. Files of `examples` get the other ports.
fn clone_into(folder: &Path, ports: &Ports) {
    for name in ["crates", "docs", "scenarios", "Cargo.toml", "README.md"] {
        symlink(root().join(name), folder.join(name)).unwrap();
    }
    let mut folders = vec![PathBuf::from("examples")];
    while let Some(inner) = folders.pop() {
        fs::create_dir_all(folder.join(&inner)).unwrap();
        for entry in fs::read_dir(root().join(&inner)).unwrap().map(Result::unwrap) {
            let path = inner.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if !entry.file_name().to_string_lossy().starts_with('.') {
                    folders.push(path);
                }
                continue;
            }
            fs::copy(entry.path(), folder.join(&path)).unwrap();
            let text = fs::read_to_string(entry.path()).unwrap();
            let text = text.replace("timeout: 0.25s", "timeout: 30s");
            fs::write(folder.join(&path), replaced(&text, &pairs(ports))).unwrap();
        }
    }
}

fn pairs(ports: &Ports) -> Vec<(&str, &str)> {
    ports.iter().map(|(page, free)| (page.as_str(), free.as_str())).collect()
}

/// The replacement of a port that pages name.
fn free<'a>(page: &str, ports: &'a Ports) -> &'a str {
    ports.iter().find(|(port, _)| port == page).map(|(_, free)| free).unwrap()
}

/// Builds the example of axum where `cargo test --workspace` has not.
pub(super) fn build_axum() {
    if !target().join("debug/examples/axum").exists() {
        let mut build = cargo();
        build.args(["build", "--quiet", "--locked", "-p", "sluicegate-tower"]);
        build.args(["--example", "axum", "--target-dir"]).arg(target());
        assert!(build.current_dir(root()).status().unwrap().success(), "it does not build");
    }
}

/// Builds the native part of the Python package, and lays the package out in the folder that [`prepare`] names.
pub(super) fn build_python() {
    let mut build = cargo();
    build
        .args(["build", "--quiet", "--locked", "-p", "sluicegate-python", "--target-dir"])
        .arg(target());
    build.env("PYO3_BUILD_EXTENSION_MODULE", "1").current_dir(root());
    assert!(build.status().unwrap().success(), "it does not build");
    let package = packages().join("sluicegate");
    fs::create_dir_all(&package).unwrap();
    let mut files = vec![(target().join("debug/lib_native.so"), package.join("_native.abi3.so"))];
    for entry in fs::read_dir(root().join("bindings/python/python/sluicegate")).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().ends_with(".so") {
            files.push((entry.path(), package.join(entry.file_name())));
        }
    }
    for (file, link) in files {
        let _ = fs::remove_file(&link);
        symlink(file, link).unwrap();
    }
}

/// Builds the JavaScript package, with what its tests need: Express is one of them.
pub(super) fn build_javascript() {
    let mut build = cargo();
    build.args(["run", "--quiet", "--locked", "-p", "xtask", "--target-dir"]).arg(target());
    build.args(["--", "javascript", "--pack"]).stdout(Stdio::null()).current_dir(root());
    assert!(build.status().unwrap().success(), "it does not build");
}

/// The folder with the Python package.
fn packages() -> PathBuf {
    target().join("walkthroughs/python")
}

/// Programs that a page installs or builds: the tests provide them.
fn install(programs: &Path, clone: &Path, ports: &Ports) {
    fs::create_dir_all(programs).unwrap();
    fs::create_dir_all(clone.join("target/release")).unwrap();
    let program = env!("CARGO_BIN_EXE_sluicegate");
    let built = target().join("debug");
    let built = built.display();
    // The result of Cargo's build: the programs of the tests.
    let cargo = format!(
        "#!/bin/sh\ncase \"$*\" in\n\
         'install --locked --quiet --path crates/cli') ln -sf '{program}' .programs/sluicegate;;\n\
         'build --release --locked -p sluicegate-module') ln -sf '{built}/libsluicegate_module.so' target/release/;;\n\
         'xtask javascript --pack') ;;\n\
         'run --release -p sluicegate-tower --example '*)\n\
         example='{built}'/examples/$6; shift 6; exec \"$example\" \"$@\";;\n\
         *) echo \"not expected in a page: cargo $*\" >&2; exit 1;;\nesac\n"
    );
    let python = tools().join("fastapi");
    // In a terminal it numbers the elements of arrays, and elsewhere not.
    let redis_cli = format!(
        "#!/bin/sh\nPATH=${{PATH#*:}}\nexec redis-cli --no-raw -p {} \"$@\"\n",
        free("6379", ports)
    );
    let venv = format!(
        "#!/bin/sh\nif [ \"$*\" = '-m venv .venv' ]; then exec ln -s '{0}' .venv; fi\n\
         exec '{0}/bin/python3' \"$@\"\n",
        python.display()
    );
    let javascript = root().join("bindings/javascript");
    let npm = format!(
        "#!/bin/sh\nmkdir node_modules\nln -s '{0}/node_modules/express' '{0}' node_modules/\n\
         mv node_modules/javascript node_modules/sluicegate\n",
        javascript.display()
    );
    for (name, text) in
        [("npm", npm), ("cargo", cargo), ("python3", venv), ("redis-cli", redis_cli)]
    {
        let path = programs.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    symlink(crate::envoy::proxy::program(), programs.join("envoy")).unwrap();
}

fn prepare(bash: &mut Command, folder: &Path, programs: &Path, ports: &Ports) {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("SLUICEGATE_") {
            bash.env_remove(name);
        }
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([programs.to_owned()].into_iter().chain(env::split_paths(&path)));
    bash.env("PATH", path.unwrap()).env("HOME", folder).current_dir(folder);
    bash.env("LISTEN", format!("127.0.0.1:{}", free("3000", ports)));
    bash.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    bash.env("PYTHONPATH", packages());
    // The default ports of `sluicegate serve`.
    for (name, page) in [("LISTEN", "6380"), ("HTTP", "8080"), ("GRPC", "8081")] {
        bash.env(format!("SLUICEGATE_{name}"), format!("127.0.0.1:{}", free(page, ports)));
    }
}

#[test]
fn walkthrough_ports_are_replaced_where_they_are_numbers() {
    let text = "127.0.0.1:80/x 180 80 80ms a80";
    assert_eq!(replaced(text, &[("80", "1234")]), "127.0.0.1:1234/x 180 1234 80ms a80");
}
