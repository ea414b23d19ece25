//! `CLUSTER subcommand`: the server is not a cluster.

use sluicegate_commands::{CommandSpec, Keys};

use super::spec::{FAST, SUBCOMMAND};
use crate::resp::call::{Call, Next, ServerCommand};

pub(super) struct Cluster;

impl ServerCommand for Cluster {
    const SPEC: &'static CommandSpec = &CommandSpec {
        name: "CLUSTER",
        arity: -2,
        flags: FAST,
        keys: Keys::None,
        summary: "Reports that cluster support is disabled.",
        group: "server",
        arguments: SUBCOMMAND,
    };

    fn run(_: &mut Call<'_, '_, '_>) -> Result<Next, String> {
        Err("ERR This instance has cluster support disabled".into())
    }
}
