//! Requests that may wait, but are invalid.

/// Commands on the key `q`, a full `leaky-queue`, and on `k`, which is in use under `gcra:1/1h`, and how the error reply to each
/// begins.
pub const INVALID_WAITS: [(&str, &str); 8] = [
    (
        "SG.HOLD q leaky-queue:1/1h:capacity=1 x TTL 1000 TIMEOUT 1000000000",
        "ERR invalid policy for a hold",
    ),
    (
        "SG.HOLD q leaky-queue:1/1h:capacity=1 x TTL 1000 COST 0 TIMEOUT 1000000000",
        "ERR invalid policy for a hold",
    ),
    ("SG.HOLD k gcra:1/1h x TIMEOUT 1000000000", "ERR missing ttl"),
    ("SG.HOLD k gcra:1/1h x COST 0 TIMEOUT 1000000000", "ERR missing ttl"),
    (
        "SG.HOLD k gcra:1/1h iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii TTL 1000 TIMEOUT 1000000000",
        "ERR invalid id of 65 bytes",
    ),
    (
        "SG.WAIT k concurrency:1/1h TIMEOUT 1000000000",
        "ERR invalid operation under a policy with `concurrency`",
    ),
    (
        "SG.TAKEALL 2 k gcra:1/1h 1 q leaky-queue:1/1h:capacity=1 1 ID x TTL 1000 TIMEOUT 1000000000",
        "ERR invalid policy for a hold",
    ),
    (
        "SG.TAKEALL 1 k concurrency:1/1h 1 TIMEOUT 1000000000",
        "ERR invalid operation under a policy with `concurrency`",
    ),
];
