//! All worlds: the plan of a seed, or of a script, in any of them.

use std::fmt::Display;

use anyhow::Result;

use crate::{
    event_log::{Output, RunOutcome},
    plan::{Plan, World},
    quotas::Quotas,
    random::Random,
    run::run,
    server::Server,
    shared::Shared,
    shrink::shrink,
    table::Table,
};

/// The kinds of plans.
pub(crate) const KINDS: [&str; 5] = ["processes", "cluster", "table", "server", "quotas"];

/// A plan of any world.
pub(crate) trait AnyPlan: Display {
    /// One of [`KINDS`].
    fn kind(&self) -> &'static str;

    fn run(&self, output: Output) -> RunOutcome;

    /// The shortest plan found whose violation is of the same kind.
    fn shrink(&self) -> Result<Box<dyn AnyPlan>>;
}

impl<W: World> AnyPlan for Plan<W> {
    fn kind(&self) -> &'static str {
        self.world.kind()
    }

    fn run(&self, output: Output) -> RunOutcome {
        run(self, output)
    }

    fn shrink(&self) -> Result<Box<dyn AnyPlan>> {
        Ok(Box::new(shrink(self)?))
    }
}

/// The plan of a seed.
pub(crate) fn from_seed(seed: u64) -> Box<dyn AnyPlan> {
    let random = &Random::new(seed, "plan");
    match Random::new(seed, "kind").below(100) {
        0..20 => Box::new(Table::generate(seed, random)),
        94..100 => Box::new(Quotas::generate(seed, random)),
        20..35 => Box::new(Server::generate(seed, random)),
        _ => Box::new(Shared::generate(seed, random)),
    }
}

/// The plan that a script is.
pub(crate) fn read(script: &str) -> Result<Box<dyn AnyPlan>> {
    let names = |name| script.lines().any(|line| line.split_whitespace().next() == Some(name));
    Ok(match () {
        () if names(Table::NAME) => Box::new(script.parse::<Plan<Table>>()?),
        () if names(Quotas::NAME) => Box::new(script.parse::<Plan<Quotas>>()?),
        () if names(Server::NAME) => Box::new(script.parse::<Plan<Server>>()?),
        () => Box::new(script.parse::<Plan<Shared>>()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_of_a_seed_survives_as_text() {
        for seed in 0..200 {
            let text = from_seed(seed).to_string();
            assert_eq!(read(&text).unwrap().to_string(), text, "seed {seed}");
        }
    }

    #[test]
    fn script_with_an_error_names_the_line() {
        let head = "shared processes 1 denial_cache 0 cluster -\nkey gcra:1/1s 0 deny\n";
        for (line, expected) in [
            ("10 0 request 1 take 1", "unknown key"),
            ("10 3 request 0 take 1", "unknown process `3`"),
            ("10 0 request 0 steal 1", "invalid `steal`"),
            ("10 0 fault - flood 1 1", "invalid `flood`"),
            ("10 0 use-policy 0 1", "unknown key or policy"),
            ("10 0 fault 0 fail-over 1 1", "unknown node `0`"),
            ("x 0 request 0 take 1", "invalid number `x`"),
        ] {
            let error = read(&format!("{head}{line}")).err().unwrap();
            let text = format!("{error:#}");
            assert!(text.contains(line) && text.contains(expected), "{text}");
        }
    }
}
