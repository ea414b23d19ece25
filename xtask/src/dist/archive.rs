//! The tarballs: the program with all that belongs to it, the module, and the debug symbols of both.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::release::{Release, file_name};
use crate::{shell, workspace};

/// Files of the repository in the program's tarball: from, to.
const FILES: [(&str, &str); 6] = [
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("dist/sluicegate.toml", "etc/sluicegate.toml"),
    ("dist/sluicegate.service", "lib/systemd/system/sluicegate.service"),
];

/// Each shell, and where it looks for completions below `share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/sluicegate"),
    ("zsh", "zsh/site-functions/_sluicegate"),
    ("fish", "fish/vendor_completions.d/sluicegate.fish"),
];

pub(super) fn tarball(release: &Release) -> Result<()> {
    let name = release.name("sluicegate");
    let folder = release.empty("tarball")?.join(&name);
    copy(&release.built.program, &folder.join("bin/sluicegate"))?;
    for (from, to) in FILES {
        copy(&workspace::root().join(from), &folder.join(to))?;
    }
    generate(release, &folder.join("share"))?;
    pack(release, &folder, &name)?;

    let name = release.name("sluicegate-debug-symbols");
    let folder = release.empty("symbols")?.join(&name);
    for symbols in ["sluicegate.debug", "sluicegate.so.debug"] {
        copy(&release.built.folder.join(symbols), &folder.join(symbols))?;
    }
    pack(release, &folder, &name)
}

/// Man pages and completions, in the folders of `share`. The program makes them, so that they are those of its help.
pub(super) fn generate(release: &Release, share: &Path) -> Result<()> {
    let program = &release.built.program;
    shell::run(Command::new(program).arg("man-pages").arg(share.join("man/man1")))?;
    for (name, path) in COMPLETIONS {
        let text = shell::output(Command::new(program).args(["completions", name]))
            .with_context(|| format!("`sluicegate completions {name}` failed"))?;
        let path = share.join(path);
        fs::create_dir_all(path.parent().context("a file in a folder")?)?;
        fs::write(path, text + "\n")?;
    }
    Ok(())
}

pub(super) fn module(release: &Release) -> Result<()> {
    let name = release.name("sluicegate-module");
    let folder = release.empty("module")?.join(&name);
    copy(&release.built.module, &folder.join("sluicegate.so"))?;
    for file in ["docs/module.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        let path = workspace::root().join(file);
        copy(&path, &folder.join(file_name(&path)))?;
    }
    pack(release, &folder, &name)
}

pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in a folder")?)?;
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Packs `folder` as `target/dist/NAME.tar.gz`, whose bytes depend on nothing but names, contents and the commit.
fn pack(release: &Release, folder: &Path, name: &str) -> Result<()> {
    let tar = release.scratch.join(format!("{name}.tar"));
    archive(release, folder.parent().context("a folder in a folder")?, name, &tar)?;
    shell::run(Command::new("gzip").args(["--no-name", "--best", "--force"]).arg(&tar))?;
    let name = format!("{name}.tar.gz");
    fs::rename(release.scratch.join(&name), release.folder.join(&name))?;
    Ok(())
}

/// An uncompressed archive of `member` in `folder`.
pub(super) fn archive(release: &Release, folder: &Path, member: &str, to: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).args(["--mode=u+rw,go+r-w,a+X"]);
    shell::run(tar.arg("--directory").arg(folder).arg("--create").arg("--file").arg(to).arg(member))
}
