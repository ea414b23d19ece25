//! Words that no text for users contains, with the replacement.
//!
//! A pattern is a sequence of words. `a|b` is one word or the other, a word that ends in `*` is a prefix. `!a|b` in
//! front matches no word: neither may come before.

/// A pattern, and what to write instead.
pub(super) const BANNED: &[(&str, &str)] = &[
    ("would do", "`expected X`, or an imperative such as `use X`"),
    ("is|are|was|were|be|being|been away", "unavailable"),
    ("whom", "the thing itself: the client, caller, request or key"),
    ("whoever", "the thing itself: `anyone who`, `a client that`, `any X`"),
    ("as if never used", "unused, or fully recovered"),
    ("made up", "synthetic"),
    ("of ours", "`Sluicegate's`, or nothing"),
    ("of our own", "`Sluicegate's`, or nothing"),
    ("of one's own", "`your own`"),
    ("turn|turns|turned away", "rejected"),
    ("left|leave|leaves alone", "circuit breaker open"),
    ("anew", "again"),
    ("kin", "the names themselves"),
    ("zeal", "request rate"),
    ("amnesty", "`resets all limits`"),
    ("meanwhile", "`until then`, or nothing"),
    ("stand|stands|stood behind", "follows"),
    ("what stands", "the thing itself"),
    ("in the place of", "instead of"),
    ("each for itself", "independently"),
    ("somebody|nobody", "the thing itself: `a client`, `no client`"),
    ("he|him|his|himself", "`it`, `they`, or the client"),
    ("face|faces", "protocol (what is spoken) or listener (the port)"),
    ("99|99th of 100", "p99"),
    ("stays|stay used", "`usage carries over`"),
    ("is|are|was|were told|asked|said", "the active voice: say who does it"),
    (
        "!there is|are no json|base64|text|texts|path|host|name|number|policy|period",
        "`is not a ...`",
    ),
    ("is|are none", "`does not exist`, or `is invalid`"),
    ("so many|often", "a number, or `up to N`, `every T`"),
    ("as many as may", "`the limit of N`"),
    ("departed", "sent"),
    ("the like", "the names themselves"),
    ("layer of tower", "Tower middleware"),
    ("the form of envoyproxy*", "the envoyproxy/ratelimit format"),
    ("clients of five languages", "client examples in five languages"),
    ("gives|give back its|their place", "`releases its reservation`"),
    ("lack of room", "`the table is full`"),
    ("no room", "`no space`, or `the table is full`"),
    ("parted by", "separated by"),
    ("blanks", "spaces"),
    ("by its looks", "automatically"),
    ("who asks|waits|comes|leaves|takes", "the client that ..."),
    ("binds", "the binding limit"),
];

/// Symbols of Rust that users do not read.
pub(super) const SYMBOLS: &[(&str, &str)] = &[("..=", "`A to B`")];

/// Where a word of the list means something else: the file or folder, the pattern, and why.
pub(super) const ALLOWED: &[(&str, &str, &str)] = &[
    ("crates/memory/src/segment/model.rs", "somebody|nobody", "messages of a model check"),
    ("crates/rules/src/condition.rs", "is|are none", "`is none of` a list of values"),
    ("crates/server/src/dashboard/hot.rs", "is|are none", "the name of a function"),
];
