//! The wheel `sluicegate`: the Python package, for `pip install`.

use anyhow::Result;

use super::{
    archive, build,
    release::{Release, file_name},
};
use crate::python;

pub(super) fn package(release: &Release) -> Result<()> {
    let (path, flags) = (release.tools.path()?, build::remapped_paths()?);
    let folder = release.scratch.join("python");
    let wheel = python::release_wheel(&path, &flags, &release.epoch, &folder)?;
    archive::copy(&wheel, &release.folder.join(file_name(&wheel)))
}
