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
mod get;
mod hello;
mod info;
mod latency;
mod ping;
mod quit;
mod reset;
mod role;
mod select;
mod sg_help;
mod sg_keys;
mod slowlog;
mod spec;
mod time;
mod ttl;

use std::sync::LazyLock;

use super::call::CommandTable;

/// All commands: those of `sluicegate_commands`, then these.
pub(super) fn table() -> &'static CommandTable {
    static TABLE: LazyLock<CommandTable> = LazyLock::new(|| {
        CommandTable::new([
            &auth::AUTH,
            &client::CLIENT,
            &cluster::CLUSTER,
            &command::COMMAND,
            &config::CONFIG,
            &dbsize::DBSIZE,
            &del::DEL,
            &echo::ECHO,
            &exists::EXISTS,
            &get::GET,
            &hello::HELLO,
            &info::INFO,
            &latency::LATENCY,
            &sg_help::SG_HELP,
            &sg_keys::SG_KEYS,
            &ping::PING,
            &ttl::PTTL,
            &quit::QUIT,
            &reset::RESET,
            &role::ROLE,
            &select::SELECT,
            &slowlog::SLOWLOG,
            &time::TIME,
            &ttl::TTL,
        ])
    });
    &TABLE
}
