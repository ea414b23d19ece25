//! The scripts as functions (Redis 7.0, Valkey 7.2 and later), for clients in any language.
//!
//! A library of functions is loaded once, stays, and is replicated. It parses policies from text in Lua, and has no time
//! zone but UTC.

use std::sync::OnceLock;

use super::text::{
    DECIDE, DECIDE_ALL, ENCODING, HOLDS, MACHINES, MIGRATE, WIDE, compact, fast_take, parts,
};

const REGISTER: &str = include_str!("../../lua/library/register.lua");

/// What the parts of the algorithms need.
const POLICY: &str = include_str!("../../lua/library/policy.lua");
/// Files that need the parts of the algorithms.
const FUNCTIONS: [&str; 3] = [
    include_str!("../../lua/library/calendar.lua"),
    include_str!("../../lua/library/info.lua"),
    include_str!("../../lua/library/functions.lua"),
];

/// The library of functions: `FUNCTION LOAD` takes its text.
///
/// ```text
/// FCALL sg_take 1 user123 gcra:30/60s:burst=16 1
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Library;

impl Library {
    /// Its name.
    pub const NAME: &'static str = "sluicegate";
    /// Its version. It is in the second line of the text, after `-- version `, so that `FUNCTION LIST LIBRARYNAME
    /// sluicegate WITHCODE` shows which version is installed.
    pub const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    /// The names of its functions.
    pub const FUNCTIONS: &'static [&'static str] = &[
        "sg_take",
        "sg_peek",
        "sg_charge",
        "sg_refund",
        "sg_reserve",
        "sg_hold",
        "sg_settle",
        "sg_renew",
        "sg_takeall",
        "sg_reset",
        "sg_info",
    ];

    /// Its Lua.
    #[must_use]
    pub fn text() -> &'static str {
        static TEXT: OnceLock<String> = OnceLock::new();
        TEXT.get_or_init(|| {
            let mut text = format!("#!lua name={}\n-- version {}\n", Self::NAME, Self::VERSION);
            let scripts = MACHINES.into_iter().map(|file| parts(file).0);
            let own = MACHINES.into_iter().map(|file| parts(file).1);
            let shared = [WIDE, ENCODING].into_iter().chain(scripts).chain([
                MIGRATE,
                DECIDE,
                "with_holds = function()",
                HOLDS,
                "end",
                DECIDE_ALL,
                POLICY,
            ]);
            text.push_str("local function setup()\n");
            let fast = fast_take();
            let files = shared.chain(own).chain([fast.as_str()]).chain(FUNCTIONS);
            files.for_each(|file| compact(file, &mut text));
            text.push_str("end\n");
            compact(REGISTER, &mut text);
            text
        })
    }

    /// The version in the text of an installed library.
    #[must_use]
    pub fn version_of(text: &str) -> Option<&str> {
        text.lines().nth(1)?.strip_prefix("-- version ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_text_contains_name_and_version() {
        assert!(Library::text().starts_with("#!lua name=sluicegate\n"));
        assert_eq!(Library::version_of(Library::text()), Some(Library::VERSION));
        assert_eq!(Library::version_of("#!lua name=other\nlocal x"), None);
        for name in Library::FUNCTIONS {
            assert!(Library::text().contains(name), "{name}");
        }
    }
}
