//! The tarballs: the program with all that belongs to it, the module, and the debug symbols of both.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};

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

/// Each shell, and its folder of completions below `share`.
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
    let symbols = ["sluicegate.debug", "sluicegate.so.debug"];
    let symbols: Vec<_> =
        symbols.into_iter().filter(|file| release.built.folder.join(file).exists()).collect();
    for file in &symbols {
        copy(&release.built.folder.join(file), &folder.join(file))?;
    }
    if symbols.is_empty() { Ok(()) } else { pack(release, &folder, &name) }
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

/// Packs `folder` as `target/dist/NAME.tar.gz`.
fn pack(release: &Release, folder: &Path, name: &str) -> Result<()> {
    let file = File::create(release.folder.join(format!("{name}.tar.gz")))?;
    let compressed = GzEncoder::new(file, Compression::best());
    archive(release, folder, Path::new(name), compressed)?.finish()?;
    Ok(())
}

/// An archive of `folder` as `name`, whose bytes depend on nothing but names, contents and the commit.
pub(super) fn archive<W: Write>(release: &Release, folder: &Path, name: &Path, to: W) -> Result<W> {
    let mut archive = tar::Builder::new(to);
    append(&mut archive, folder, name, release.epoch.parse()?)?;
    Ok(archive.into_inner()?)
}

fn append<W: Write>(
    archive: &mut tar::Builder<W>,
    path: &Path,
    name: &Path,
    epoch: u64,
) -> Result<()> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    let mut header = tar::Header::new_gnu();
    header.set_metadata_in_mode(&metadata, tar::HeaderMode::Deterministic);
    header.set_mtime(epoch);
    if metadata.is_file() {
        return Ok(archive.append_data(&mut header, name, File::open(path)?)?);
    }
    if name.components().next().is_some() {
        archive.append_data(&mut header, name, io::empty())?;
    }
    let mut entries: Vec<_> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    entries.sort();
    entries
        .iter()
        .try_for_each(|entry| append(archive, &path.join(entry), &name.join(entry), epoch))
}
