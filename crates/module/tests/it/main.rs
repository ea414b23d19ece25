//! The module in real servers, Redis 7.0 and Valkey 9.1, each started for its test.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod cell;
mod clock;
mod cluster;
mod commands;
mod conformance;
mod consumers;
mod holds;
mod hostile;
mod killed;
mod loading;
mod replication;
mod server;
mod sharing;
mod waiting;
mod waiting_multi_key;

/// Runs a test on each kind of server.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod redis_7_0 {
            $(
                #[test]
                fn $name() {
                    super::$name(sluicegate_testing::Engine::Redis70);
                }
            )*
        }
        mod valkey_9_1 {
            $(
                #[test]
                fn $name() {
                    super::$name(sluicegate_testing::Engine::Valkey91);
                }
            )*
        }
    };
}
use on_both;
