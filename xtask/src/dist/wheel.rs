//! The wheel `sluicegate-server`: the program, for `pip install` and `uvx`.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use anyhow::Result;

use super::{archive, release::Release};
use crate::{shell, workspace};

/// glibc 2.17, as the program is built for.
const TAG: &str = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64";

/// `uvx sluicegate-server` runs the command of the package's own name: it replaces itself by the program beside it.
const ALIAS: &str = "#!python
import os, sys
program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), 'sluicegate')
os.execv(program, [program, *sys.argv[1:]])
";

pub(super) fn package(release: &Release) -> Result<()> {
    let version = &release.version;
    let name = format!("sluicegate_server-{version}");
    let folder = release.empty("wheel")?.join(&name);
    let info = folder.join(format!("{name}.dist-info"));
    let scripts = folder.join(format!("{name}.data/scripts"));

    archive::copy(&release.built.program, &scripts.join("sluicegate"))?;
    let alias = scripts.join("sluicegate-server");
    fs::write(&alias, ALIAS)?;
    fs::set_permissions(&alias, fs::Permissions::from_mode(0o755))?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        archive::copy(&workspace::root().join(licence), &info.join("licenses").join(licence))?;
    }
    let readme = fs::read_to_string(workspace::root().join("dist/wheel/README.md"))?;
    fs::write(info.join("METADATA"), metadata(version, &readme))?;
    let tags: Vec<_> = TAG.rsplit('-').next().unwrap_or_default().split('.').collect();
    let tags: Vec<_> = tags.iter().map(|platform| format!("Tag: py3-none-{platform}\n")).collect();
    let wheel = "Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\n";
    fs::write(info.join("WHEEL"), format!("{wheel}{}", tags.concat()))?;

    let mut pack = Command::new(release.tools.program("wheel"));
    pack.args(["pack"]).arg(&folder).arg("--dest-dir").arg(&release.folder);
    shell::run(pack.env("SOURCE_DATE_EPOCH", &release.epoch))
}

fn metadata(version: &str, readme: &str) -> String {
    format!(
        "Metadata-Version: 2.4
Name: sluicegate-server
Version: {version}
Summary: A rate limiter that is exact to the microsecond: the server and the command line
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Project-URL: Source, https://github.com/sluicegate/sluicegate
Keywords: rate-limiting,rate-limiter,redis,envoy,gcra
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Internet
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"
    )
}
