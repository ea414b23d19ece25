//! `CLUSTER subcommand`: the server is not a cluster.

use super::spec::{FAST, SUBCOMMAND};
use crate::protocols::resp::call::{CallResult, CommandCall, ServerCommand, command};

pub(super) const CLUSTER: ServerCommand =
    command("CLUSTER", -2, FAST, SUBCOMMAND, "Reports that cluster support is disabled.", run)
        .of_server();

fn run(_: &mut CommandCall<'_, '_, '_>) -> CallResult {
    Err("ERR This instance has cluster support disabled".into())
}
