//! Rules files as they are given to the parser.

/// Format of a rules file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2.
    Yaml,
    /// TOML 1.1.
    Toml,
}

impl Format {
    /// The format of the file `name`: TOML if it ends in `.toml`, else YAML.
    #[must_use]
    pub fn of_file(name: &str) -> Self {
        let toml = name.rsplit_once('.').is_some_and(|(_, end)| end.eq_ignore_ascii_case("toml"));
        if toml { Self::Toml } else { Self::Yaml }
    }
}

/// Content of a rules file, with the name of the file.
#[derive(Clone, Copy, Debug)]
pub struct RulesSource<'t> {
    /// Name of the file, for errors in other files that refer to it; may be empty.
    pub name: &'t str,
    /// The content.
    pub text: &'t str,
    /// The format of the content.
    pub format: Format,
}
