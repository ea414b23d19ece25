use std::{
    fs,
    path::{Path, PathBuf},
};

/// A wall clock that a test sets, for a process that it starts, by means of libfaketime.
#[derive(Debug)]
pub struct FakeClock {
    /// The file that contains its offset from the true time.
    file: PathBuf,
}

impl FakeClock {
    /// A clock without an offset, with its file in `folder`.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let clock = Self { file: folder.join("clock") };
        clock.set(0);
        clock
    }

    /// Environment variables of the process.
    ///
    /// # Panics
    /// If libfaketime is not installed.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", library().to_str().unwrap().to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.to_str().unwrap().to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            // Only the wall clock changes; timers stay as they are.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
        ]
    }

    /// Sets its offset from the true time, in seconds.
    pub fn set(&self, seconds: i64) {
        // Atomically, because the process may read a partly written file.
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{seconds:+}")).unwrap();
        fs::rename(next, &self.file).unwrap();
    }
}

/// The path of the library in Debian's package.
fn library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap().map_while(Result::ok);
    let mut found = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|it| it.exists()).expect("libfaketime; `cargo xtask test --all` installs it")
}
