//! The commands that only the server has: one file each.

mod auth;
mod client;
mod cluster;
mod command;
mod config;
mod dbsize;
mod del;
mod echo;
mod exists;
mod hello;
mod info;
mod latency;
mod ping;
mod quit;
mod reset;
mod role;
mod select;
mod sg_keys;
mod slowlog;
mod spec;
mod time;
mod ttl;

use std::sync::LazyLock;

use super::call::{CommandTable, TableEntry};

/// All commands: those of `sluicegate_commands`, then these.
pub(super) fn table() -> &'static CommandTable {
    static TABLE: LazyLock<CommandTable> = LazyLock::new(|| {
        CommandTable::new([
            TableEntry::new::<auth::Auth>(),
            TableEntry::new::<client::Client>(),
            TableEntry::new::<cluster::Cluster>(),
            TableEntry::new::<command::CommandInfo>(),
            TableEntry::new::<config::Config>(),
            TableEntry::new::<dbsize::DbSize>(),
            TableEntry::new::<del::Del>(),
            TableEntry::new::<echo::Echo>(),
            TableEntry::new::<exists::Exists>(),
            TableEntry::new::<hello::Hello>(),
            TableEntry::new::<info::Info>(),
            TableEntry::new::<latency::Latency>(),
            TableEntry::new::<sg_keys::SgKeys>(),
            TableEntry::new::<ping::Ping>(),
            TableEntry::new::<ttl::Pttl>(),
            TableEntry::new::<quit::Quit>(),
            TableEntry::new::<reset::Reset>(),
            TableEntry::new::<role::Role>(),
            TableEntry::new::<select::Select>(),
            TableEntry::new::<slowlog::SlowLog>(),
            TableEntry::new::<time::Time>(),
            TableEntry::new::<ttl::Ttl>(),
        ])
    });
    &TABLE
}
