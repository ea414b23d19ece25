//! `SG.HELP`: lists the commands that limit.

use super::spec::FAST;
use crate::protocols::resp::call::{CallResult, CommandCall, Next, ServerCommand, command};

pub(super) const SG_HELP: ServerCommand =
    command("SG.HELP", 1, FAST, &[], "Lists the commands that limit, with their syntax.", run)
        .of_server();

/// The reply is an array of lines, as that of `CLIENT HELP`.
fn run(call: &mut CommandCall<'_, '_, '_>) -> CallResult {
    let limits = |name: &str| name.starts_with("SG.") || name.starts_with("CL.");
    let specs: Vec<_> = call.table.specs().filter(|spec| limits(spec.name)).collect();
    let mut writer = call.writer();
    writer.array(specs.len() * 2);
    for spec in specs {
        writer.bulk(spec.syntax());
        writer.bulk(format!("    {}", spec.summary));
    }
    Ok(Next::Go)
}
