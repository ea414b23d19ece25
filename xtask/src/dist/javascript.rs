//! The package `sluicegate` of npm: the JavaScript package, for `npm install`.

use anyhow::Result;

use super::{
    archive,
    release::{Release, file_name},
};
use crate::javascript;

pub(super) fn package(release: &Release) -> Result<()> {
    let packed = javascript::pack(&release.empty("javascript")?)?;
    archive::copy(&packed, &release.folder.join(file_name(&packed)))
}
