//! The circles that are allowed.

/// Circles that are there for a reason: the files, and why. A circle of some of these files is allowed as well.
pub(super) const ALLOWED: &[(&[&str], &str)] = &[
    (
        &[
            "crates/server/src/protocols/resp/connection.rs",
            "crates/server/src/protocols/resp/connection/deferred.rs",
            "crates/server/src/protocols/resp/connection/transfer.rs",
            "crates/server/src/protocols/resp/connection/turns.rs",
            "crates/server/src/protocols/resp/connection/waiting.rs",
        ],
        "one type, parent and children: the connection calls each of its parts, and these change its state",
    ),
    (
        &[
            "crates/redis/src/net/connect.rs",
            "crates/redis/src/net/keeper.rs",
            "crates/redis/src/net/node_connection.rs",
        ],
        "one type: connecting starts the keeper, which connects again",
    ),
    (
        &[
            "crates/dst/src/server/ledger.rs",
            "crates/dst/src/server/multi_key.rs",
            "crates/dst/src/server/settles.rs",
            "crates/dst/src/server/waiters.rs",
        ],
        "one type: the ledger checks each reply by the part that knows its command",
    ),
    (
        &["crates/dst/src/table/file.rs", "crates/dst/src/table/steps.rs"],
        "one type: a snapshot takes further steps while it is written",
    ),
];
