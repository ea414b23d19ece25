//! Faults in received bytes.

/// The peer does not speak RESP, or exceeds a limit.
///
/// Framing is lost for good: a server answers `-ERR ` and this error's text, then closes the connection. Where Redis
/// has a text, it is Redis's own, because clients and operators recognise it; hence the capital letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A count of arguments or elements that is no number, or too great.
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    /// More arguments than a client may send before it has authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    /// A bulk length that is no number, negative, or too great.
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// A longer argument than a client may send before it has authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    /// An argument that does not begin with `$`, and the byte it begins with.
    #[error("Protocol error: expected '$', got '{}'", .0.escape_ascii())]
    ExpectedBulk(u8),
    /// An inline command that is too long, or has too many words.
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    /// An argument count that has no end.
    #[error("Protocol error: too big mbulk count string")]
    TooBigMultibulkCount,
    /// A bulk length that has no end.
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    /// An inline command with an open quote, or with a closing one in the middle of a word.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// A bulk that is longer than declared. Redis would misread the bytes after it; this parser stops.
    #[error("Protocol error: expected CRLF after a bulk")]
    UnterminatedBulk,
    /// A reply of no known type, and the byte it begins with.
    #[error("Protocol error: unknown reply type '{}'", .0.escape_ascii())]
    UnknownType(u8),
    /// A reply that does not match its type byte, and that byte.
    #[error("Protocol error: malformed reply of type '{}'", .0.escape_ascii())]
    MalformedReply(u8),
    /// A reply nested deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
    #[error("Protocol error: reply nested too deep")]
    TooDeep,
}
