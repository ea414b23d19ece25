//! No file is larger than a source or a picture needs to be, because every clone fetches all history.

use super::{files::RepoFile, findings::Findings};

/// Maximum size of a file in bytes. The largest picture has an eighth of it.
const MAX_BYTES: usize = 1 << 20;

pub(super) fn check(files: &[RepoFile], findings: &mut Findings) {
    for RepoFile { path, bytes, .. } in files {
        if *bytes > MAX_BYTES {
            findings.error(format!(
                "{path} has {bytes} bytes, and a file at most {MAX_BYTES}: is it there by mistake?"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_file_over_maximum_is_found() {
        let of = |path: &str, bytes| RepoFile { path: path.to_owned(), bytes, text: None };
        let mut findings = Findings::default();
        check(&[of("picture.png", MAX_BYTES), of("core", MAX_BYTES + 1)], &mut findings);
        let [error] = findings.errors.as_slice() else { panic!("{:?}", findings.errors) };
        assert!(error.starts_with("core has 1048577 bytes"), "{error}");
    }
}
