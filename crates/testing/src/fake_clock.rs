use std::{
    fs,
    path::{Path, PathBuf},
};

/// A wall clock that a test sets, for a process of its own, by libfaketime.
#[derive(Debug)]
pub struct FakeClock {
    /// The file that says how far it is from the true time.
    file: PathBuf,
}

impl FakeClock {
    /// One that is right, with its file in `folder`.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let clock = Self { file: folder.join("clock") };
        clock.set(0);
        clock
    }

    /// What the process needs in its environment.
    ///
    /// # Panics
    /// libfaketime is not installed.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("LD_PRELOAD", library().to_str().unwrap().to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.to_str().unwrap().to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            // Timers go on as they are: it is the wall clock that steps.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
        ]
    }

    /// Sets it so many seconds beside the true time.
    pub fn set(&self, seconds: i64) {
        // In one step: a file that is half written would be read.
        let next = self.file.with_extension("next");
        fs::write(&next, format!("{seconds:+}")).unwrap();
        fs::rename(next, &self.file).unwrap();
    }
}

/// Where Debian's package puts it.
fn library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap().map_while(Result::ok);
    let mut found = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|it| it.exists()).expect("libfaketime; `cargo xtask test` installs it")
}
