//! The commands that run a script.

use redis::Cmd;

use crate::script::{Arguments, Plan, Script};

/// The call of the script about one key.
pub(crate) fn command(plan: &Plan, key: &[u8], arguments: &Arguments<'_>, whole: bool) -> Cmd {
    let mut command = begin(plan.script(), whole);
    command.arg(1).arg(key);
    for argument in arguments.iter() {
        command.arg(argument);
    }
    command
}

/// A call by the script's SHA-1, or with its `whole` text: then a server that does not know it need
/// not, however often its scripts are flushed.
pub(crate) fn begin(script: &Script, whole: bool) -> Cmd {
    let mut command = redis::cmd(if whole { "EVAL" } else { "EVALSHA" });
    command.arg(if whole { script.text() } else { script.sha1() });
    command
}
