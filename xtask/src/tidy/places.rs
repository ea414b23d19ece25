//! No file names a place that only one machine or one network has.

use super::{Findings, Source};

/// In two halves, so that this file does not find itself.
const PLACES: [(&str, &str); 11] = [
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

pub(super) fn check(files: &[Source], findings: &mut Findings) {
    for Source { path, text, .. } in files {
        let Some(text) = text else { continue };
        for (index, line) in text.lines().enumerate() {
            if let Some(place) = place(line) {
                findings.error(format!("{path}:{}: names `{place}`", index + 1));
            }
        }
    }
}

/// The first such place in `line`.
fn place(line: &str) -> Option<String> {
    PLACES.iter().map(|(first, second)| format!("{first}{second}")).find(|it| line.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_one_machine_are_found() {
        let home = format!("/{}/someone/.cargo", "home");
        assert_eq!(place(&home), Some(format!("/{}/", "home")));
        assert_eq!(place("crates/core/src/lib.rs"), None);
    }
}
