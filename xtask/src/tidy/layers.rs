//! The modules of a crate form layers: each uses only those below it.
//!
//! A crate says so by a table in the documentation of its `lib.rs`, with a row for each layer, the highest first.

use std::collections::BTreeMap;

use super::{circles::Arrows, files::RepoFile, findings::Findings};

/// The head of the table.
const HEAD: &str = "//! | layer | ";

/// `arrows` are those of each crate, by its source folder.
pub(super) fn check(files: &[RepoFile], arrows: &[(String, Arrows)], findings: &mut Findings) {
    for (root, arrows) in arrows {
        let lib = format!("{root}/lib.rs");
        let text = files.iter().find(|file| file.path == lib).and_then(|file| file.text.as_deref());
        let Some(layers) = text.and_then(layers) else { continue };
        for fault in faults(root, &layers, arrows) {
            findings.error(format!("{lib}: {fault}"));
        }
    }
}

/// The modules of the table, from above, each with its layer. Of several in one row, each uses only those that follow.
fn layers(lib: &str) -> Option<BTreeMap<String, usize>> {
    let rows = lib.lines().skip_while(|line| !line.starts_with(HEAD)).skip(2);
    let rows = rows.take_while(|line| line.starts_with("//! | "));
    let names = rows.flat_map(|row| {
        let cell = row.split('|').nth(1).unwrap_or_default();
        cell.split('`').skip(1).step_by(2)
    });
    let layers: BTreeMap<_, _> = names.map(str::to_owned).zip(0..).collect();
    (!layers.is_empty()).then_some(layers)
}

/// Arrows that lead up, and modules that the table lacks.
fn faults(root: &str, layers: &BTreeMap<String, usize>, arrows: &Arrows) -> Vec<String> {
    let module = |file: &str| {
        let path = file.strip_prefix(root)?.strip_prefix('/')?;
        let name = path.split('/').next()?;
        let name = name.strip_suffix(".rs").unwrap_or(name);
        (name != "lib").then(|| name.to_owned())
    };
    let mut faults = Vec::new();
    for (from_file, used) in arrows {
        let Some(from) = module(from_file) else { continue };
        for to_file in used {
            let Some(to) = module(to_file).filter(|to| *to != from) else { continue };
            match (layers.get(&from), layers.get(&to)) {
                (Some(upper), Some(lower)) if upper < lower => {}
                (Some(_), Some(_)) => faults.push(format!(
                    "layer `{from}` uses `{to}`, which is not below it: {from_file} -> {to_file}"
                )),
                (None, _) => faults.push(format!("module `{from}` is not in the table of layers")),
                (_, None) => faults.push(format!("module `{to}` is not in the table of layers")),
            }
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! A crate.\n//!\n//! | layer | holds |\n//! | --- | --- |\n\
        //! | `high` | a |\n//! | `left`, `right` | b |\n//! | `low` | c |\n//!\n//! More.\nmod high;\n";

    fn found(from: &str, to: &str) -> Vec<String> {
        let path = |name: &str| format!("crates/x/src/{name}");
        let arrows = Arrows::from([(path(from), [path(to)].into())]);
        faults("crates/x/src", &layers(LIB).expect("a table"), &arrows)
    }

    #[test]
    fn layers_arrow_upwards_is_found() {
        for (from, to) in
            [("high.rs", "low/a.rs"), ("left/b.rs", "right.rs"), ("low.rs", "low/a.rs")]
        {
            assert_eq!(found(from, to), Vec::<String>::new(), "{from} {to}");
        }
        assert_eq!(
            found("low/a.rs", "high.rs"),
            [
                "layer `low` uses `high`, which is not below it: crates/x/src/low/a.rs -> crates/x/src/high.rs"
            ]
        );
        assert_eq!(found("right.rs", "left.rs").len(), 1);
    }

    #[test]
    fn layers_module_without_a_row_is_found() {
        assert_eq!(found("other.rs", "low.rs"), ["module `other` is not in the table of layers"]);
        assert_eq!(found("lib.rs", "low.rs"), Vec::<String>::new());
        assert!(layers("//! A crate without a table.\n").is_none());
    }
}
