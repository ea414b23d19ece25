//! Scripts, assembled from the files in `lua/`.

use std::sync::OnceLock;

use sha1::{Digest, Sha1};
use sluicegate_core::{Limit, Policy};

const FAST_GCRA: &str = include_str!("../../lua/fast_gcra.lua");
const FAST_LOG: &str = include_str!("../../lua/fast_log.lua");
pub(super) const WIDE: &str = include_str!("../../lua/wide.lua");
pub(super) const ENCODING: &str = include_str!("../../lua/encoding.lua");
pub(super) const MIGRATE: &str = include_str!("../../lua/migrate.lua");
pub(super) const HOLDS: &str = include_str!("../../lua/holds.lua");
pub(super) const DECIDE: &str = include_str!("../../lua/decide.lua");
const REQUEST: &str = include_str!("../../lua/request.lua");
const MAIN: &str = include_str!("../../lua/main.lua");
const PROBE: &str = include_str!("../../lua/probe.lua");
pub(super) const DECIDE_ALL: &str = include_str!("../../lua/decide_all.lua");
const MULTI_KEY: &str =
    concat!(include_str!("../../lua/decide_all.lua"), include_str!("../../lua/multi_key.lua"));

/// In the file of the fast path for the gcra family, the line before the part that scripts and library have.
const TAKE_MARK: &str = "-- [take]\n";
/// In the file of an algorithm, the line before the part that only the library of functions has.
const LIBRARY_MARK: &str = "-- [library]\n";

/// The files of the algorithms, in the order of [`Limit::index`].
pub(super) const MACHINES: [&str; Limit::COUNT] = [
    include_str!("../../lua/gcra.lua"),
    include_str!("../../lua/interval_bucket.lua"),
    include_str!("../../lua/fixed_window.lua"),
    include_str!("../../lua/sliding_log.lua"),
    include_str!("../../lua/sliding_counter.lua"),
    include_str!("../../lua/concurrency.lua"),
];

/// The part of an algorithm's file for scripts, and the part for the library only.
pub(super) fn parts(file: &'static str) -> (&'static str, &'static str) {
    file.split_once(LIBRARY_MARK).expect("the file of each algorithm has both parts")
}

/// The fast path for the gcra family, as a function of the library.
pub(super) fn fast_take() -> String {
    let (_, take) = FAST_GCRA.split_once(TAKE_MARK).expect("the file has a part for the library");
    format!(
        "function fast_take(key, cost, n, p, limit, queue, begins, at)\nlocal pcall = redis.pcall\n{take}"
    )
}

/// One for each set of algorithms, and one for a single limit with a fast path.
const SCRIPTS: usize = 1 << (MACHINES.len() + 1);

/// A script for the server.
#[derive(Debug)]
pub struct Script {
    text: String,
    sha1: String,
}

impl Script {
    /// Its Lua.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The SHA-1 of its text in hexadecimal digits, by which `EVALSHA` calls it.
    #[must_use]
    pub fn sha1(&self) -> &str {
        &self.sha1
    }

    /// The script that decides under `policy`.
    pub(super) fn of(policy: &Policy) -> &'static Self {
        static SCRIPTS_MADE: [OnceLock<Script>; SCRIPTS] = [const { OnceLock::new() }; SCRIPTS];
        let used = policy.limits().iter().fold(0, |used, limit| used | 1 << limit.index());
        let fast = match policy.limits() {
            [Limit::Gcra(_)] => Some(FAST_GCRA),
            [Limit::SlidingLog(_)] => Some(FAST_LOG),
            _ => None,
        };
        SCRIPTS_MADE[usize::from(fast.is_some()) << MACHINES.len() | used]
            .get_or_init(|| Self::new(assemble(used, fast, MAIN)))
    }

    /// The script that decides on several keys under these policies.
    pub(crate) fn multi_key<'a>(policies: impl Iterator<Item = &'a Policy>) -> &'static Self {
        static SCRIPTS_MADE: [OnceLock<Script>; SCRIPTS / 2] =
            [const { OnceLock::new() }; SCRIPTS / 2];
        let limits = policies.flat_map(Policy::limits);
        let used = limits.fold(0, |used, limit| used | 1 << limit.index());
        SCRIPTS_MADE[used].get_or_init(|| Self::new(assemble(used, None, MULTI_KEY)))
    }

    /// The script that fails where a take would, whatever the key, and changes nothing.
    pub(crate) fn probe() -> &'static Self {
        static MADE: OnceLock<Script> = OnceLock::new();
        MADE.get_or_init(|| {
            let mut text = String::new();
            compact(PROBE, &mut text);
            Self::new(text)
        })
    }

    /// A script of this text.
    fn new(text: String) -> Self {
        let sha1 = format!("{:x}", Sha1::digest(&text));
        Self { text, sha1 }
    }
}

/// The script for policies of these algorithms, a bit each. Each run of a script creates all of its functions again;
/// therefore those of other algorithms are in a function of their own, for a key that was written under another policy.
fn assemble(used: usize, fast: Option<&str>, main: &'static str) -> String {
    let (own, others): (Vec<_>, Vec<_>) =
        MACHINES.iter().enumerate().partition(|(index, _)| used & 1 << index != 0);
    let mut text = String::new();
    if let Some(fast) = fast {
        compact(fast, &mut text);
    }
    let mut parts = vec![WIDE, ENCODING];
    parts.extend(own.iter().map(|(_, file)| self::parts(file).0));
    parts.push("others = function()");
    parts.extend(others.iter().map(|(_, file)| self::parts(file).0));
    parts.extend(["end", MIGRATE, DECIDE, "with_holds = function()", HOLDS, "end", REQUEST, main]);
    for part in parts {
        compact(part, &mut text);
    }
    text
}

/// Adds a file without its comments, blank lines and indents: the server keeps the text of a script.
pub(super) fn compact(file: &str, text: &mut String) {
    for line in file.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("--") {
            text.push_str(line);
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(policy: &str) -> &'static Script {
        Script::of(&policy.parse().unwrap())
    }

    #[test]
    fn parameters_are_not_in_the_text() {
        assert_eq!(script("gcra:30/1m").sha1(), script("leaky-queue:7/1d").sha1());
        assert_eq!(script("gcra:1/1s,gcra:9/1m").sha1(), script("gcra:2/1s,gcra:3/1h").sha1());
        assert_ne!(script("gcra:1/1s,gcra:9/1m").sha1(), script("gcra:1/1s").sha1());
        let two = script("sliding-log:1/1s,sliding-counter:1/1h");
        assert_eq!(two.sha1(), script("sliding-counter:7/1s,sliding-log:3/1h").sha1());
    }

    #[test]
    fn script_text_is_small_and_has_no_comments() {
        for policy in ["gcra:30/1m", "sliding-log:1/1s", "gcra:1/1s,fixed-window:1/day"] {
            let text = script(policy).text();
            assert!(text.len() < 62_000, "{policy}: {} bytes", text.len());
            assert!(!text.contains("\n--") && !text.contains("\n "), "{policy}");
        }
    }

    #[test]
    fn script_sha1_is_that_of_the_text() {
        let script = Script::new("return 1".to_owned());
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
