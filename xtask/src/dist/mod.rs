//! `cargo xtask dist`: builds all parts of a release into `target/dist`, and lists them.
//!
//! Each part is a file of this folder. The files of one commit are the same bytes wherever they are built with the
//! same versions of Rust and of the tools in `install`: times come from the commit, and paths are remapped.

mod archive;
mod build;
mod crates;
mod debian;
mod image;
mod python;
mod release;
mod sbom;
mod trial;
mod wheel;

use std::{fmt::Write as _, fs};

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use self::{
    build::Platform,
    release::{Release, file_name},
};
use crate::{install, shell};

type Part = fn(&Release) -> Result<()>;

/// The parts of a release, in the order in which the parts are built.
const PARTS: [(&str, Part); 8] = [
    ("tarball", archive::tarball),
    ("module", archive::module),
    ("deb", debian::package),
    ("wheel", wheel::package),
    ("python", python::package),
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
    let mut files = Vec::new();
    for entry in fs::read_dir(&release.folder)? {
        let path = entry?.path();
        if path.is_file() && path.file_name().is_some_and(|name| name != "SHA256SUMS") {
            files.push(path);
        }
    }
    files.sort();
    let mut sums = String::new();
    for path in &files {
        let name = file_name(path);
        let bytes = fs::read(path)?;
        let _ = writeln!(sums, "{}  {name}", hex(&Sha256::digest(&bytes)));
        println!("{:>9.1} KiB  {name}", bytes.len() as f64 / 1024.0);
    }
    fs::write(release.folder.join("SHA256SUMS"), sums)?;
    println!("{}, with SHA256SUMS", release.folder.display());
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
