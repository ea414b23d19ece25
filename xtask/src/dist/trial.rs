//! `cargo xtask dist --try`: installs each part of a release as a user would, and makes a first decision with it.

use std::{
    fs,
    net::TcpListener,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    crates::NO_SYMBOLS,
    debian, image,
    release::{Release, file_name},
};
use crate::{install, shell, workspace};

/// Timeout for the first answer of a server.
const DEADLINE: Duration = Duration::from_secs(30);

const POLICY: &str = "gcra:30/1m:burst=16";
/// The line that `sluicegate take user7 gcra:30/1m:burst=16` prints first.
const ALLOWED: &str = "allowed";

type Trial = fn(&Release) -> Result<()>;

const TRIALS: [(&str, Trial); 8] = [
    ("tarball", tarball),
    ("module", module),
    ("deb", deb),
    ("wheel", wheel),
    ("python", python),
    ("javascript", javascript),
    ("image", image),
    ("crates", crates),
];

pub(super) fn run(release: &Release, chosen: impl Fn(&str) -> bool) -> Result<()> {
    for (name, trial) in TRIALS.into_iter().filter(|(name, _)| chosen(name)) {
        shell::announce(&format!("dist --try: {name}"));
        trial(release).with_context(|| format!("trial of `{name}`"))?;
        println!("{name}: installed, and made a first decision");
    }
    Ok(())
}

fn tarball(release: &Release) -> Result<()> {
    let folder = release.empty("try-tarball")?;
    unpack(&release.folder.join(format!("{}.tar.gz", release.name("sluicegate"))), &folder)?;
    let root = folder.join(release.name("sluicegate"));
    let program = root.join("bin/sluicegate");
    only_old_glibc(&program)?;
    for page in ["share/man/man1/sluicegate.1", "share/man/man1/sluicegate-serve.1"] {
        let text = fs::read_to_string(root.join(page)).with_context(|| page.to_owned())?;
        ensure!(text.contains(".TH"), "{page} is no man page");
    }
    shell::run(
        Command::new("bash")
            .arg("-n")
            .arg(root.join("share/bash-completion/completions/sluicegate")),
    )?;
    first_decision(&program, &mut Command::new(&program), &[])
}

fn module(release: &Release) -> Result<()> {
    let folder = release.empty("try-module")?;
    unpack(&release.folder.join(format!("{}.tar.gz", release.name("sluicegate-module"))), &folder)?;
    let module = folder.join(release.name("sluicegate-module")).join("sluicegate.so");
    only_old_glibc(&module)?;
    for server in [PathBuf::from("redis-server"), install::valkey_server()?] {
        let socket = folder.join("socket");
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(&server);
        command
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&folder);
        let running = Running::start(command.arg("--loadmodule").arg(&module))?;
        let take = || {
            let mut client = Command::new("redis-cli");
            shell::output(client.arg("-s").arg(&socket).args(["SG.TAKE", "user7", POLICY]))
        };
        let reply = running.until(take).with_context(|| server.display().to_string())?;
        ensure!(reply.starts_with("1\n16\n15\n"), "{} replied {reply:?}", server.display());
    }
    Ok(())
}

fn deb(release: &Release) -> Result<()> {
    let installed = shell::output(Command::new("dpkg-query").args(["--show", "sluicegate"]));
    ensure!(
        installed.is_none(),
        "sluicegate is installed on this machine: remove the package first"
    );
    let result = install_start_and_upgrade(release);
    shell::run(install::as_root("dpkg").args(["--purge", "sluicegate"]))?;
    result?;
    let left = ["/usr/bin/sluicegate", SETTINGS, "/lib/systemd/system/sluicegate.service", ENABLED];
    let left: Vec<_> = left.into_iter().filter(|path| Path::new(path).exists()).collect();
    ensure!(left.is_empty(), "the package leaves {} behind", left.join(", "));
    Ok(())
}

