//! `CLUSTER subcommand`: the server is not a cluster.

use super::spec::{FAST, SUBCOMMAND};
use crate::protocols::resp::call::{Call, CallResult, ServerCommand};

pub(super) const CLUSTER: ServerCommand = ServerCommand::new(
    "CLUSTER",
    -2,
    FAST,
    SUBCOMMAND,
    "Reports that cluster support is disabled.",
    run,
)
.of_server();

fn run(_: &mut Call<'_, '_, '_>) -> CallResult {
    Err("ERR This instance has cluster support disabled".into())
}
