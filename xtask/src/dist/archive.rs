//! The tarballs: the program with all that belongs to it, the module, and the debug symbols of both.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};

use super::release::{Release, file_name};
use crate::{shell, workspace};

/// Pages of the repository in the program's tarball.
const PAGES: [&str; 2] = ["README.md", "CHANGELOG.md"];

/// Other files of the repository in the program's tarball: from, to.
const FILES: [(&str, &str); 4] = [
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
    for page in PAGES {
        copy_page(release, page, &folder.join(page))?;
    }
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
    copy_page(release, "docs/module.md", &folder.join("module.md"))?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
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

/// Copies a page without its neighbours: links to them become links to the repository at the version's tag.
pub(super) fn copy_page(release: &Release, page: &str, to: &Path) -> Result<()> {
    let text = fs::read_to_string(workspace::root().join(page))?;
    let folder = Path::new(page).parent().context("a page in a folder")?;
    let base = format!("https://github.com/sluicegate/sluicegate/blob/v{}", release.version);
    fs::create_dir_all(to.parent().context("a file in a folder")?)?;
    fs::write(to, absolute_links(&text, folder, &base)).with_context(|| to.display().to_string())
}

/// `page` with links relative to `folder` replaced by links below `base`.
fn absolute_links(page: &str, folder: &Path, base: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    // The starts of a link or picture in Markdown and in HTML.
    let start = |text: &str| {
        let found = ["](", "src=\"", "srcset=\""].map(|it| text.find(it).map(|at| at + it.len()));
        found.into_iter().flatten().min()
    };
    while let Some(at) = start(rest) {
        let target = &rest[at..];
        text += &rest[..at];
        if !target.starts_with('#') && !target.starts_with("http") {
            let (up, below) = match target.strip_prefix("../") {
                Some(below) => (folder.parent().unwrap_or(folder), below),
                None => (folder, target),
            };
            let _ = write!(text, "{base}/{}", up.join("").display());
            rest = below;
        } else {
            rest = target;
        }
    }
    text + rest
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_links_lead_to_the_repository() {
        for (folder, page, expected) in [
            (
                "",
                "[a](docs/a.md#b) [b](https://b) [c](#c)",
                "[a](R/docs/a.md#b) [b](https://b) [c](#c)",
            ),
            ("docs", "[a](a.md), [b](../B.md)", "[a](R/docs/a.md), [b](R/B.md)"),
            ("", "<img src=\"docs/a.png\">", "<img src=\"R/docs/a.png\">"),
        ] {
            assert_eq!(absolute_links(page, Path::new(folder), "R"), expected);
        }
    }
}
