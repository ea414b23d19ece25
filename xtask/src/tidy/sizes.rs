//! No file is larger than a source or a picture has reason to be: what a clone has fetched once, it keeps forever.

use super::{Findings, Source};

/// The most that a file may have, in bytes. The largest picture has an eighth of it.
const MOST: usize = 1 << 20;

pub(super) fn check(files: &[Source], findings: &mut Findings) {
    for Source { path, bytes, .. } in files {
        if *bytes > MOST {
            findings.error(format!(
                "{path} has {bytes} bytes, and a file at most {MOST}: is it there by mistake?"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_bound_is_found() {
        let of = |path: &str, bytes| Source { path: path.to_owned(), bytes, text: None };
        let mut findings = Findings::default();
        check(&[of("picture.png", MOST), of("core", MOST + 1)], &mut findings);
        let [error] = findings.errors.as_slice() else { panic!("{:?}", findings.errors) };
        assert!(error.starts_with("core has 1048577 bytes"), "{error}");
    }
}