/// The package's scripts must enable and start the unit, and stop and forget it when the package is removed. Without
/// systemd they do nothing here, so that their text is read.
fn enables_and_starts(package: &Path, control: &Path) -> Result<()> {
    shell::run(Command::new("dpkg-deb").arg("--control").arg(package).arg(control))?;
    for (script, call) in [
        ("postinst", "deb-systemd-helper enable"),
        ("postinst", "deb-systemd-invoke"),
        ("prerm", "deb-systemd-invoke stop"),
        ("postrm", "deb-systemd-helper purge"),
    ] {
        let text = fs::read_to_string(control.join(script)).with_context(|| script.to_owned())?;
        let mut lines = text.lines();
        ensure!(
            lines.any(|line| line.contains(call) && line.contains("sluicegate.service")),
            "{script} does not call {call} for the unit:\n{text}"
        );
    }
    ensure!(Path::new(ENABLED).exists(), "the package does not enable its unit");
    Ok(())
}

const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/sluicegate.service";
const SETTINGS: &str = "/etc/sluicegate/sluicegate.toml";

fn install_start_and_upgrade(release: &Release) -> Result<()> {
    let folder = release.empty("try-deb")?;
    let dpkg = |package: &Path| shell::run(install::as_root("dpkg").arg("--install").arg(package));
    dpkg(&debian::path(release))?;
    let units = ["/lib", "/usr/lib"].map(|it| format!("{it}/systemd/system/sluicegate.service"));
    let unit = units.iter().find_map(|path| fs::read_to_string(path).ok()).context("no unit")?;
    enables_and_starts(&debian::path(release), &folder.join("control"))?;
    let start =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("ExecStart")?;
    let mut words = start.split_whitespace();
    let program = PathBuf::from(words.next().context("a program")?);
    let mut command = Command::new(&program);
    // systemd would make the folder of the state file.
    command.args(words).env("SLUICEGATE_STATE_FILE", folder.join("state"));
    first_decision(&program, &mut command, &[])?;

    // An upgrade keeps the settings that the administrator changed.
    let changed = fs::read_to_string(SETTINGS)? + "# a change\n";
    let copy = folder.join("changed.toml");
    fs::write(&copy, &changed)?;
    shell::run(install::as_root("cp").arg(&copy).arg(SETTINGS))?;
    let next = format!("{}+next", release.version);
    let upgrade = folder.join("upgrade.deb");
    debian::pack(release, &next, &upgrade)?;
    dpkg(&upgrade)?;
    let mut query = Command::new("dpkg-query");
    let version = shell::output(query.args(["--showformat", "${Version}", "--show", "sluicegate"]));
    ensure!(version.as_deref().is_some_and(|it| it.starts_with(&next)), "upgraded to {version:?}");
    ensure!(fs::read_to_string(SETTINGS)? == changed, "an upgrade replaced the settings");
    shell::run(Command::new(&program).arg("version").stdout(Stdio::null()))
}

fn wheel(release: &Release) -> Result<()> {
    let prefix = format!("sluicegate_server-{}", release.version);
    let wheel = find(&release.folder, |name| name.starts_with(&prefix) && name.ends_with(".whl"))?;
    let venv = release.empty("try-wheel")?.join("venv");
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    shell::run(
        pip.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(&wheel),
    )?;
    let program = venv.join("bin/sluicegate");
    first_decision(&program, &mut Command::new(venv.join("bin/sluicegate-server")), &[])?;
    // As `uvx sluicegate-server serve` does once the wheel is published.
    let mut uvx = Command::new(release.tools.program("uvx"));
    uvx.args(["--quiet", "--offline", "--no-cache", "--from"]).arg(&wheel).arg("sluicegate-server");
    first_decision(&program, &mut uvx, &[])
}

/// The most bytes of the Python package that users download.
const MAX_PACKAGE_BYTES: u64 = 6 << 20;

fn python(release: &Release) -> Result<()> {
    let prefix = format!("sluicegate-{}-cp310-abi3", release.version);
    let wheel = find(&release.folder, |name| name.starts_with(&prefix) && name.ends_with(".whl"))?;
    let bytes = fs::metadata(&wheel)?.len();
    ensure!(bytes < MAX_PACKAGE_BYTES, "{} has {bytes} bytes", wheel.display());
    let venv = release.empty("try-python")?.join("venv");
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]);
    shell::run(pip.arg(&wheel))?;
    let code = format!(
        "import sluicegate as s; print(s.Limiter.in_memory().take('user7', '{POLICY}').remaining)"
    );
    let printed = shell::output(Command::new(venv.join("bin/python")).args(["-c", &code]));
    ensure!(printed.as_deref() == Some("15"), "the package printed {printed:?}");
    Ok(())
}

