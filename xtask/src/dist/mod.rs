//! `cargo xtask dist`: builds all parts of a release into `target/dist`, and lists them.
//!
//! Each part is a file of this folder. The files of one commit are the same bytes wherever they are built with the
//! same versions of Rust and of the tools in `install`: times come from the commit, and paths are remapped.

mod archive;
mod build;
mod crates;
mod debian;
mod image;
mod javascript;
mod python;
mod release;
mod sbom;
mod trial;
mod wheel;

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use self::{build::Platform, release::Release};
use crate::{install, shell};

type Part = fn(&Release) -> Result<()>;

/// The parts of a release, in the order in which the parts are built.
const PARTS: [(&str, Part); 9] = [
    ("tarball", archive::tarball),
    ("module", archive::module),
    ("deb", debian::package),
    ("wheel", wheel::package),
    ("python", python::package),
    ("javascript", javascript::package),
    ("image", image::archive),
    ("sbom", sbom::write),
    ("crates", crates::package),
];

/// Builds the parts of these names, or all of them without names. With `--try`, installs each one and makes a first
/// decision with it.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut platform = Platform { triple: Platform::FULL.to_owned() };
    let mut trying = false;
    let mut names = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--try" => trying = true,
            "--target" => {
                let triple = words.next().context("--target: expected a target of Rust")?;
                platform.triple = (*triple).to_owned();
            }
            flag if flag.starts_with('-') => {
                bail!("unknown option `{flag}`: expected `--target TRIPLE` or `--try`")
            }
            name => names.push(name),
        }
    }
    let parts = platform.parts();
    if let Some(name) = names.iter().find(|it| !parts.contains(it)) {
        bail!("unknown part `{name}` for {}: expected {}", platform.triple, parts.join(", "));
    }
    let tools = install::release_tools(platform.triple == Platform::FULL)?;
    let chosen = |name: &str| parts.contains(&name) && (names.is_empty() || names.contains(&name));
    let release = Release::build(platform, tools)?;
    for (name, part) in PARTS.into_iter().filter(|(name, _)| chosen(name)) {
        shell::announce(&format!("dist: {name}"));
        part(&release).with_context(|| format!("part `{name}` of the release"))?;
    }
    summarize(&release)?;
    if trying {
        trial::run(&release, chosen)?;
    }
    Ok(())
}

/// Writes the checksums of all files in `target/dist`, and prints what there is.
fn summarize(release: &Release) -> Result<()> {
    let folder = &release.folder;
    let sums = checksums(folder)?;
    fs::write(folder.join(SUMS), &sums)?;
    for (_, name) in sums.lines().filter_map(|line| line.split_once("  ")) {
        println!("{:>9.1} KiB  {name}", fs::metadata(folder.join(name))?.len() as f64 / 1024.0);
    }
    println!("{}, with {SUMS}", folder.display());
    Ok(())
}

const SUMS: &str = "SHA256SUMS";

/// The checksums of the files in `folder` and in the folders below it, as `sha256sum --check` reads them.
fn checksums(folder: &Path) -> Result<String> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() { &mut folders } else { &mut files }.push(path);
        }
    }
    files.sort();
    let mut sums = String::new();
    for path in files {
        let name = path.strip_prefix(folder).expect("a path below the folder").display();
        if path != folder.join(SUMS) {
            let _ = writeln!(sums, "{}  {name}", hex(&Sha256::digest(fs::read(&path)?)));
        }
    }
    Ok(sums)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_cover_the_files_in_folders() {
        let folder = std::env::temp_dir().join(format!("sluicegate-sums-{}", std::process::id()));
        fs::create_dir_all(folder.join("crates")).unwrap();
        for file in ["b.deb", SUMS, "crates/a.crate"] {
            fs::write(folder.join(file), "").unwrap();
        }
        let sums = checksums(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let empty = hex(&Sha256::digest(b""));
        assert_eq!(sums, format!("{empty}  b.deb\n{empty}  crates/a.crate\n"));
    }
}
