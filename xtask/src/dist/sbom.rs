//! The software bill of materials: every crate in the program and in the module, in the format CycloneDX 1.5.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};
use serde_json::{Value, json};

use super::release::Release;
use crate::workspace;

pub(super) fn write(release: &Release) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .other_options(
            ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(String::from),
        )
        .exec()
        .context("cargo metadata failed")?;
    for (package, file) in
        [("sluicegate-cli", "sluicegate"), ("sluicegate-module", "sluicegate-module")]
    {
        let document = document(&metadata, package, &release.version)?;
        let path = release.folder.join(format!("{}.cdx.json", release.name(file)));
        fs::write(path, serde_json::to_string_pretty(&document)?)?;
    }
    Ok(())
}

fn document(metadata: &Metadata, package: &str, version: &str) -> Result<Value> {
    let dependencies = linked(metadata, package)?;
    let checksums = checksums()?;
    let components: Vec<_> = dependencies
        .keys()
        .map(|id| {
            let package = &metadata[id];
            let (name, version) = (package.name.as_str(), package.version.to_string());
            let mut component = json!({
                "type": "library",
                "bom-ref": reference(name, &version),
                "name": name,
                "version": version,
                "purl": reference(name, &version),
            });
            if let Some(licence) = &package.license {
                component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
            }
            if let Some(sum) = checksums.get(&(name.to_owned(), version)) {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
            }
            component
        })
        .collect();
    let name =
        |id: &PackageId| reference(metadata[id].name.as_str(), &metadata[id].version.to_string());
    let edges: Vec<_> = dependencies
        .iter()
        .map(|(id, to)| json!({ "ref": name(id), "dependsOn": to.iter().map(name).collect::<Vec<_>>() }))
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": reference(package, version),
            "name": package,
            "version": version,
        } },
        "components": components,
        "dependencies": edges,
    }))
}

/// A package URL, which is also the name of a component within the document.
fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// Every package that `package` links, with those that it links itself. Build scripts and macros are not in the
/// program, but are listed too, because a report about a vulnerability in one of them must find it.
fn linked(metadata: &Metadata, package: &str) -> Result<BTreeMap<PackageId, Vec<PackageId>>> {
    let graph = metadata.resolve.as_ref().context("cargo metadata lists no dependencies")?;
    let nodes: BTreeMap<_, _> = graph.nodes.iter().map(|node| (&node.id, node)).collect();
    let first =
        metadata.packages.iter().find(|it| it.name == package).context("our own package")?;
    let mut found = BTreeMap::new();
    let mut open = vec![first.id.clone()];
    while let Some(id) = open.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let node = nodes.get(&id).context("a package without a node")?;
        let used = node
            .deps
            .iter()
            .filter(|it| it.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development));
        let used: Vec<_> = used.map(|it| it.pkg.clone()).collect();
        open.extend(used.iter().cloned());
        found.insert(id, used);
    }
    Ok(found)
}

/// The checksums in `Cargo.lock`, by name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>> {
    let text = fs::read_to_string(workspace::root().join("Cargo.lock"))?;
    let lock: toml::Table = text.parse().context("Cargo.lock")?;
    let packages =
        lock.get("package").and_then(|it| it.as_array()).context("Cargo.lock has no packages")?;
    let field = |package: &toml::Value, name: &str| {
        package.get(name).and_then(|it| it.as_str()).map(str::to_owned)
    };
    let sums = packages.iter().filter_map(|package| {
        Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?))
    });
    Ok(sums.collect())
}
