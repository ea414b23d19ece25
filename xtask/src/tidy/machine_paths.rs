//! No file names a path or host that only one machine or network has.

use super::{files::RepoFile, findings::Findings};

/// In two halves, so that this file does not find itself.
const MACHINE_PATHS: [(&str, &str); 11] = [
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/wo", "rk/"),
    ("py", "pi.org"),
    ("python", "hosted.org"),
    ("registry.", "npmjs.org"),
    ("index.", "crates.io"),
    ("static.", "crates.io"),
    ("deb.", "debian.org"),
    ("proxy.", "golang.org"),
];

pub(super) fn check(files: &[RepoFile], findings: &mut Findings) {
    for RepoFile { path, text, .. } in files {
        let Some(text) = text else { continue };
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = machine_path(line) {
                findings.error(format!("{path}:{}: names `{found}`", index + 1));
            }
        }
    }
}

/// The first such path or host in `line`.
fn machine_path(line: &str) -> Option<String> {
    MACHINE_PATHS
        .iter()
        .map(|(first, second)| format!("{first}{second}"))
        .find(|it| line.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_path_home_folder_is_found() {
        let home = format!("/{}/someone/.cargo", "home");
        assert_eq!(machine_path(&home), Some(format!("/{}/", "home")));
        assert_eq!(machine_path("crates/core/src/lib.rs"), None);
    }
}
