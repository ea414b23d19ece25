//! The container image as an OCI archive, made without a daemon: Debian's C library and certificates, and the program.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{archive, release::Release};
use crate::shell;

/// The files that the program needs at run time.
const PACKAGES: [&str; 4] = ["base-files", "ca-certificates", "libc6", "libgcc-s1"];

/// The arguments of `dist/Dockerfile`.
pub(super) const COMMAND: [&str; 3] = ["serve", "--state-file", "/var/lib/sluicegate/state"];

/// A user that no distribution uses for something else, as in Google's "distroless" images.
const USER: &str = "65532:65532";

pub(super) fn archive(release: &Release) -> Result<()> {
    let root = root(release)?;
    let layout = release.scratch.join("image");
    if layout.exists() {
        fs::remove_dir_all(&layout)?;
    }
    let layout_name = layout.display().to_string();
    let image = format!("{layout_name}:{}", release.version);
    let created = shell::output(
        Command::new("date")
            .args(["--utc", "--iso-8601=seconds", "--date"])
            .arg(format!("@{}", release.epoch)),
    )
    .context("`date` failed")?
    .replace("+00:00", "Z");
    let umoci = |arguments: &[&str]| shell::run(Command::new("umoci").args(arguments));

    umoci(&["init", "--layout", &layout_name])?;
    umoci(&["new", "--image", &image])?;
    let history = ["--history.created", &created, "--history.author", "cargo xtask dist"];
    let mut insert = vec!["insert", "--rootless", "--image", &image];
    insert.extend(history);
    let root = root.display().to_string();
    insert.extend([root.as_str(), "/"]);
    umoci(&insert)?;
    let mut config = vec!["config", "--image", &image, "--created", &created];
    config.extend(history);
    config.extend(["--os", "linux", "--architecture", "amd64", "--config.user", USER]);
    config.extend(["--config.entrypoint", "/usr/bin/sluicegate"]);
    for word in COMMAND {
        config.extend(["--config.cmd", word]);
    }
    config.extend(["--config.volume", "/var/lib/sluicegate", "--config.stopsignal", "SIGTERM"]);
    for variable in environment() {
        config.extend(["--config.env", variable]);
    }
    for port in ["6380/tcp", "8080/tcp"] {
        config.extend(["--config.exposedports", port]);
    }
    umoci(&config)?;
    umoci(&["gc", "--layout", &layout_name])?;
    let file = release.folder.join(format!("{}.oci.tar", release.name("sluicegate")));
    archive::archive(release, &layout, Path::new(""), fs::File::create(file)?)?;
    Ok(())
}

/// The variables that `dist/Dockerfile` sets, so that both images do the same.
fn environment() -> Vec<&'static str> {
    let lines = include_str!("../../../dist/Dockerfile")
        .lines()
        .map(|line| line.trim_end_matches('\\').trim());
    lines
        .filter_map(|line| {
            line.strip_prefix("ENV ").or(Some(line)).filter(|it| it.starts_with("SLUICEGATE_"))
        })
        .collect()
}

/// The root file system: the files of Debian's packages, without running their scripts.
fn root(release: &Release) -> Result<PathBuf> {
    let packages = release.empty("packages")?;
    // Debian's user for downloads may not write here; root may.
    let mut download = Command::new("apt-get");
    download.current_dir(&packages).args(["-o", "APT::Sandbox::User=root", "--quiet", "download"]);
    shell::run(download.args(PACKAGES))?;
    let root = release.empty("root")?;
    for entry in fs::read_dir(&packages)? {
        shell::run(Command::new("dpkg-deb").arg("--extract").arg(entry?.path()).arg(&root))?;
    }
    for unused in [
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "usr/share/lintian",
        "usr/lib/x86_64-linux-gnu/gconv",
    ] {
        let folder = root.join(unused);
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    certificates(&root)?;
    archive::copy(&release.built.program, &root.join("usr/bin/sluicegate"))?;
    // The user that builds the image cannot give files to the image's user.
    let state = root.join("var/lib/sluicegate");
    fs::create_dir_all(&state)?;
    fs::set_permissions(&state, fs::Permissions::from_mode(0o1777))?;
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/usr/sbin/nologin\nsluicegate:x:65532:65532::/:/usr/sbin/nologin\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nsluicegate:x:65532:\n")?;
    let mut touch = Command::new("find");
    touch.arg(&root).args([
        "-exec",
        "touch",
        "--no-dereference",
        "--date",
        &format!("@{}", release.epoch),
        "{}",
        "+",
    ]);
    shell::run(&mut touch)?;
    Ok(root)
}

/// One file of all certificates, which the package's script would make.
fn certificates(root: &Path) -> Result<()> {
    let folder = root.join("usr/share/ca-certificates/mozilla");
    let mut files: Vec<_> =
        fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    if files.is_empty() {
        bail!("{} has no certificates", folder.display());
    }
    let all: Vec<_> = files.iter().map(fs::read_to_string).collect::<std::io::Result<_>>()?;
    fs::create_dir_all(root.join("etc/ssl/certs"))?;
    fs::write(root.join("etc/ssl/certs/ca-certificates.crt"), all.concat())?;
    Ok(())
}
