//! The circles that are known.

/// Circles that are there for a reason: the files, and why. A circle of some of these files is allowed as well.
pub(super) const ALLOWED: &[(&[&str], &str)] = &[];

/// Circles that were there before this check, and have to go: none may grow, and one that is gone is removed here.
pub(super) const OLD: &[&[&str]] = &[
    &[
        "crates/server/src/protocols/resp/again.rs",
        "crates/server/src/protocols/resp/batch.rs",
        "crates/server/src/protocols/resp/client.rs",
        "crates/server/src/protocols/resp/command.rs",
        "crates/server/src/protocols/resp/connection.rs",
        "crates/server/src/protocols/resp/connection/transfer.rs",
        "crates/server/src/protocols/resp/greeting.rs",
        "crates/server/src/protocols/resp/info.rs",
        "crates/server/src/protocols/resp/job.rs",
        "crates/server/src/protocols/resp/limiter.rs",
        "crates/server/src/protocols/resp/session.rs",
        "crates/server/src/protocols/resp/settings.rs",
        "crates/server/src/protocols/resp/worker.rs",
    ],
];
