//! How much clients of HTTP may send at a time, and the memory that is reserved for it.

/// Longest head of a request, in bytes.
pub(crate) const MAX_HEAD: u32 = 32 * 1024;
/// The most that is kept of the head of a request, and of what is pending on HTTP/1.1, in bytes.
pub(super) const MAX_BUFFER: usize = 64 * 1024;
/// The most fields in a request's head, on HTTP/1.1.
pub(super) const MAX_FIELDS: usize = 100;
/// Requests of one client at a time, on HTTP/2.
pub(super) const MAX_STREAMS: u32 = 256;
/// Requests that a client may take back before they were looked at.
pub(super) const MAX_RESETS: usize = 32;
/// Requests that we may refuse for what is wrong in them.
pub(super) const MAX_REFUSALS: usize = 128;
/// How much a client may send of one body, and of all, before it is read, on HTTP/2.
pub(super) const WINDOW: u32 = 64 * 1024;
pub(super) const WINDOW_OF_ALL: u32 = 256 * 1024;
/// The most that is pending for one request on HTTP/2, in bytes.
pub(crate) const MAX_PENDING: usize = 16 * 1024;

/// What a conversation takes up, in bytes: on HTTP/1.1 and HTTP/2.
pub(super) const HTTP1: usize = 16 * 1024;
pub(super) const HTTP2: usize = 20 * 1024;
/// What TLS takes up, from the handshake on, while a connection rests as well.
pub(super) const TLS: usize = 12 * 1024;
/// What each request in flight beyond the first takes up on HTTP/2, besides its head.
pub(super) const STREAM: usize = 4 * 1024;
/// What the place of a request takes up on HTTP/2, which a connection keeps for the next ones: in h2's tables of
/// requests and of frames that are to be sent, some of 350 bytes for each reply.
pub(super) const SLOT: usize = 2048;
/// What is free of charge: of the head of a lone request, and of a reply.
pub(super) const FREE_HEAD: usize = 2 * 1024;
pub(super) const FREE_REPLY: usize = 2 * 1024;

/// What each field of a head takes up besides its name and value, as HTTP/2 counts it.
pub(super) const FIELD: usize = 32;
