//! `cargo xtask tidy`: checks of this repository that no compiler makes. One rule per file.

mod architecture;
mod arrows;
mod circles;
pub(crate) mod code;
pub(crate) mod files;
pub(crate) mod findings;
mod layers;
mod licences;
pub(crate) mod links;
mod manifests;
mod packages;
mod release;
mod sources;

use anyhow::Result;

use self::findings::Findings;
use crate::workspace;

pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let metadata = workspace::metadata()?;
    let files = files::list(&root)?;
    let mut findings = Findings::default();

    manifests::check(&metadata, &root, &mut findings)?;
    arrows::check(&metadata, &mut findings);
    let module_arrows = circles::arrows_by_crate(&files, &mut findings);
    circles::check(&module_arrows, &mut findings);
    layers::check(&files, &module_arrows, &mut findings);
    sources::check(&files, &mut findings);
    architecture::check(&files, &mut findings);
    packages::check(&root, &mut findings)?;
    release::check(&metadata, &root, &mut findings)?;
    licences::check(&metadata, &root, &mut findings)?;
    links::check(&files, &root, &mut findings);

    findings.report("tidy")
}