/// The most bytes of the JavaScript package that users download.
const MAX_NPM_BYTES: u64 = 350_000;

fn javascript(release: &Release) -> Result<()> {
    let name = format!("sluicegate-{}.tgz", release.version);
    let package = find(&release.folder, |it| it == name)?;
    let bytes = fs::metadata(&package)?.len();
    ensure!(bytes <= MAX_NPM_BYTES, "{} has {bytes} bytes", package.display());
    let project = release.empty("try-javascript")?;
    fs::write(project.join("package.json"), "{}\n")?;
    let mut npm = crate::javascript::npm()?;
    npm.current_dir(&project).args(["install", "--silent", "--offline", "--no-audit", "--no-fund"]);
    shell::run(npm.arg(&package))?;
    let take = format!("console.log(Limiter.inMemory().takeSync('user7', '{POLICY}').remaining)");
    for (kind, import) in [
        ("module", "import { Limiter } from 'sluicegate'"),
        ("commonjs", "const { Limiter } = require('sluicegate')"),
    ] {
        let mut node = Command::new("node");
        node.current_dir(&project).env("PATH", install::path()?);
        node.args([&format!("--input-type={kind}"), "--eval", &format!("{import}; {take}")]);
        let printed = shell::output(&mut node);
        ensure!(printed.as_deref() == Some("15"), "the package printed {printed:?} ({kind})");
    }
    Ok(())
}

/// Runs the image's program in its root file system, as its user and with its variables, without a daemon.
fn image(release: &Release) -> Result<()> {
    // Files in the image belong to root and to the image's user.
    shell::run(install::as_root("rm").arg("-rf").arg(release.scratch.join("try-image")))?;
    let folder = release.empty("try-image")?;
    let layout = folder.join("layout");
    fs::create_dir_all(&layout)?;
    let archive = release.folder.join(format!("{}.oci.tar", release.name("sluicegate")));
    shell::run(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(&layout),
    )?;
    let image = format!("{}:{}", layout.display(), release.version);
    let bundle = folder.join("bundle");
    shell::run(install::as_root("umoci").args(["unpack", "--image", &image]).arg(&bundle))?;
    shell::run(install::as_root("chmod").arg("755").arg(&bundle))?;
    let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    let process = &config["process"];
    ensure!(process["user"]["uid"] == image::USER, "the image runs as {}", process["user"]);
    let words = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect()
    };
    let environment = words(&process["env"]);
    let root = bundle.join("rootfs");
    let program = release.built.program.clone();
    let container = || {
        let mut chroot = install::as_root("chroot");
        chroot
            .arg(format!("--userspec={0}:{0}", image::USER))
            .arg(&root)
            .args(words(&process["args"]));
        for pair in &environment {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            chroot.env(name, value);
        }
        chroot
    };
    let command = [&["/usr/bin/sluicegate"][..], &image::COMMAND].concat();
    ensure!(words(&process["args"]) == command, "the image runs {}", process["args"]);
    let refused = container().output()?;
    let text = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success(), "the image listens without secrets");
    ensure!(text.contains("beyond loopback have no secret"), "the image refuses with {text:?}");
    let secrets = [("SLUICEGATE_REQUIREPASS", "a password"), ("SLUICEGATE_HTTP_TOKEN", "a token")];
    first_decision(&program, &mut container(), &secrets)?;
    let state = root.join("var/lib/sluicegate");
    let owner = fs::metadata(&state)?.uid();
    ensure!(u64::from(owner) == image::USER, "{} belongs to {owner}", state.display());
    ensure!(state.read_dir()?.next().is_some(), "the server keeps no files in its volume");
    Ok(())
}

