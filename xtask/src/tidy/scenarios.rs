//! `scenarios/` equals the shared scenarios, if those exist beside the repository.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};

use super::findings::Findings;

pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<()> {
    let shared = root.join("../shared/scenarios");
    if shared.is_dir() {
        let (ours, theirs) = (contents(&root.join("scenarios"))?, contents(&shared)?);
        for difference in differences(&ours, &theirs) {
            findings.error(format!("scenarios/{difference}"));
        }
    }
    Ok(())
}

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(folder: &Path) -> Result<Contents> {
    let files =
        fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let files = files.map(|file| {
        let file = file?;
        Ok((file.file_name().to_string_lossy().into_owned(), fs::read(file.path())?))
    });
    files.collect()
}

fn differences(ours: &Contents, theirs: &Contents) -> Vec<String> {
    let gone = theirs.keys().filter(|name| !ours.contains_key(*name));
    let gone = gone.map(|name| format!("{name} is missing"));
    let other = ours.iter().filter_map(|(name, bytes)| match theirs.get(name) {
        None => Some(format!("{name} is not one of the shared scenarios")),
        Some(shared) if shared != bytes => Some(format!("{name} differs from the shared one")),
        Some(_) => None,
    });
    gone.chain(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found_both_ways() {
        let files = |files: &[(&str, &str)]| -> Contents {
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().into())).collect()
        };
        let ours = files(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let theirs = files(&[("a", "1"), ("b", "0"), ("d", "4")]);
        assert_eq!(
            differences(&ours, &theirs),
            [
                "d is missing",
                "b differs from the shared one",
                "c is not one of the shared scenarios"
            ]
        );
    }
}
