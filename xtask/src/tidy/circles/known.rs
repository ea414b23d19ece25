//! The circles that are known.

/// Circles that are there for a reason: the files, and why. A circle of some of these files is allowed as well.
pub(super) const ALLOWED: &[(&[&str], &str)] = &[];

/// Circles that were there before this check, and have to go: none may grow, and one that is gone is removed here.
pub(super) const OLD: &[&[&str]] = &[
    &[
        "crates/server/src/resp/again.rs",
        "crates/server/src/resp/batch.rs",
        "crates/server/src/resp/client.rs",
        "crates/server/src/resp/command.rs",
        "crates/server/src/resp/connection.rs",
        "crates/server/src/resp/connection/transfer.rs",
        "crates/server/src/resp/greeting.rs",
        "crates/server/src/resp/info.rs",
        "crates/server/src/resp/job.rs",
        "crates/server/src/resp/limiter.rs",
        "crates/server/src/resp/session.rs",
        "crates/server/src/resp/settings.rs",
        "crates/server/src/resp/worker.rs",
    ],
];
