//! The commands that run a script.

use redis::Cmd;

use crate::script::{Arguments, Plan, Script};

/// The call of a script for one key.
pub(crate) fn command(plan: &Plan, key: &[u8], arguments: &Arguments<'_>, whole: bool) -> Cmd {
    let mut command = begin(plan.script(), whole);
    command.arg(1).arg(key);
    for argument in arguments.iter() {
        command.arg(argument);
    }
    command
}

/// A call by the SHA-1 of the script, or with its `whole` text, which works even if scripts are flushed
/// repeatedly.
pub(crate) fn begin(script: &Script, whole: bool) -> Cmd {
    let mut command = redis::cmd(if whole { "EVAL" } else { "EVALSHA" });
    command.arg(if whole { script.text() } else { script.sha1() });
    command
}