/// Builds a program that uses the library, from the packed crates alone, and the command line as `cargo install` does.
fn crates(release: &Release) -> Result<()> {
    let folder = release.empty("try-crates")?;
    let mut patches = String::from("[patch.crates-io]\n");
    for entry in fs::read_dir(release.folder.join("crates"))? {
        let path = entry?.path();
        unpack(&path, &folder)?;
        let stem = file_name(&path.with_extension(""));
        let name = stem.trim_end_matches(&format!("-{}", release.version)).to_owned();
        patches += &format!("{name} = {{ path = {:?} }}\n", folder.join(&stem));
    }
    let project = folder.join("first");
    fs::create_dir_all(project.join("src"))?;
    let manifest = "[package]\nname = \"first\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n";
    fs::write(
        project.join("Cargo.toml"),
        format!("{manifest}sluicegate = \"{}\"\n{patches}", release.version),
    )?;
    fs::copy(workspace::root().join("Cargo.lock"), project.join("Cargo.lock"))?;
    fs::write(
        project.join("src/main.rs"),
        "fn main() -> Result<(), Box<dyn std::error::Error>> {\n    \
         let limiter = sluicegate::Limiter::single(\"gcra:30/1m:burst=16\".parse::<sluicegate::Policy>()?);\n    \
         println!(\"{}\", if limiter.check().allowed() { \"allowed\" } else { \"denied\" });\n    Ok(())\n}\n",
    )?;
    let mut run = shell::cargo();
    run.current_dir(&project).envs(NO_SYMBOLS);
    run.args(["run", "--quiet", "--target-dir"]).arg(folder.join("target"));
    let output = run.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(text.trim() == ALLOWED, "the library's first decision is {text:?}");

    let cli = folder.join(format!("sluicegate-cli-{}", release.version));
    let config = folder.join("patches.toml");
    fs::write(&config, &patches)?;
    let mut install = shell::cargo();
    install
        .current_dir(&folder)
        .envs(NO_SYMBOLS)
        .arg("install")
        .arg("--config")
        .arg(&config)
        .arg("--path")
        .arg(&cli);
    install
        .args(["--debug", "--root"])
        .arg(folder.join("root"))
        .arg("--target-dir")
        .arg(folder.join("target"));
    shell::run(&mut install)?;
    let program = folder.join("root/bin/sluicegate");
    first_decision(&program, &mut Command::new(&program), &[])
}

/// Starts `server serve` on free ports, and takes a unit with the client `program`.
fn first_decision(program: &Path, server: &mut Command, variables: &[(&str, &str)]) -> Result<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    // The unit file's command line has `serve` itself.
    if !server.get_args().any(|word| word == "serve") {
        server.arg("serve");
    }
    server
        .args(["--listen", &address, "--http", "off", "--grpc", "off"])
        .envs(variables.iter().copied());
    let running = Running::start(server)?;
    let password = variables.iter().find(|(name, _)| *name == "SLUICEGATE_REQUIREPASS");
    let take = || {
        let mut take = Command::new(program);
        take.args(["take", "user7", POLICY, "--server", &address]);
        take.envs(password.map(|(_, password)| ("SLUICEGATE_PASSWORD", *password)));
        shell::output(&mut take)
    };
    let reply = running.until(take)?;
    ensure!(reply.starts_with(ALLOWED), "the first decision is {reply:?}");
    Ok(())
}

/// A server, killed with its children when it is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        shell::announce(&shell::command_line(command));
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        // A group of its own, because uvx runs the server as its child.
        let command = command.process_group(0);
        command.spawn().map(Self).with_context(|| format!("cannot start {command:?}"))
    }

    /// Asks until there is an answer.
    #[expect(
        clippy::disallowed_methods,
        reason = "a server that never answers must fail the trial"
    )]
    fn until<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Result<T> {
        let started = Instant::now();
        loop {
            if let Some(answer) = attempt() {
                return Ok(answer);
            }
            if started.elapsed() > DEADLINE {
                bail!("no answer within {} seconds", DEADLINE.as_secs());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

/// The newest symbol of glibc that the file needs must be that of 2.17.
fn only_old_glibc(file: &Path) -> Result<()> {
    let symbols =
        shell::output(Command::new("objdump").arg("-T").arg(file)).context("objdump failed")?;
    let versions = symbols
        .split("GLIBC_2.")
        .skip(1)
        .filter_map(|rest| rest.split(|it: char| !it.is_ascii_digit()).next()?.parse::<u32>().ok());
    let newest = versions.max().context("the file needs no symbol of glibc")?;
    ensure!(newest <= 17, "{} needs glibc 2.{newest}", file.display());
    Ok(())
}

fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    shell::run(
        tar.arg("--extract")
            .arg("--gzip")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(folder),
    )
}

fn find(folder: &Path, fits: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let mut found = fs::read_dir(folder)?.filter_map(|entry| entry.ok().map(|it| it.path()));
    found
        .find(|path| fits(&file_name(path)))
        .with_context(|| format!("no such file in {}", folder.display()))
}
