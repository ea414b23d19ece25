//! The container image as an OCI archive, made without a daemon: Debian's C library and certificates, and the program.

use std::{
    fs, io,
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
pub(super) const USER: u64 = 65532;

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
    let layer = state_folder(release)?.display().to_string();
    let mut add = vec!["raw", "add-layer", "--image", &image];
    add.extend(history);
    add.push(&layer);
    umoci(&add)?;
    let user = format!("{USER}:{USER}");
    let mut config = vec!["config", "--image", &image, "--created", &created];
    config.extend(history);
    config.extend(["--os", "linux", "--architecture", "amd64", "--config.user", &user]);
    config.extend(["--config.entrypoint", "/usr/bin/sluicegate"]);
    for word in COMMAND {
        config.extend(["--config.cmd", word]);
    }
    config.extend(["--config.volume", "/var/lib/sluicegate", "--config.stopsignal", "SIGTERM"]);
    let (variables, labels): (Vec<_>, Vec<_>) = (environment().collect(), labels().collect());
    config.extend(variables.iter().flat_map(|it| ["--config.env", it]));
    config.extend(labels.iter().flat_map(|it| ["--config.label", it]));
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
fn environment() -> impl Iterator<Item = String> {
    pairs("ENV ", "SLUICEGATE_")
}

/// The labels that `dist/Dockerfile` sets.
fn labels() -> impl Iterator<Item = String> {
    pairs("LABEL ", "org.opencontainers.")
}

/// The pairs of name and value in `dist/Dockerfile` whose names begin with `prefix`.
fn pairs(instruction: &'static str, prefix: &'static str) -> impl Iterator<Item = String> {
    let lines = include_str!("../../../dist/Dockerfile").lines();
    let lines = lines.map(|line| line.trim_end_matches('\\').trim());
    let pairs = lines.map(move |line| line.strip_prefix(instruction).unwrap_or(line));
    pairs.filter(move |pair| pair.starts_with(prefix)).map(|pair| pair.replace('"', ""))
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
    fs::write(
        root.join("etc/passwd"),
        format!(
            "root:x:0:0:root:/root:/usr/sbin/nologin\nsluicegate:x:{USER}:{USER}::/:/usr/sbin/nologin\n"
        ),
    )?;
    fs::write(root.join("etc/group"), format!("root:x:0:\nsluicegate:x:{USER}:\n"))?;
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

/// A layer with the folder of the state file. It belongs to the image's user, to which the user that builds the image
/// cannot give a folder on disk.
fn state_folder(release: &Release) -> Result<PathBuf> {
    let path = release.empty("layer")?.join("state.tar");
    let mut layer = tar::Builder::new(fs::File::create(&path)?);
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o755);
    header.set_uid(USER);
    header.set_gid(USER);
    header.set_mtime(release.epoch.parse()?);
    header.set_size(0);
    layer.append_data(&mut header, "var/lib/sluicegate", io::empty())?;
    layer.into_inner()?;
    Ok(path)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_environment_are_those_of_the_dockerfile() {
        let source = "org.opencontainers.image.source=https://github.com/sluicegate/sluicegate";
        let licences = "org.opencontainers.image.licenses=MIT OR Apache-2.0";
        assert_eq!(labels().collect::<Vec<_>>(), [source, licences]);
        assert!(environment().any(|it| it == "SLUICEGATE_REQUIRE_SECRETS=true"));
        assert!(environment().all(|it| it.starts_with("SLUICEGATE_")));
    }
}
